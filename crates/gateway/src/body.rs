//! Bodies: a request's is read whole within its limit, an answer's flows through as it comes.

use crate::budget::Share;
use crate::gateway::{Gateway, Settings};
use crate::metrics::{Kind, Running};
use crate::respond::Refusal;
use axum::body::Body;
use axum::response::Response;
use berth_mcp::header::is_event_stream;
use berth_net::metrics::Held;
use bytes::Bytes;
use http::header;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Reads a request's body; it counts towards the process's budget until it is dropped.
///
/// # Errors
/// [`Refusal::BodyTooLarge`] as soon as that is known, [`Refusal::BodyIncomplete`], [`Refusal::BodyMalformed`],
/// [`Refusal::Busy`].
pub async fn read(body: Body, gateway: &Gateway) -> Result<Bytes, Refusal> {
    let Settings { body_max: limit, body_wait, .. } = gateway.settings;
    if body.size_hint().lower() > limit as u64 {
        return Err(Refusal::BodyTooLarge { limit });
    }
    let share = gateway.budget.share();
    tokio::time::timeout(body_wait, collect(body, limit, share)).await.unwrap_or(Err(Refusal::BodyIncomplete))
}

/// Copies frames together: they may be small slices of large buffers, which would be held with them.
async fn collect(mut body: Body, limit: usize, share: Share) -> Result<Bytes, Refusal> {
    let mut read = Whole { bytes: Vec::new(), share };
    while let Some(frame) = body.frame().await {
        // What is no data is a trailer, which nobody reads.
        let Ok(data) = frame.map_err(|error| unread(&error))?.into_data() else { continue };
        if data.len() > limit.saturating_sub(read.bytes.len()) {
            return Err(Refusal::BodyTooLarge { limit });
        }
        read.share.grow(data.len()).await?;
        read.bytes.extend_from_slice(&data);
    }
    Ok(Bytes::from_owner(read))
}

/// Why a body could not be read on.
fn unread(error: &(dyn Error + 'static)) -> Refusal {
    match (error.downcast_ref().map(io::Error::kind), error.source()) {
        // So hyper tells of chunks that are none.
        (Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData), _) => Refusal::BodyMalformed,
        (_, Some(source)) => unread(source),
        (_, None) => Refusal::BodyIncomplete,
    }
}

/// A body with its share of the budget: the share is given back with the last clone of the bytes.
struct Whole {
    bytes: Vec<u8>,
    share: Share,
}

impl AsRef<[u8]> for Whole {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What is held for a call until its answer is over.
pub struct Call {
    /// It counts as in flight.
    pub running: Running,
    /// Its place among those that may run at once.
    pub place: OwnedSemaphorePermit,
}

/// Lets the body of `response` flow to the client; what is held for the call is let go when the body ends or the client
/// is gone.
pub fn relay(response: Response, kind: Kind, call: Call, gateway: &Gateway) -> Response {
    let is_stream = is_event_stream(response.headers().get(header::CONTENT_TYPE));
    let stream = is_stream.then(|| gateway.metrics.stream());
    // A call's answer goes on as long as it may, and is then broken off so that nobody takes it for whole.
    let last = if kind == Kind::Get { Last::End } else { Last::Break };
    let ending = gateway.ending.of(kind).clone();
    response.map(|body| Body::new(Relayed { body, ending, ended: None, last, _call: call, _stream: stream }))
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
    ending: CancellationToken,
    /// Waits for it, from the first time on that the body has to be waited for.
    ended: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    last: Last,
    _call: Call,
    _stream: Option<Held>,
}

impl http_body::Body for Relayed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if !this.ending.is_cancelled() {
            if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
                return Poll::Ready(frame);
            }
            let ended = this.ended.get_or_insert_with(|| Box::pin(this.ending.clone().cancelled_owned()));
            if ended.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(match this.last {
            Last::End => None,
            Last::Break => Some(Err(axum::Error::new(std::io::Error::other("the gateway ends")))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
