//! HTTP answers of the data path.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use berth_mcp::error::{self, ErrorBody};
use berth_mcp::header;
use bytes::Bytes;
use futures::StreamExt;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use std::convert::Infallible;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// What a request is answered with.
pub(super) enum Answer {
    /// One message.
    Json(Bytes),
    /// A stream of events; ends with the last message.
    Stream(mpsc::Receiver<Bytes>),
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        match self {
            Self::Json(text) => json(StatusCode::OK, text),
            Self::Stream(events) => {
                let events = ReceiverStream::new(events).map(Ok::<_, Infallible>);
                let mut response = Body::from_stream(events).into_response();
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(header::EVENT_STREAM));
                response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
                response
            }
        }
    }
}

/// One message with a status.
pub(super) fn json(status: StatusCode, text: impl IntoResponse) -> Response {
    (status, [(CONTENT_TYPE, header::JSON)], text).into_response()
}

/// An error that concerns the HTTP exchange, not one request in it.
pub(super) fn refuse(status: StatusCode, code: i32, message: &str, id: Option<&str>) -> Response {
    json(status, ErrorBody::new(code, message).render(id))
}

/// The sidecar does not hold the session, or takes no new work for it; nothing was accepted.
pub(super) fn not_held() -> Response {
    let text = "the sidecar does not hold this session";
    refuse(StatusCode::MISDIRECTED_REQUEST, error::SESSION_UNKNOWN, text, None)
}

/// A request came without a session id. Dual-era clients, which try `server/discover` first, read this as "legacy".
pub(super) fn not_initialized(id: Option<&str>) -> Response {
    refuse(
        StatusCode::BAD_REQUEST,
        error::NOT_INITIALIZED,
        "Server not initialized: send initialize first",
        id,
    )
}

/// The client's session id is not known here; it has to begin anew.
pub(super) fn scope_unknown(id: Option<&str>) -> Response {
    let text = "Session not found: send initialize again without an Mcp-Session-Id";
    refuse(StatusCode::NOT_FOUND, error::SESSION_UNKNOWN, text, id)
}
