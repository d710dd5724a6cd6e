//! Bodies: a request's is read whole within its limit, an answer's flows through as it comes.

use crate::gateway::{Gateway, Settings};
use crate::metrics::{Held, Kind, Running};
use crate::respond::Refusal;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio_util::sync::WaitForCancellationFutureOwned;

/// Reads a request's body.
///
/// # Errors
/// [`Refusal::BodyTooLarge`] as soon as that is known, [`Refusal::BodyIncomplete`].
pub async fn read(body: Body, settings: &Settings) -> Result<Bytes, Refusal> {
    let limit = settings.body_max;
    if body.size_hint().lower() > limit as u64 {
        return Err(Refusal::BodyTooLarge { limit });
    }
    match tokio::time::timeout(settings.body_wait, Limited::new(body, limit).collect()).await {
        Ok(Ok(read)) => Ok(read.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::BodyTooLarge { limit }),
        Ok(Err(_)) | Err(_) => Err(Refusal::BodyIncomplete),
    }
}

/// Lets the body of `response` flow to the client; what is held for the call is let go when the body ends or the client
/// is gone.
pub fn relay(response: Response, kind: Kind, running: Running, gateway: &Gateway) -> Response {
    let is_stream = response
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("text/event-stream"));
    let stream = is_stream.then(|| gateway.metrics.stream());
    // A stream that only listens loses nothing by its end: the client opens another at another replica. A call's answer
    // goes on as long as it may, and is then broken off so that nobody takes it for whole.
    let (ending, last) = match kind {
        Kind::Get => (&gateway.ending.begun, Last::End),
        _ => (&gateway.ending.over, Last::Break),
    };
    let ending = Box::pin(ending.clone().cancelled_owned());
    response.map(|body| Body::new(Relayed { body, ending, last, _running: running, _stream: stream }))
}

/// How a body ends when the process does.
#[derive(Clone, Copy)]
enum Last {
    End,
    Break,
}

/// An answer's body on its way. Nothing is held back: a frame is asked for when the client can take it, and dropping
/// this drops the request to the sidecar.
struct Relayed {
    body: Body,
    ending: Pin<Box<WaitForCancellationFutureOwned>>,
    last: Last,
    _running: Running,
    _stream: Option<Held>,
}

impl http_body::Body for Relayed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.ending.as_mut().poll(cx).is_ready() {
            return Poll::Ready(match self.last {
                Last::End => None,
                Last::Break => Some(Err(axum::Error::new(std::io::Error::other("the gateway ends")))),
            });
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
