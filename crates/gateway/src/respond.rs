//! Every answer of the gateway's own, in one place.
//!
//! MCP clients get JSON-RPC errors. They carry the id of the call once its body has been read, so that a client which
//! goes by ids fails the call at once; before that the id is null. A session that is unknown, has ended or is somebody
//! else's gets one and the same answer, byte for byte.

use axum::response::{IntoResponse, Response};
use berth_api::Reason;
use berth_mcp::error::{self, ErrorBody};
use berth_mcp::frame::Frame;
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

/// Why a request is not relayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The path is none of ours.
    #[error("no such endpoint; send POST, GET or DELETE to /{{namespace}}/{{session}}/{{server}}/mcp")]
    Elsewhere,
    /// The method is none of MCP's.
    #[error("this method is not served; send POST, GET or DELETE")]
    Method,
    /// The page that calls may not.
    #[error("this Origin may not call; name it in gateway.allowedOrigins of the chart (--allowed-origin)")]
    ForbiddenOrigin,
    /// The host that is asked for is none of ours.
    #[error("this Host is not served; name it in gateway.allowedHosts of the chart (--allowed-host)")]
    ForbiddenHost,
    /// More than one host is asked for, and those on the way may have gone by another than we would.
    #[error("the request has more than one Host header; send one (RFC 9112, section 3.2)")]
    ManyHosts,
    /// No bearer token was sent.
    #[error("a bearer token is required")]
    NoToken,
    /// The bearer token is not valid, or not for our audience.
    #[error(
        "the bearer token is not valid for this gateway: it has to be one of this cluster, not expired, and for the gateway's audience (`kubectl create token NAME --audience berth`, unless gateway.audience is set)"
    )]
    BadToken,
    /// Whether the caller may call cannot be known now.
    #[error("the caller cannot be checked now; try again")]
    ReviewUnavailable,
    /// For this caller there is no such session.
    #[error("Session not found")]
    SessionNotFound,
    /// The session has no slot yet.
    #[error("the session is not placed yet ({reason}); try again")]
    NotPlaced {
        /// Why, as in the session's status.
        reason: Reason,
    },
    /// The session is placed, and its sidecar took no call so far.
    #[error(
        "the session's sidecar takes no call now: it cannot be reached, is full or has yet to hear of the session; try again"
    )]
    SidecarUnavailable,
    /// The session gets no slot before somebody has repaired something. Names of other objects are told by its status only,
    /// to those who may read it.
    #[error(
        "{} ({reason}): see `kubectl describe agentsession {session} -n {namespace}`, and try again once that is repaired",
        what_is_wrong(*.reason)
    )]
    Blocked {
        /// Why, as in the session's status.
        reason: Reason,
        /// Namespace of the `AgentSession`.
        namespace: Box<str>,
        /// Name of the `AgentSession`.
        session: Box<str>,
    },
    /// The gateway does not know all sessions yet.
    #[error("the gateway is starting; try again")]
    Starting,
    /// The gateway takes no more work.
    #[error("the gateway is ending; try again")]
    Ending,
    /// As many calls run as may.
    #[error("the gateway runs as many calls as --max-calls allows; try again")]
    TooManyCalls,
    /// The bodies that the process holds leave no room for this one.
    #[error("the gateway holds as many request bodies as --body-budget-mib allows; try again")]
    Busy,
    /// The head is too large.
    #[error("the request's headers are larger than {} bytes", crate::header::HEAD_MAX)]
    HeadTooLarge,
    /// The body is too large.
    #[error("the request's body is larger than {limit} bytes")]
    BodyTooLarge {
        /// Most bytes that are taken.
        limit: usize,
    },
    /// The body did not come to its end.
    #[error("the request's body did not arrive")]
    BodyIncomplete,
    /// The body is framed wrongly.
    #[error("the request's body is no valid chunked body (RFC 9112, section 7.1)")]
    BodyMalformed,
    /// The call was sent and no answer came: it may have been acted on, so it is not sent again.
    #[error("the connection to the session was lost before an answer; the outcome of the call is unknown")]
    OutcomeUnknown,
}

impl Refusal {
    /// The status that it is answered with.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Elsewhere | Self::SessionNotFound => StatusCode::NOT_FOUND,
            Self::ForbiddenOrigin | Self::ForbiddenHost => StatusCode::FORBIDDEN,
            Self::NoToken | Self::BadToken => StatusCode::UNAUTHORIZED,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::ReviewUnavailable
            | Self::NotPlaced { .. }
            | Self::SidecarUnavailable
            | Self::Blocked { .. }
            | Self::Starting
            | Self::Ending => StatusCode::SERVICE_UNAVAILABLE,
            Self::TooManyCalls | Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyIncomplete => StatusCode::REQUEST_TIMEOUT,
            Self::ManyHosts | Self::BodyMalformed => StatusCode::BAD_REQUEST,
            Self::OutcomeUnknown => StatusCode::BAD_GATEWAY,
        }
    }

    /// The JSON-RPC code, of the one vocabulary that sidecars use too. Never [`error::NOT_INITIALIZED`]: a client would fall
    /// back to `initialize`, which mends nothing here. The status says more than the code where MCP has no code of its own.
    fn code(&self) -> i32 {
        match self {
            Self::SessionNotFound => error::SESSION_UNKNOWN,
            Self::Elsewhere
            | Self::Method
            | Self::ForbiddenOrigin
            | Self::ForbiddenHost
            | Self::ManyHosts
            | Self::NoToken
            | Self::BadToken
            | Self::BodyIncomplete
            | Self::BodyMalformed => error::INVALID_REQUEST,
            Self::ReviewUnavailable | Self::Starting | Self::Ending => error::INTERNAL,
            Self::NotPlaced { .. } | Self::SidecarUnavailable | Self::Blocked { .. } => {
                error::UPSTREAM_TROUBLE
            }
            Self::TooManyCalls | Self::Busy => error::LIMIT_REACHED,
            Self::HeadTooLarge | Self::BodyTooLarge { .. } => error::TOO_LARGE,
            Self::OutcomeUnknown => error::OUTCOME_UNKNOWN,
        }
    }

    /// The refusal of the call to `server` that `body` holds.
    pub fn of(self, server: &str, body: &[u8]) -> Refused {
        // Nothing may tell a session that is not there from another one.
        if self == Self::SessionNotFound {
            return self.into();
        }
        let id = std::str::from_utf8(body).ok().and_then(request_id).map(ToOwned::to_owned);
        Refused { refusal: self, server: Some(server.to_owned()), id }
    }

    /// The reason in `data.reason`. A session that is not there has none: nothing may tell why.
    fn reason(&self) -> Option<&'static str> {
        match self {
            // Nothing is told, or the code has one meaning and says it itself.
            Self::Elsewhere
            | Self::SessionNotFound
            | Self::TooManyCalls
            | Self::Busy
            | Self::HeadTooLarge
            | Self::BodyTooLarge { .. }
            | Self::OutcomeUnknown => None,
            Self::ForbiddenOrigin => Some("ForbiddenOrigin"),
            Self::ForbiddenHost => Some("ForbiddenHost"),
            Self::ManyHosts => Some("ManyHosts"),
            Self::NoToken | Self::BadToken => Some("Unauthorized"),
            Self::ReviewUnavailable => Some("ReviewUnavailable"),
            Self::Method => Some("MethodNotAllowed"),
            Self::NotPlaced { reason } | Self::Blocked { reason, .. } => Some(reason.as_str()),
            Self::SidecarUnavailable => Some("SidecarUnavailable"),
            Self::Starting => Some("Starting"),
            Self::Ending => Some("Ending"),
            Self::BodyIncomplete => Some("BodyIncomplete"),
            Self::BodyMalformed => Some("BodyMalformed"),
        }
    }

    /// The header that tells the client what to do next.
    fn advice(&self) -> Option<(header::HeaderName, HeaderValue)> {
        match self {
            Self::NoToken => {
                Some((header::WWW_AUTHENTICATE, HeaderValue::from_static(r#"Bearer realm="berth""#)))
            }
            Self::BadToken => Some((
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static(r#"Bearer realm="berth", error="invalid_token""#),
            )),
            Self::Method => Some((header::ALLOW, HeaderValue::from_static("GET, POST, DELETE"))),
            Self::NotPlaced { .. }
            | Self::SidecarUnavailable
            | Self::Starting
            | Self::Ending
            | Self::TooManyCalls
            | Self::Busy => Some((header::RETRY_AFTER, HeaderValue::from_static("1"))),
            Self::ReviewUnavailable | Self::Blocked { .. } => {
                Some((header::RETRY_AFTER, HeaderValue::from_static("5")))
            }
            _ => None,
        }
    }
}

/// What somebody has to repair, for a reason that time does not mend.
fn what_is_wrong(reason: Reason) -> &'static str {
    match reason {
        Reason::RefNotFound => {
            "the session cannot be used: its server, the Secret or key with the credential, or the object with the CA does not exist"
        }
        Reason::RefNotPermitted => {
            "the credential for this server cannot be used: its Secret lacks the label that permits it"
        }
        Reason::InvalidCredential => {
            "the credential for this server cannot be used: it is empty or cannot be sent in a header"
        }
        _ => {
            "the session cannot be used: it names no credential where its server takes one, or the server cannot be acted on"
        }
    }
}

/// Raw id of the request that `text` is.
fn request_id(text: &str) -> Option<&str> {
    match Frame::parse(text) {
        Ok(Frame::Request { id, .. }) => Some(id.raw()),
        _ => None,
    }
}

/// A refusal with what is known of the call.
#[derive(Debug)]
pub struct Refused {
    refusal: Refusal,
    /// Name of the server.
    server: Option<String>,
    /// Raw id of the call.
    id: Option<String>,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, server: None, id: None }
    }
}

impl Refused {
    fn body(&self) -> String {
        let message = self.refusal.to_string();
        if self.refusal == Refusal::Elsewhere {
            return json!({"error": message}).to_string();
        }
        let mut body = ErrorBody::new(self.refusal.code(), message);
        if let Some(reason) = self.refusal.reason() {
            body = body.reason(reason);
        }
        if let Some(server) = &self.server {
            body = body.server(server);
        }
        body.render(self.id.as_deref())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let content_type = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let headers: http::HeaderMap = std::iter::once(content_type).chain(self.refusal.advice()).collect();
        (self.refusal.status(), headers, self.body()).into_response()
    }
}

#[cfg(test)]
mod tests;
