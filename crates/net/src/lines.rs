//! JSON lines of an answer's body, bounded in length and in the time between them.

use bytes::{Buf, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;
use std::time::Duration;

/// A peer that watches are read from says something at least every ten seconds; one that is silent for longer than this is
/// asked anew.
pub const SILENCE: Duration = Duration::from_secs(25);
/// Longest line that is read.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Why there is no next line.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// Nothing came for [`SILENCE`].
    #[error("the peer said nothing for too long")]
    Silent,
    /// The body is over.
    #[error("the stream ended")]
    Ended,
    /// The body broke off.
    #[error("the stream broke off: {0}")]
    Broken(#[from] hyper::Error),
    /// A line has no end.
    #[error("a line is longer than {MAX_LINE_BYTES} bytes")]
    Long,
    /// A line is something else.
    #[error("a line cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
}

/// The lines of a body, each a `T`.
pub struct Lines<T> {
    body: Incoming,
    buffer: BytesMut,
    line: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Lines<T> {
    /// The lines of `body`.
    pub fn new(body: Incoming) -> Self {
        Self { body, buffer: BytesMut::new(), line: PhantomData }
    }

    /// The next line. Nothing is lost when this is dropped before it is done.
    pub async fn next(&mut self) -> Result<T, LineError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end);
                self.buffer.advance(1);
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return Ok(serde_json::from_slice(&line)?);
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                return Err(LineError::Long);
            }
            let frame = tokio::time::timeout(SILENCE, self.body.frame());
            let frame = frame.await.map_err(|_| LineError::Silent)?.ok_or(LineError::Ended)??;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}
