//! HTTP answers of the data path.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use berth_mcp::error::{self, ErrorBody};
use berth_mcp::header;
use berth_mcp::sse::{COMMENT, Event, encode};
use bytes::Bytes;
use futures::stream::{self as streams, BoxStream};
use futures::{Stream, StreamExt};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, StatusCode};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;

/// How long an answer may be silent: load balancers and clients cut silent ones, some after a minute.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Asks proxies not to collect events.
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
pub(super) const SESSION_ID: HeaderName = HeaderName::from_static(header::MCP_SESSION_ID);

/// What a request is answered with.
pub(super) enum Answer {
    /// One message.
    Json(Bytes),
    /// The answer to `initialize`, with the session id for the client.
    Opened(Bytes, HeaderValue),
    /// The client has to begin anew.
    Unknown(Bytes),
    /// A stream of events; ends with the last message.
    Stream(mpsc::Receiver<Bytes>),
}

impl Answer {
    fn into_events(self) -> BoxStream<'static, Bytes> {
        match self {
            Self::Json(text) | Self::Opened(text, _) | Self::Unknown(text) => {
                let data = String::from_utf8_lossy(&text).into_owned();
                let event = encode(&Event { event: Some("message".to_owned()), data, ..Event::default() });
                let event = Bytes::from_owner(Covered { event, _by: text });
                streams::iter([event]).boxed()
            }
            Self::Stream(events) => ReceiverStream::new(events).boxed(),
        }
    }
}

/// An event that holds the text that it was made of, as the charge of that covers it too.
struct Covered {
    event: Bytes,
    _by: Bytes,
}

impl AsRef<[u8]> for Covered {
    fn as_ref(&self) -> &[u8] {
        &self.event
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        match self {
            Self::Json(text) => json(StatusCode::OK, text),
            Self::Opened(text, id) => {
                let mut response = json(StatusCode::OK, text);
                response.headers_mut().insert(SESSION_ID, id);
                response
            }
            Self::Unknown(text) => json(StatusCode::NOT_FOUND, text),
            Self::Stream(events) => stream(kept_alive(ReceiverStream::new(events))),
        }
    }
}

/// The response with `answer`. If that has not begun after a while and the client takes a stream, the stream is opened then, so
/// that nobody on the way takes the silence for the end. `id` is the session id that goes with it.
pub(super) async fn respond(
    answer: impl Future<Output = Answer> + Send + 'static,
    accepts_stream: bool,
    id: Option<HeaderValue>,
) -> Response {
    let mut answer = Box::pin(answer);
    if !accepts_stream {
        return answer.await.into_response();
    }
    if let Ok(answer) = timeout(KEEPALIVE, &mut answer).await {
        return answer.into_response();
    }
    // A task, as it has to go on whether or not the client reads what comes meanwhile.
    let answer = AbortOnDropHandle::new(tokio::spawn(answer));
    let rest = streams::once(answer).filter_map(async |answer| answer.ok()).flat_map(Answer::into_events);
    let mut response = stream(kept_alive(streams::iter([Bytes::from_static(COMMENT)]).chain(rest)));
    if let Some(id) = id {
        response.headers_mut().insert(SESSION_ID, id);
    }
    response
}

/// A body of these events, with a comment whenever there was none for a while.
pub(super) fn kept_alive(events: impl Stream<Item = Bytes> + Send + 'static) -> Body {
    let events =
        streams::unfold(Box::pin(events), async |mut events| match timeout(KEEPALIVE, events.next()).await {
            Ok(event) => event.map(|event| (event, events)),
            Err(_) => Some((Bytes::from_static(COMMENT), events)),
        });
    Body::from_stream(events.map(Ok::<_, Infallible>))
}

/// A response that is a stream of events.
pub(super) fn stream(body: Body) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(header::EVENT_STREAM));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(NO_BUFFERING, HeaderValue::from_static("no"));
    response
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

/// Too many other clients of the session are busy.
pub(super) fn too_many_clients(id: Option<&str>) -> Response {
    let text = "the session serves too many clients at once; end one of them by DELETE";
    refuse(StatusCode::TOO_MANY_REQUESTS, error::LIMIT_REACHED, text, id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Budget, COPIES};
    use http_body_util::BodyExt;
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    async fn next(body: &mut Body) -> Option<String> {
        let frame = body.frame().await?;
        Some(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_gets_a_comment_at_each_interval() {
        let (sender, receiver) = mpsc::channel(1);
        let mut body = kept_alive(ReceiverStream::new(receiver));
        let began = Instant::now();
        for round in 1..4 {
            assert_eq!(next(&mut body).await.as_deref(), Some(":\n\n"));
            assert_eq!(began.elapsed(), KEEPALIVE * round);
        }
        sender.send("data: x\n\n".into()).await.unwrap();
        assert_eq!(next(&mut body).await.as_deref(), Some("data: x\n\n"));
        drop(sender);
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_late_comes_on_a_stream_if_the_client_takes_one() {
        let late = async |accepts| {
            let (sender, receiver) = oneshot::channel();
            let id = HeaderValue::from_static("id");
            let answer = async move { Answer::Opened(receiver.await.unwrap(), id) };
            let responding = tokio::spawn(respond(answer, accepts, Some(HeaderValue::from_static("id"))));
            tokio::time::sleep(KEEPALIVE * 2 + Duration::from_secs(1)).await;
            sender.send(Bytes::from_static(b"{\"a\":\n1}")).unwrap();
            responding.await.unwrap()
        };
        let (response, plain) = (late(true).await, late(false).await);
        assert_eq!(response.headers()[SESSION_ID], "id");
        assert_eq!(plain.headers()[SESSION_ID], "id");
        assert_eq!(response.headers()[CONTENT_TYPE], header::EVENT_STREAM);
        assert_eq!(plain.headers()[CONTENT_TYPE], header::JSON);
        let mut body = response.into_body();
        assert_eq!(next(&mut body).await.as_deref(), Some(":\n\n"));
        let message = "event: message\ndata: {\"a\":\ndata: 1}\n\n";
        assert_eq!(next(&mut body).await.as_deref(), Some(message));
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test]
    async fn an_answer_that_becomes_an_event_is_covered_until_its_last_byte_is_gone() {
        let budget = Budget::mebibytes(1);
        let text = "x".repeat(100 * 1024);
        let mut charge = budget.charge();
        charge.cover(COPIES * text.len()).unwrap();
        let charged = budget.left();
        let mut events = Answer::Json(charge.attach(text)).into_events();
        let mut event = events.next().await.unwrap();
        drop(events);
        let last = event.split_off(event.len() - 1);
        drop(event);
        assert_eq!((&last[..], budget.left()), (&b"\n"[..], charged));
        drop(last);
        assert_eq!(budget.left(), budget.whole());
    }
}
