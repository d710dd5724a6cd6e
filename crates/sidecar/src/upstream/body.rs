//! The body of an upstream's answer; when read to its end, its socket goes back to the transport.

use super::transport::{SendError, Sender, Transport};
use crate::budget::NoRoom;
use berth_net::error::chain;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use std::sync::Arc;
use std::time::Duration;

/// An answer's body.
pub struct Body {
    incoming: Incoming,
    /// Taken when the end is reached. A body that is dropped before closes its socket.
    lease: Option<(Sender, Arc<Transport>)>,
    keep_alive: Option<Duration>,
}

/// Why a body was not read whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The connection failed.
    #[error(transparent)]
    Lost(#[from] SendError),
    /// It is larger than the limit.
    #[error("the upstream's answer is larger than {0} bytes")]
    TooLarge(usize),
    /// There is no memory for it now.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// It is not text.
    #[error("the upstream's answer is not UTF-8")]
    NotText,
}

impl Body {
    pub(super) fn wrap(
        response: Response<Incoming>,
        sender: Sender,
        transport: Arc<Transport>,
    ) -> Response<Self> {
        let keep_alive = keep_alive_hint(response.headers());
        response.map(|incoming| Self { incoming, lease: Some((sender, transport)), keep_alive })
    }

    /// The next piece; none at the end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, SendError> {
        loop {
            match self.incoming.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => return Err(SendError::Lost(chain(&error))),
                None => {
                    if let Some((sender, transport)) = self.lease.take() {
                        transport.keep(sender, self.keep_alive);
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// The whole text, if it is not larger than `limit` bytes.
    pub async fn text(&mut self, limit: usize) -> Result<String, BodyError> {
        self.text_covered(limit, |_| Ok(())).await
    }

    /// The same, where `cover` is asked before so many bytes are held.
    pub(crate) async fn text_covered(
        &mut self,
        limit: usize,
        mut cover: impl FnMut(usize) -> Result<(), NoRoom>,
    ) -> Result<String, BodyError> {
        // A buffer that grows leaves behind as much memory as it has in the end. One as large as is announced takes no memory before
        // bytes come, and only these are covered: who announces much and sends nothing keeps no memory from others.
        let announced = usize::try_from(self.incoming.size_hint().lower()).unwrap_or(usize::MAX);
        if announced > limit {
            return Err(BodyError::TooLarge(limit));
        }
        let mut whole = BytesMut::with_capacity(announced);
        while let Some(chunk) = self.chunk().await? {
            if whole.len() + chunk.len() > limit {
                return Err(BodyError::TooLarge(limit));
            }
            cover(whole.len() + chunk.len())?;
            whole.extend_from_slice(&chunk);
        }
        String::from_utf8(whole.into()).map_err(|_| BodyError::NotText)
    }

    /// Reads what is left, at most `limit` bytes, so that the socket can be used again.
    pub async fn finish(&mut self, limit: usize) {
        let mut read = 0;
        while let Ok(Some(chunk)) = self.chunk().await {
            read += chunk.len();
            if read > limit {
                return;
            }
        }
    }
}

/// `Keep-Alive: timeout=5` in seconds, as Node's servers send it.
fn keep_alive_hint(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("keep-alive")?.to_str().ok()?;
    let seconds = value.split(',').find_map(|part| part.trim().strip_prefix("timeout="))?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn the_keep_alive_hint_is_read() {
        let hint = |value: &'static str| {
            keep_alive_hint(&HeaderMap::from_iter([(
                http::header::HeaderName::from_static("keep-alive"),
                HeaderValue::from_static(value),
            )]))
        };
        assert_eq!(hint("timeout=5"), Some(Duration::from_secs(5)));
        assert_eq!(hint("max=100, timeout=72"), Some(Duration::from_secs(72)));
        assert_eq!(hint("max=100"), None);
        assert_eq!(hint("timeout=soon"), None);
    }
}
