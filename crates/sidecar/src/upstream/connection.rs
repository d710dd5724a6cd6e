//! An open MCP session of the legacy era at an upstream.

use super::body::Body;
use super::dial::DialError;
use super::target::Target;
use super::transport::{SendError, Transport};
use super::{REFUSAL_LIMIT, redirect, session_loss};
use crate::fault;
use berth_mcp::header;
use berth_wire::Outcome;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

const SESSION_ID: HeaderName = HeaderName::from_static(header::MCP_SESSION_ID);
const LAST_EVENT_ID: HeaderName = HeaderName::from_static(header::LAST_EVENT_ID);
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static(header::MCP_PROTOCOL_VERSION);

/// The state that the first connection of a session begins; see [`Connection::state`].
pub(crate) const FIRST_STATE: u64 = 1;

/// Most headers of a request that are the sidecar's own, the one for its length among them.
const OWN_HEADERS: usize = 7;

/// One established upstream session with its sockets.
pub struct Connection {
    /// Number of the attempt that made it; names it within its `AgentSession`.
    pub epoch: u64,
    /// Which state of the upstream's it began: grows when one is lost with its session.
    pub state: u64,
    /// Raw JSON of the result of `initialize`.
    pub initialize_result: Box<str>,
    /// The calls that use it.
    pub users: TaskTracker,
    transport: Arc<Transport>,
    names: SessionNames,
    /// The upstream said that it does not know the session any more.
    gone: AtomicBool,
}

/// The headers that name an upstream session.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionNames {
    /// The upstream's session id, if it gave one.
    pub id: Option<HeaderValue>,
    /// The negotiated revision, once known.
    pub version: Option<HeaderValue>,
}

impl Connection {
    pub(super) fn new(
        (epoch, state): (u64, u64),
        initialize_result: Box<str>,
        transport: Arc<Transport>,
        names: SessionNames,
    ) -> Self {
        Self {
            epoch,
            state,
            initialize_result,
            users: TaskTracker::new(),
            transport,
            names,
            gone: AtomicBool::new(false),
        }
    }

    /// One over `transport` for which nothing was sent.
    #[cfg(test)]
    pub(crate) fn unused(transport: Arc<Transport>) -> Self {
        Self::new((1, 1), "{}".into(), transport, SessionNames::default())
    }

    /// Whether the upstream gave a session id.
    pub fn has_session_id(&self) -> bool {
        self.names.id.is_some()
    }

    /// Whether it took the place of one that was lost with its upstream session.
    pub fn began_anew(&self) -> bool {
        self.state > FIRST_STATE
    }

    /// Sends one message, with what the session's requests carry at that moment.
    pub async fn post(&self, message: Bytes) -> Result<Response<Body>, SendError> {
        post(&self.transport, &self.names, message).await
    }

    /// Asks for the upstream's own stream, or for the rest of one whose last event was `last`. Gives whatever it answers.
    pub async fn listen(&self, last: Option<&str>) -> Result<Response<Body>, SendError> {
        let make = || {
            let headers = self.transport.credential().headers().map_err(SendError::Withheld)?;
            let mut request =
                request(Method::GET, self.transport.target(), &headers, &self.names, Bytes::new());
            let ours = request.headers_mut();
            ours.insert(ACCEPT, HeaderValue::from_static(header::EVENT_STREAM));
            // An id that no header can carry cannot be resumed from.
            if let Some(last) = last.and_then(|last| HeaderValue::from_str(last).ok()) {
                ours.insert(LAST_EVENT_ID, last);
            }
            Ok(request)
        };
        redirect::send(&self.transport, &Method::GET, make).await
    }

    /// Whether a request that failed by `error` leaves nothing to go on with. One more socket that could not be opened says nothing
    /// of those that are open, nor does an answer, be it a redirect or too large; when none is open any more, the next request has to
    /// make a connection, by the gate.
    pub fn is_lost_by(&self, error: &SendError) -> bool {
        match error {
            SendError::Lost(_) => true,
            SendError::NotSent(DialError::Redirected(_))
            | SendError::HeadTooLarge
            | SendError::Withheld(_) => false,
            SendError::NotSent(_) => !self.transport.has_sockets(),
        }
    }

    /// Notes that the upstream does not know the session any more.
    pub fn mark_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Whether the upstream said that it does not know the session any more.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Ends the upstream session, by `deadline` at the latest.
    pub async fn delete(&self, deadline: Instant) -> Outcome {
        if self.is_gone() {
            return Outcome::NotNeeded;
        }
        delete(&self.transport, &self.names, deadline).await
    }

    /// Closes the sockets and returns when they are closed.
    pub async fn close(&self) {
        self.transport.close().await;
    }
}

/// POSTs one message to the upstream.
pub(crate) async fn post(
    transport: &Arc<Transport>,
    names: &SessionNames,
    message: Bytes,
) -> Result<Response<Body>, SendError> {
    let make = || {
        fault::point("headers");
        let headers = transport.credential().headers().map_err(SendError::Withheld)?;
        let mut request = request(Method::POST, transport.target(), &headers, names, message.clone());
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(header::JSON));
        Ok(request)
    };
    redirect::send(transport, &Method::POST, make).await
}

/// DELETEs the upstream session. A server that knows no DELETE, or no such session, has nothing left to end. Without its
/// credential it is tried all the same: the upstream may know the session by its id alone.
pub(crate) async fn delete(transport: &Arc<Transport>, names: &SessionNames, deadline: Instant) -> Outcome {
    if names.id.is_none() {
        return Outcome::NotNeeded;
    }
    let make = || {
        let headers = transport.credential().headers().unwrap_or_default();
        Ok(request(Method::DELETE, transport.target(), &headers, names, Bytes::new()))
    };
    let confirmed = async {
        let response = redirect::send(transport, &Method::DELETE, make).await.ok()?;
        let (status, mut body) = (response.status(), response.into_body());
        if status.is_success() || status == StatusCode::METHOD_NOT_ALLOWED {
            return Some(());
        }
        let text = body.text(REFUSAL_LIMIT).await.unwrap_or_default();
        session_loss(status, &text).map(drop)
    };
    match tokio::time::timeout_at(deadline, confirmed).await {
        Ok(Some(())) => Outcome::Confirmed,
        Ok(None) | Err(_) => Outcome::Unconfirmed,
    }
}

fn request(
    method: Method,
    target: &Target,
    headers: &HeaderMap,
    names: &SessionNames,
    body: Bytes,
) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = target.path.clone().into();
    let ours = request.headers_mut();
    ours.reserve(headers.len() + OWN_HEADERS);
    ours.extend(headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    ours.insert(HOST, target.authority.clone());
    ours.insert(ACCEPT, HeaderValue::from_static(header::ACCEPT_BOTH));
    for (name, value) in [(SESSION_ID, &names.id), (PROTOCOL_VERSION, &names.version)] {
        match value {
            Some(value) => ours.insert(name, value.clone()),
            None => ours.remove(name),
        };
    }
    request
}
