//! Sends a call to the sidecar that holds the session.
//!
//! A call that no sidecar accepted (421, or no connection) is sent again; one that may have been accepted never is. After a
//! 421 the leading operator is asked to look at the session, beside the wait for another place.

use crate::gateway::Gateway;
use crate::header;
use crate::place::{self, Ask};
use crate::respond::Refusal;
use crate::route::Destination;
use axum::body::Body;
use axum::response::Response;
use berth_mcp::header::accepts_stream;
use berth_net::client::Target;
use berth_wire::NOT_ACCEPTED_HEADER;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header::ACCEPT};
use std::net::SocketAddr;
use tokio::time::timeout;

/// What is sent on.
pub struct Call {
    /// Method of the request.
    pub method: Method,
    /// The headers that pass.
    pub headers: HeaderMap,
    /// The whole body, so that it can be sent again.
    pub body: Bytes,
}

/// What became of sending a call once.
enum Attempt {
    /// The sidecar answered, whatever it says.
    Answered(Response),
    /// Nobody accepted it: the sidecar does not hold the session.
    NotHeld,
    /// Nobody accepted it: nothing was sent.
    NotSent,
    /// It may have been accepted.
    Unknown,
}

/// Sends `call` to where `ask` is placed and gives back the head of the answer with its body still to come.
///
/// # Errors
/// Those of [`place::place`], of which [`Refusal::SidecarUnavailable`] also where the place does not take it, and
/// [`Refusal::OutcomeUnknown`].
pub async fn forward(gateway: &Gateway, ask: &Ask<'_>, call: &Call) -> Result<Response, Refusal> {
    let (mut refused, mut woken) = (None, false);
    loop {
        let destination = place::place(gateway, ask, refused.as_ref()).await?;
        let attempted = tokio::select! {
            attempted = attempt(gateway, &destination, call) => attempted,
            () = gateway.ending.of(ask.kind).cancelled() => Attempt::Unknown,
        };
        match attempted {
            Attempt::Answered(response) => return Ok(response),
            Attempt::Unknown => return Err(Refusal::OutcomeUnknown),
            Attempt::NotHeld if !std::mem::replace(&mut woken, true) => {
                gateway.waker.wake(&destination.session_uid);
            }
            Attempt::NotHeld | Attempt::NotSent => {}
        }
        if ask.since.elapsed() >= gateway.settings.placement_wait {
            return Err(Refusal::SidecarUnavailable);
        }
        refused = Some(destination);
    }
}

async fn attempt(gateway: &Gateway, to: &Destination, call: &Call) -> Attempt {
    let address = SocketAddr::new(to.placement.address, gateway.settings.sidecar_port);
    let target = Target::sidecar(address, &to.placement.server_uid);
    let mut request = Request::new(Body::from(call.body.clone()));
    match format!("/{}/{}", berth_wire::DATA_PREFIX, to.session_uid).parse() {
        Ok(uri) => *request.uri_mut() = uri,
        Err(error) => {
            tracing::error!(session = %to.session_uid, %error, "session UID cannot stand in a path");
            return Attempt::NotSent;
        }
    }
    *request.method_mut() = call.method.clone();
    *request.headers_mut() = call.headers.clone();
    let asked = gateway.sidecars.request(&target, request);
    let answered = if accepts_stream(call.headers.get_all(ACCEPT).iter().map(HeaderValue::as_bytes)) {
        timeout(gateway.settings.head_wait, asked).await
    } else {
        // Nobody can say how long the sidecar may work on the whole answer.
        Ok(asked.await)
    };
    let Ok(answered) = answered else {
        tracing::warn!(session = %to.session_uid, pod = %to.placement.pod_uid, "the sidecar began no answer in time");
        return Attempt::Unknown;
    };
    match answered {
        Ok(answer) if answer.status() == StatusCode::MISDIRECTED_REQUEST => {
            tracing::info!(session = %to.session_uid, pod = %to.placement.pod_uid, "the sidecar does not hold the session");
            Attempt::NotHeld
        }
        Ok(answer) if answer.headers().contains_key(NOT_ACCEPTED_HEADER) => {
            tracing::warn!(session = %to.session_uid, pod = %to.placement.pod_uid, "the sidecar takes no more connections");
            Attempt::NotSent
        }
        Ok(answer) => {
            let mut response = Response::new(());
            *response.status_mut() = answer.status();
            *response.headers_mut() = header::for_client(answer.headers());
            Attempt::Answered(response.map(|()| Body::new(answer.into_body())))
        }
        Err(error) => {
            tracing::warn!(session = %to.session_uid, pod = %to.placement.pod_uid, %error, "the sidecar gave no answer");
            if error.is_before_send() { Attempt::NotSent } else { Attempt::Unknown }
        }
    }
}
