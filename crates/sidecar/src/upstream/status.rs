//! What an upstream's HTTP status means. Pure.

use super::REFUSAL_LIMIT;
use berth_mcp::error;
use berth_mcp::frame::{Frame, Outcome};
use berth_wire::Failure;
use http::StatusCode;
use serde::Deserialize;
use std::borrow::Cow;

/// The failure that a status other than success stands for, and what to do about it.
pub(crate) fn failure_of(status: StatusCode) -> (Failure, &'static str) {
    match status.as_u16() {
        401 | 403 => (Failure::Unauthorized, "check the credential of the McpServer or the session"),
        404 => (Failure::UpstreamUnreachable, "check the path of the McpServer's URL"),
        429 => (Failure::RateLimited, "try again later"),
        421 => (Failure::ProtocolError, "the server does not accept this Host; check its allowed hosts"),
        300..=399 => (Failure::ProtocolError, "redirects are not followed; set the final URL"),
        500.. => (Failure::UpstreamUnreachable, "check the server's logs"),
        _ => (Failure::ProtocolError, "the server does not take this as MCP over streamable HTTP"),
    }
}

/// Whether an answer to a request that carried a session id says that the session is gone. The specification asks for
/// 404; several SDKs answer 400 with a JSON-RPC error that speaks of the session.
pub(crate) fn is_session_lost(status: StatusCode, body: &str) -> bool {
    match status {
        StatusCode::NOT_FOUND => true,
        StatusCode::BAD_REQUEST => {
            body.contains("\"error\"") && body.to_ascii_lowercase().contains("session")
        }
        _ => false,
    }
}

/// Whether a JSON-RPC error, given as raw JSON, says that the session is gone though the status was 200. Only the codes that SDKs
/// use for it count: a tool of any server may have sessions of its own to complain about.
fn is_session_lost_error(error: &str) -> bool {
    let Ok(RpcError { code, message }) = serde_json::from_str(error) else { return false };
    [error::NOT_INITIALIZED, error::SESSION_UNKNOWN].contains(&code)
        && message.to_ascii_lowercase().contains("session")
}

/// Whether a message that arrives in place of an answer says so; `is_error` if it came as an event of that name.
pub(crate) fn is_session_lost_message(text: &str, is_error: bool) -> bool {
    if text.len() > REFUSAL_LIMIT {
        return false;
    }
    match Frame::parse(text) {
        Ok(Frame::Response { outcome: Outcome::Error(error), .. }) => is_session_lost_error(error),
        Ok(_) => false,
        Err(_) => is_error && text.to_ascii_lowercase().contains("session"),
    }
}

#[derive(Deserialize)]
struct RpcError<'a> {
    code: i32,
    #[serde(borrow)]
    message: Cow<'a, str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_its_failure() {
        for (status, failure) in [
            (301, Failure::ProtocolError),
            (400, Failure::ProtocolError),
            (401, Failure::Unauthorized),
            (403, Failure::Unauthorized),
            (404, Failure::UpstreamUnreachable),
            (405, Failure::ProtocolError),
            (429, Failure::RateLimited),
            (500, Failure::UpstreamUnreachable),
            (503, Failure::UpstreamUnreachable),
        ] {
            assert_eq!(failure_of(StatusCode::from_u16(status).unwrap()).0, failure, "{status}");
        }
    }

    #[test]
    fn a_lost_session_is_told_from_other_refusals() {
        let lost = r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}"#;
        assert!(is_session_lost(StatusCode::BAD_REQUEST, lost));
        assert!(is_session_lost(StatusCode::NOT_FOUND, ""));
        assert!(!is_session_lost(StatusCode::BAD_REQUEST, r#"{"error":{"message":"bad arguments"}}"#));
        assert!(!is_session_lost(StatusCode::BAD_REQUEST, "session"));
        assert!(!is_session_lost(StatusCode::INTERNAL_SERVER_ERROR, lost));
    }

    #[test]
    fn a_lost_session_is_told_from_the_errors_of_a_tool() {
        for (error, lost) in [
            (r#"{"code":-32001,"message":"Session not found"}"#, true),
            (r#"{"code":-32000,"message":"Bad Request: No valid session ID provided","data":1}"#, true),
            (r#"{"code":-32000,"message":"\u0073ession expired"}"#, true),
            (r#"{"code":-32001,"message":"Request timed out"}"#, false),
            (r#"{"code":-32602,"message":"the browser session is closed"}"#, false),
            (r#"{"code":-32000}"#, false),
            ("nonsense", false),
        ] {
            assert_eq!(is_session_lost_error(error), lost, "{error}");
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#);
            assert_eq!(is_session_lost_message(&text, false), lost, "{text}");
        }
        assert!(is_session_lost_message("Session expired", true));
        assert!(!is_session_lost_message("Session expired", false) && !is_session_lost_message("gone", true));
        let text = r#"{"jsonrpc":"2.0","id":1,"result":{"text":"Session not found"}}"#;
        assert!(!is_session_lost_message(text, true), "a result is a result");
    }
}
