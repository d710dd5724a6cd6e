//! Writes events.

use super::Event;
use bytes::Bytes;
use std::fmt::Write;

/// A comment: says nothing, and that the stream is alive.
pub const COMMENT: &[u8] = b":\n\n";

/// The bytes of one event, its blank line included. Line ends in `data` become separate `data` lines; in `event` and
/// `id`, which cannot hold them, they are left out.
pub fn encode(event: &Event) -> Bytes {
    let mut text = String::with_capacity(event.data.len() + 64);
    if let Some(name) = &event.event {
        push_line(&mut text, "event", name);
    }
    if let Some(id) = &event.id {
        push_line(&mut text, "id", id);
    }
    if let Some(millis) = event.retry_millis {
        let _ = writeln!(text, "retry: {millis}");
    }
    for line in lines(&event.data) {
        push_line(&mut text, "data", line);
    }
    text.push('\n');
    Bytes::from(text)
}

fn push_line(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    text.push_str(": ");
    text.extend(value.split(['\r', '\n']));
    text.push('\n');
}

/// Splits at CRLF, LF and CR, as a decoder does.
fn lines(data: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(data);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        let Some(end) = text.find(['\r', '\n']) else { return Some(text) };
        let (line, after) = text.split_at(end);
        rest = after.strip_prefix("\r\n").or_else(|| after.get(1..));
        Some(line)
    })
}
