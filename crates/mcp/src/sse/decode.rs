//! Reads events from chunks that are cut anywhere.

use super::Event;
use std::collections::VecDeque;
use std::string::FromUtf8Error;

/// Longest `id` or `event` of an event, in bytes; a longer one counts as empty, and so does one with a control character. A reader
/// keeps the last id to take the stream up again, and sends it in a header. The standard sets no bound.
pub const MAX_FIELD: usize = 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// An event was larger than the decoder's bound. It was skipped; the stream can be read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event is larger than {limit} bytes")]
pub struct TooLarge {
    /// The bound, in bytes.
    pub limit: usize,
    /// The event's id, if that came before what was too large.
    pub id: Option<String>,
}

/// An incremental decoder that holds at most one event of a bounded size, beside those that are not yet taken.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    /// The line that is being read, without its end.
    line: Vec<u8>,
    /// The event that is being read, but for its data.
    event: Event,
    /// Its data lines, if it has any yet.
    data: Option<String>,
    /// The event went over the bound; its rest is skipped.
    skipping: bool,
    /// The last line ended with CR, so a LF that follows belongs to it.
    after_cr: bool,
    /// No line has been read yet: it may start with a byte order mark.
    at_start: bool,
    ready: VecDeque<Result<Event, TooLarge>>,
}

impl Decoder {
    /// A decoder for events of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            event: Event::default(),
            data: None,
            skipping: false,
            after_cr: false,
            at_start: true,
            ready: VecDeque::new(),
        }
    }

    /// Takes the next chunk. Take the events out before the next one: they are held until then.
    pub fn feed(&mut self, mut chunk: &[u8]) {
        while let [first, rest @ ..] = chunk {
            if std::mem::take(&mut self.after_cr) && *first == b'\n' {
                chunk = rest;
                continue;
            }
            let Some(end) = chunk.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                return self.extend_line(chunk);
            };
            let (piece, ended) = chunk.split_at(end);
            self.extend_line(piece);
            self.after_cr = ended.first() == Some(&b'\r');
            self.end_line();
            chunk = ended.get(1..).unwrap_or_default();
        }
    }

    /// The next whole event, in the order of the stream. An event that the stream's end cuts off never comes.
    pub fn next_event(&mut self) -> Option<Result<Event, TooLarge>> {
        self.ready.pop_front()
    }

    /// Bytes held: of the event that is being read, and of those that are not yet taken.
    pub fn held(&self) -> usize {
        let ready = self.ready.iter().map(|event| match event {
            Ok(event) => event.data.len() + size_of(event),
            Err(skipped) => length(skipped.id.as_ref()),
        });
        self.size() + ready.sum::<usize>()
    }

    fn extend_line(&mut self, piece: &[u8]) {
        if piece.is_empty() {
            return;
        }
        if self.skipping || self.size() + piece.len() > self.limit {
            // All that matters of a skipped line is that it is not empty, as an empty one ends the event.
            self.skipping = true;
            self.event = Event { id: self.event.id.take(), ..Event::default() };
            self.data = None;
            self.line.clear();
            self.line.push(b'.');
        } else {
            self.line.extend_from_slice(piece);
        }
    }

    /// Bytes held of the event that is being read.
    fn size(&self) -> usize {
        self.line.len() + length(self.data.as_ref()) + size_of(&self.event)
    }

    fn end_line(&mut self) {
        let mut line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.at_start) && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        if line.is_empty() {
            self.end_event();
        } else if !self.skipping {
            self.field(&mut line);
        }
        // The buffer is used again, unless a large line has made it large.
        self.line = line;
        self.line.clear();
        self.line.shrink_to(8 * 1024);
    }

    fn end_event(&mut self) {
        let data = self.data.take().unwrap_or_default();
        let event = Event { data, ..std::mem::take(&mut self.event) };
        if std::mem::take(&mut self.skipping) {
            self.ready.push_back(Err(TooLarge { limit: self.limit, id: event.id }));
        } else if !event.data.is_empty() || event.id.is_some() || event.retry_millis.is_some() {
            self.ready.push_back(Ok(event));
        }
    }

    /// Takes one field; of `line` there may be nothing left.
    fn field(&mut self, line: &mut Vec<u8>) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        if name == b"data" {
            let before = line.len() - value.len();
            return self.data(line, before);
        }
        // An id that cannot be kept is as an empty one: to go on after the one before would bring events twice.
        let is_kept =
            value.len() <= MAX_FIELD && !value.iter().any(|byte| byte.is_ascii_control() && *byte != 0);
        let value = if is_kept { value } else { b"" };
        let value = String::from_utf8_lossy(value);
        match name {
            b"event" => self.event.event = Some(value.into_owned()),
            b"id" if !value.contains('\0') => self.event.id = Some(value.into_owned()),
            b"retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.event.retry_millis = value.parse().ok();
            }
            // Comments have an empty name; other names are to be ignored.
            _ => {}
        }
    }

    /// Takes the data that begin in `line` at `before`. The buffer of the first line becomes the event's, as a large message, which
    /// mostly is one line, should be there but once.
    fn data(&mut self, line: &mut Vec<u8>, before: usize) {
        if let Some(data) = &mut self.data {
            data.push('\n');
            data.push_str(&String::from_utf8_lossy(line.get(before..).unwrap_or_default()));
        } else {
            line.drain(..before);
            let text = String::from_utf8(std::mem::take(line));
            let lossy = |error: FromUtf8Error| String::from_utf8_lossy(error.as_bytes()).into_owned();
            self.data = Some(text.unwrap_or_else(lossy));
        }
    }
}

/// Bytes of an event but for its data.
fn size_of(event: &Event) -> usize {
    length(event.event.as_ref()) + length(event.id.as_ref())
}

fn length(field: Option<&String>) -> usize {
    field.map_or(0, String::len)
}
