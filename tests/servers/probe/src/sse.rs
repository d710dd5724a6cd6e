//! Server-sent events, written by hand.

use std::{convert::Infallible, time::Duration};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, header};
use tokio::{sync::mpsc, time};
use tokio_util::sync::CancellationToken;

/// One event that carries one JSON-RPC message; `message` holds no line break.
pub fn event(message: &str) -> String {
    format!("event: message\ndata: {message}\n\n")
}

/// An answer that sends each message of `messages` as an event, and comments while there is none.
/// It ends when the senders are gone or one of `ends` is cancelled; messages already there go out first.
pub fn response(
    messages: mpsc::Receiver<String>,
    ends: [CancellationToken; 2],
    keep_alive: Duration,
) -> Response<Body> {
    let body = stream::unfold((messages, ends, true), move |(mut messages, ends, first)| async move {
        let text =
            if first { Some(": open\n\n".to_owned()) } else { next(&mut messages, &ends, keep_alive).await };
        text.map(|text| (Ok::<_, Infallible>(Bytes::from(text)), (messages, ends, false)))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

async fn next(
    messages: &mut mpsc::Receiver<String>,
    [one, other]: &[CancellationToken; 2],
    keep_alive: Duration,
) -> Option<String> {
    tokio::select! {
        biased;
        message = messages.recv() => message.map(|message| event(&message)),
        () = one.cancelled() => None,
        () = other.cancelled() => None,
        () = time::sleep(keep_alive) => Some(": keep-alive\n\n".to_owned()),
    }
}
