//! Every answer of the gateway's own, in one place.
//!
//! MCP clients get JSON-RPC errors with a null id: which call it was is known by the HTTP exchange. A session that is
//! unknown, has ended or is somebody else's gets one and the same answer, byte for byte.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

/// JSON-RPC code of a session that is not there, as MCP clients know it.
const SESSION_NOT_FOUND: i64 = -32001;
/// JSON-RPC code of everything else that a server may say.
const SERVER_ERROR: i64 = -32000;

/// Why a request is not relayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The path or method is none of ours.
    #[error("no such endpoint; send POST, GET or DELETE to /{{namespace}}/{{session}}/{{server}}/mcp")]
    Elsewhere,
    /// The page that calls may not.
    #[error("this Origin may not call; allow it with --allowed-origin")]
    ForbiddenOrigin,
    /// The host that is asked for is none of ours.
    #[error("this Host is not served; allow it with --allowed-host")]
    ForbiddenHost,
    /// No bearer token was sent.
    #[error("a bearer token is required")]
    NoToken,
    /// The bearer token is not valid, or not for our audience.
    #[error("the bearer token is not valid for this gateway")]
    BadToken,
    /// Whether the caller may call cannot be known now.
    #[error("the caller cannot be checked now; try again")]
    ReviewUnavailable,
    /// For this caller there is no such session.
    #[error("Session not found")]
    SessionNotFound,
    /// The session has no slot yet.
    #[error("the session is not placed yet; try again")]
    NotPlaced {
        /// Why, as in the session's status.
        reason: Box<str>,
    },
    /// The gateway does not know all sessions yet.
    #[error("the gateway is starting; try again")]
    Starting,
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
            Self::ReviewUnavailable | Self::NotPlaced { .. } | Self::Starting => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyIncomplete => StatusCode::REQUEST_TIMEOUT,
            Self::OutcomeUnknown => StatusCode::BAD_GATEWAY,
        }
    }

    fn body(&self) -> Value {
        let message = self.to_string();
        let error = match self {
            Self::Elsewhere => return json!({"error": message}),
            Self::SessionNotFound => json!({"code": SESSION_NOT_FOUND, "message": message}),
            other => json!({"code": SERVER_ERROR, "message": message, "data": other.data()}),
        };
        json!({"jsonrpc": "2.0", "id": null, "error": error})
    }

    fn data(&self) -> Value {
        match self {
            Self::NotPlaced { reason } => json!({"reason": reason}),
            Self::BodyTooLarge { limit } => json!({"reason": self.reason(), "limitBytes": limit}),
            Self::HeadTooLarge => json!({"reason": self.reason(), "limitBytes": crate::header::HEAD_MAX}),
            _ => json!({"reason": self.reason()}),
        }
    }

    /// The reason in `data.reason`; that of [`Refusal::NotPlaced`] comes from the session's status instead.
    fn reason(&self) -> &'static str {
        match self {
            Self::Elsewhere | Self::SessionNotFound => "NotFound",
            Self::ForbiddenOrigin => "ForbiddenOrigin",
            Self::ForbiddenHost => "ForbiddenHost",
            Self::NoToken | Self::BadToken => "Unauthorized",
            Self::ReviewUnavailable => "ReviewUnavailable",
            Self::NotPlaced { .. } => "Pending",
            Self::Starting => "Starting",
            Self::HeadTooLarge | Self::BodyTooLarge { .. } => "TooLarge",
            Self::BodyIncomplete => "BodyIncomplete",
            Self::OutcomeUnknown => "OutcomeUnknown",
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
            Self::NotPlaced { .. } | Self::Starting => {
                Some((header::RETRY_AFTER, HeaderValue::from_static("1")))
            }
            Self::ReviewUnavailable => Some((header::RETRY_AFTER, HeaderValue::from_static("5"))),
            _ => None,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let content_type = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let headers: http::HeaderMap = std::iter::once(content_type).chain(self.advice()).collect();
        (self.status(), headers, self.body().to_string()).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_is_not_there_is_answered_as_mcp_clients_know_it() {
        assert_eq!(
            Refusal::SessionNotFound.body(),
            json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "Session not found"}})
        );
    }

    #[test]
    fn another_path_is_told_the_form_of_ours() {
        let body = Refusal::Elsewhere.body();
        assert!(body["error"].as_str().unwrap().contains("/{namespace}/{session}/{server}/mcp"), "{body}");
    }

    #[test]
    fn a_missing_token_and_a_bad_one_are_challenged_differently() {
        let challenge = |refusal: Refusal| {
            let response = refusal.into_response();
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
            response.headers()[header::WWW_AUTHENTICATE].to_str().unwrap().to_owned()
        };
        assert_eq!(challenge(Refusal::NoToken), r#"Bearer realm="berth""#);
        assert_eq!(challenge(Refusal::BadToken), r#"Bearer realm="berth", error="invalid_token""#);
    }

    #[test]
    fn what_may_succeed_later_says_when() {
        for refusal in [
            Refusal::NotPlaced { reason: "LimitReached".into() },
            Refusal::Starting,
            Refusal::ReviewUnavailable,
        ] {
            let response = refusal.clone().into_response();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert!(response.headers().contains_key(header::RETRY_AFTER), "{refusal}");
        }
    }

    #[test]
    fn the_reason_of_a_session_without_a_place_is_that_of_its_status() {
        let body = Refusal::NotPlaced { reason: "LimitReached".into() }.body();
        assert_eq!(body["error"]["data"]["reason"], "LimitReached");
    }

    #[test]
    fn limits_are_named() {
        let body = Refusal::BodyTooLarge { limit: 4_194_304 }.body();
        assert_eq!(body["error"]["data"]["limitBytes"], 4_194_304);
        assert!(body["error"]["message"].as_str().unwrap().contains("4194304"), "{body}");
    }
}
