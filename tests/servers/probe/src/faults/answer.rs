//! Faults that spoil an answer: its head, its pace, and where it breaks off.

use std::{future::pending, io, time::Duration};

use axum::{
    body::{Body, BodyDataStream},
    response::Response,
};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderName, HeaderValue, header};
use http_body_util::BodyExt as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{sync::mpsc, time};

use crate::sse;

/// Before a connection is broken, what was written is to leave.
const SETTLE: Duration = Duration::from_millis(20);

/// How an answer is spoilt. Its parts add up.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AnswerFault {
    /// Plain JSON becomes a stream of one event.
    pub sse: bool,
    /// These messages come first, as events; implies `sse`.
    pub before: Vec<Value>,
    /// So many comment lines come first; implies `sse`.
    pub comments: u64,
    /// A `retry:` line comes first; implies `sse`.
    pub retry_ms: Option<u64>,
    /// Events get ids, counted from 1; implies `sse`.
    pub ids: bool,
    /// The head comes, the body never does.
    pub stall: bool,
    /// A pause after each byte.
    pub drip_ms: Option<u64>,
    /// The connection breaks after so many events.
    pub break_after_events: Option<u64>,
    /// The answer ends, as if all were well, after so many events.
    pub end_after_events: Option<u64>,
    /// The connection breaks so long after the head.
    pub break_after_ms: Option<u64>,
    /// The answer ends so long after the head.
    pub end_after_ms: Option<u64>,
    /// More headers.
    pub fill_headers: Option<Fill>,
}

/// Headers that are only there to be large.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fill {
    /// How many.
    pub count: u16,
    /// Bytes of each one's value.
    pub bytes: usize,
}

/// A piece of the body, or the break of the connection.
type Piece = Result<Bytes, io::Error>;

impl AnswerFault {
    /// The answer that goes out instead.
    pub async fn spoil(&self, response: Response) -> Response {
        let response = if self.is_stream() { into_stream(response).await } else { response };
        let (mut parts, body) = response.into_parts();
        let fill = self.fill_headers.unwrap_or_default();
        let value = HeaderValue::from_str(&"x".repeat(fill.bytes)).unwrap_or(HeaderValue::from_static("x"));
        for number in 0..fill.count {
            let name = HeaderName::from_bytes(format!("x-probe-fill-{number}").as_bytes());
            parts.headers.extend(name.ok().map(|name| (name, value.clone())));
        }
        // A body that is cut must not be betrayed by its length.
        parts.headers.remove(header::CONTENT_LENGTH);
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(run(self.clone(), body.into_data_stream(), sender));
        let pieces = stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|piece| (piece, receiver))
        });
        Response::from_parts(parts, Body::from_stream(pieces))
    }

    fn is_stream(&self) -> bool {
        self.sse || self.ids || !self.before.is_empty() || self.comments > 0 || self.retry_ms.is_some()
    }

    /// How long until the answer is cut, and whether it breaks there.
    fn cut(&self) -> Option<(Duration, bool)> {
        let breaks = self.break_after_ms.map(|ms| (ms, true));
        let cut = breaks.or(self.end_after_ms.map(|ms| (ms, false)));
        cut.map(|(ms, breaks)| (Duration::from_millis(ms), breaks))
    }

    /// An error if the connection is to break.
    async fn send(&self, mut body: BodyDataStream, sender: &mpsc::Sender<Piece>) -> Result<(), ()> {
        if self.stall {
            return pending().await;
        }
        if let Some(first) = self.preface() {
            self.write(first, sender).await;
        }
        let mut events = 0;
        for message in &self.before {
            if self.ends(events)? {
                return Ok(());
            }
            events += 1;
            self.write(self.numbered(sse::event(&message.to_string()).into(), events), sender).await;
        }
        loop {
            if self.ends(events)? {
                return Ok(());
            }
            let Some(piece) = body.next().await else { return Ok(()) };
            let piece = piece.map_err(drop)?;
            events += u64::from(is_event(&piece));
            self.write(self.numbered(piece, events), sender).await;
        }
    }

    /// What comes before all events.
    fn preface(&self) -> Option<Bytes> {
        let retry = self.retry_ms.map(|ms| format!("retry: {ms}\n\n")).unwrap_or_default();
        let comments = usize::try_from(self.comments).unwrap_or(usize::MAX);
        let text = retry + &": probe\n".repeat(comments);
        (!text.is_empty()).then(|| Bytes::from(text))
    }

    /// Whether the answer ends after so many events; an error if the connection breaks there.
    fn ends(&self, events: u64) -> Result<bool, ()> {
        if self.break_after_events.is_some_and(|limit| events >= limit) {
            return Err(());
        }
        Ok(self.end_after_events.is_some_and(|limit| events >= limit))
    }

    fn numbered(&self, piece: Bytes, number: u64) -> Bytes {
        if !self.ids || !is_event(&piece) {
            return piece;
        }
        [format!("id: {number}\n").as_bytes(), &piece].concat().into()
    }

    /// Nobody reading is noticed elsewhere.
    async fn write(&self, piece: Bytes, sender: &mpsc::Sender<Piece>) {
        let Some(pause) = self.drip_ms.map(Duration::from_millis) else {
            let _ = sender.send(Ok(piece)).await;
            return;
        };
        for at in 0..piece.len() {
            let _ = sender.send(Ok(piece.slice(at..=at))).await;
            time::sleep(pause).await;
        }
    }
}

/// Sends the body until it ends, is cut, or nobody reads it any more.
async fn run(fault: AnswerFault, body: BodyDataStream, sender: mpsc::Sender<Piece>) {
    let cut = fault.cut();
    tokio::select! {
        () = sender.closed() => {}
        breaks = wait(cut) => if breaks { break_off(&sender).await },
        sent = fault.send(body, &sender) => if sent.is_err() { break_off(&sender).await },
    }
}

/// Waits for the moment of the cut; true if it is a break.
async fn wait(cut: Option<(Duration, bool)>) -> bool {
    let Some((moment, breaks)) = cut else { return pending().await };
    time::sleep(moment).await;
    breaks
}

async fn break_off(sender: &mpsc::Sender<Piece>) {
    time::sleep(SETTLE).await;
    let _ = sender.send(Err(io::Error::other("broken on purpose"))).await;
}

/// Events come from [`sse`] in one piece each.
fn is_event(piece: &[u8]) -> bool {
    piece.starts_with(b"event:") || piece.starts_with(b"data:")
}

/// Plain JSON as a stream of one event; anything else stays as it is.
async fn into_stream(response: Response) -> Response {
    let json = HeaderValue::from_static("application/json");
    if response.headers().get(header::CONTENT_TYPE) != Some(&json) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    // Line breaks in JSON are only between tokens, and would end the event.
    let text = String::from_utf8_lossy(&body).replace(['\r', '\n'], " ");
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Response::from_parts(parts, Body::from(sse::event(&text)))
}
