//! Every answer of the gateway's own, in one place.
//!
//! MCP clients get JSON-RPC errors with a null id: which call it was is known by the HTTP exchange. A session that is
//! unknown, has ended or is somebody else's gets one and the same answer, byte for byte.

use axum::response::{IntoResponse, Response};
use berth_api::Reason;
use berth_mcp::error::{self, ErrorBody};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

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
        reason: Reason,
    },
    /// The gateway does not know all sessions yet.
    #[error("the gateway is starting; try again")]
    Starting,
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
            Self::ReviewUnavailable | Self::NotPlaced { .. } | Self::Starting | Self::Busy => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyIncomplete => StatusCode::REQUEST_TIMEOUT,
            Self::OutcomeUnknown => StatusCode::BAD_GATEWAY,
        }
    }

    /// The JSON-RPC code, of the one vocabulary that sidecars use too. Never [`error::NOT_INITIALIZED`]: a client would fall
    /// back to `initialize`, which mends nothing here. The status says more than the code where MCP has no code of its own.
    fn code(&self) -> i32 {
        match self {
            Self::SessionNotFound => error::SESSION_UNKNOWN,
            Self::Elsewhere
            | Self::ForbiddenOrigin
            | Self::ForbiddenHost
            | Self::NoToken
            | Self::BadToken
            | Self::BodyIncomplete => error::INVALID_REQUEST,
            Self::ReviewUnavailable | Self::Starting => error::INTERNAL,
            Self::NotPlaced { .. } => error::UPSTREAM_TROUBLE,
            Self::Busy => error::LIMIT_REACHED,
            Self::HeadTooLarge | Self::BodyTooLarge { .. } => error::TOO_LARGE,
            Self::OutcomeUnknown => error::OUTCOME_UNKNOWN,
        }
    }

    fn body(&self) -> String {
        let message = self.to_string();
        if *self == Self::Elsewhere {
            return json!({"error": message}).to_string();
        }
        let body = ErrorBody::new(self.code(), message);
        match self.reason() {
            Some(reason) => body.reason(reason).render(None),
            None => body.render(None),
        }
    }

    /// The reason in `data.reason`. A session that is not there has none: nothing may tell why.
    fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Elsewhere | Self::SessionNotFound => None,
            Self::ForbiddenOrigin => Some("ForbiddenOrigin"),
            Self::ForbiddenHost => Some("ForbiddenHost"),
            Self::NoToken | Self::BadToken => Some("Unauthorized"),
            Self::ReviewUnavailable => Some("ReviewUnavailable"),
            Self::NotPlaced { reason } => Some(reason.as_str()),
            Self::Starting => Some("Starting"),
            Self::Busy => Some("Busy"),
            Self::HeadTooLarge | Self::BodyTooLarge { .. } => Some("TooLarge"),
            Self::BodyIncomplete => Some("BodyIncomplete"),
            Self::OutcomeUnknown => Some("OutcomeUnknown"),
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
            Self::NotPlaced { .. } | Self::Starting | Self::Busy => {
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
        (self.status(), headers, self.body()).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn read(refusal: &Refusal) -> Value {
        serde_json::from_str(&refusal.body()).unwrap()
    }

    #[test]
    fn a_session_that_is_not_there_is_answered_as_mcp_clients_know_it() {
        assert_eq!(
            Refusal::SessionNotFound.body(),
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#
        );
    }

    #[test]
    fn another_path_is_told_the_form_of_ours() {
        let body = read(&Refusal::Elsewhere);
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
            Refusal::NotPlaced { reason: Reason::LimitReached },
            Refusal::Starting,
            Refusal::Busy,
            Refusal::ReviewUnavailable,
        ] {
            let response = refusal.clone().into_response();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert!(response.headers().contains_key(header::RETRY_AFTER), "{refusal}");
        }
    }

    #[test]
    fn the_reason_of_a_session_without_a_place_is_that_of_its_status() {
        let body = read(&Refusal::NotPlaced { reason: Reason::LimitReached });
        assert_eq!(body["error"]["data"]["reason"], "LimitReached");
    }

    #[test]
    fn a_limit_stands_in_the_text() {
        let body = read(&Refusal::BodyTooLarge { limit: 4_194_304 });
        assert!(body["error"]["message"].as_str().unwrap().contains("4194304"), "{body}");
        let body = read(&Refusal::HeadTooLarge);
        assert!(body["error"]["message"].as_str().unwrap().contains("65536"), "{body}");
    }

    #[test]
    fn every_refusal_of_a_call_has_the_code_and_reason_that_clients_can_act_on() {
        let table = [
            (Refusal::ForbiddenOrigin, -32600, "ForbiddenOrigin"),
            (Refusal::ForbiddenHost, -32600, "ForbiddenHost"),
            (Refusal::NoToken, -32600, "Unauthorized"),
            (Refusal::BadToken, -32600, "Unauthorized"),
            (Refusal::ReviewUnavailable, -32603, "ReviewUnavailable"),
            (Refusal::NotPlaced { reason: Reason::Unschedulable }, -32050, "Unschedulable"),
            (Refusal::Starting, -32603, "Starting"),
            (Refusal::Busy, -32055, "Busy"),
            (Refusal::HeadTooLarge, -32054, "TooLarge"),
            (Refusal::BodyTooLarge { limit: 1 }, -32054, "TooLarge"),
            (Refusal::BodyIncomplete, -32600, "BodyIncomplete"),
            (Refusal::OutcomeUnknown, -32051, "OutcomeUnknown"),
        ];
        for (refusal, code, reason) in table {
            let body = read(&refusal);
            assert_eq!(body["error"]["code"], code, "{refusal:?}");
            assert_eq!(body["error"]["data"]["reason"], reason, "{refusal:?}");
        }
    }
}
