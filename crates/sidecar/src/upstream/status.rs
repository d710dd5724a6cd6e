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
        401 => (Failure::Unauthorized, "check the credential of the McpServer or the session"),
        403 => (Failure::Unauthorized, FORBIDDEN),
        404 => (Failure::UpstreamUnreachable, "check the path of the McpServer's URL"),
        429 => (Failure::RateLimited, "try again later"),
        421 => (Failure::ProtocolError, "the server does not accept this Host; check its allowed hosts"),
        300..=399 => (Failure::ProtocolError, "this is no redirect that can be followed; set the final URL"),
        500.. => (Failure::UpstreamUnreachable, "check the server's logs"),
        _ => (Failure::ProtocolError, "the server does not take this as MCP over streamable HTTP"),
    }
}

/// Whether a request that was answered so may have been carried out: what ran can fail, and a proxy that has no good answer knows
/// no more. 501 comes before anything runs, and 503 where it says when to come again: proxies give it without for a connection that
/// broke.
pub(crate) fn leaves_open(status: StatusCode, says_when: bool) -> bool {
    match status {
        StatusCode::NOT_IMPLEMENTED => false,
        StatusCode::SERVICE_UNAVAILABLE => !says_when,
        _ => status.is_server_error(),
    }
}

/// A server that takes no Host but its own may say so by 403, as if it were the credential.
const FORBIDDEN: &str = "check the credential of the McpServer or the session, and that the server's allowed hosts have this Host";

/// What servers say that do not know a session's id, before anything is carried out: the words of the official SDKs and of
/// frameworks that copy them, in lower case.
const UNKNOWN_SESSION: [&str; 6] = [
    "session not found",
    "not found: session not found",
    "not found: session has been terminated",
    "invalid session id",
    "bad request: no valid session id provided",
    "bad request: server not initialized",
];

/// What the answer to a request that carried a session id says of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The request was refused for the sake of its session, in words of the server's own: it was not carried out, but the session
    /// may be there.
    Refused,
    /// The upstream does not know the session.
    Gone,
}

/// Whether a status other than success says that the session is lost. The specification asks for 404; several SDKs answer 400 with
/// an error that speaks of the session. Neither is answered once something was carried out. A 404 that says in JSON-RPC that the
/// method is unknown, as revision 2026-07-28 wants it, is about the request and not about the session.
pub(crate) fn session_loss(status: StatusCode, body: &str) -> Option<Loss> {
    match status {
        StatusCode::NOT_FOUND => (code_of(body) != Some(error::METHOD_NOT_FOUND)).then_some(Loss::Gone),
        StatusCode::BAD_REQUEST if is_unknown_session(body) => Some(Loss::Gone),
        StatusCode::BAD_REQUEST if body.contains("\"error\"") => match Frame::parse(body) {
            Ok(Frame::Response { outcome: Outcome::Error(error), .. })
                if read_error(error).is_some_and(|error| is_unknown_session(&error.message)) =>
            {
                Some(Loss::Gone)
            }
            _ => body.to_ascii_lowercase().contains("session").then_some(Loss::Refused),
        },
        _ => None,
    }
}

/// Whether a message that arrives in place of an answer, though the status was a success, says that the upstream does not know the
/// session; `is_error` if it came as an event of that name. Only exact words count: a tool that ran and failed may have sessions
/// of its own to complain about, and must not run twice.
pub(crate) fn is_session_lost_message(text: &str, is_error: bool) -> bool {
    if text.len() > REFUSAL_LIMIT {
        return false;
    }
    match Frame::parse(text) {
        Ok(Frame::Response { outcome: Outcome::Error(error), .. }) => {
            read_error(error).is_some_and(|RpcError { code, message }| {
                (is_error || code == error::SESSION_UNKNOWN) && is_unknown_session(&message)
            })
        }
        Ok(_) => false,
        Err(_) => is_error && is_unknown_session(text),
    }
}

/// The code of a JSON-RPC error.
fn code_of(text: &str) -> Option<i32> {
    match Frame::parse(text) {
        Ok(Frame::Response { outcome: Outcome::Error(error), .. }) => {
            read_error(error).map(|error| error.code)
        }
        _ => None,
    }
}

fn is_unknown_session(text: &str) -> bool {
    let text = text.trim().trim_end_matches('.');
    UNKNOWN_SESSION.iter().any(|known| text.eq_ignore_ascii_case(known))
}

/// A JSON-RPC error, given as raw JSON.
fn read_error(error: &str) -> Option<RpcError<'_>> {
    serde_json::from_str(error).ok()
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
    fn only_what_may_have_run_leaves_the_outcome_open() {
        for (status, open) in [
            (307, false),
            (400, false),
            (404, false),
            (408, false),
            (429, false),
            (500, true),
            (501, false),
            (502, true),
            (503, true),
            (504, true),
            (524, true),
        ] {
            assert_eq!(leaves_open(StatusCode::from_u16(status).unwrap(), false), open, "{status}");
        }
        assert!(!leaves_open(StatusCode::SERVICE_UNAVAILABLE, true));
        assert!(leaves_open(StatusCode::INTERNAL_SERVER_ERROR, true));
    }

    #[test]
    fn a_lost_session_is_told_from_other_refusals() {
        let bad = |body: &str| session_loss(StatusCode::BAD_REQUEST, body);
        let error = |message: &str| {
            format!(r#"{{"jsonrpc":"2.0","error":{{"code":-32000,"message":"{message}"}},"id":null}}"#)
        };
        let lost = error("Bad Request: No valid session ID provided");
        assert_eq!(bad(&lost), Some(Loss::Gone));
        assert_eq!(bad("Bad Request: No valid session ID provided\n"), Some(Loss::Gone), "as plain text");
        assert_eq!(session_loss(StatusCode::NOT_FOUND, ""), Some(Loss::Gone));
        assert_eq!(session_loss(StatusCode::NOT_FOUND, &error("Session not found")), Some(Loss::Gone));
        let unknown = r#"{"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found"},"id":1}"#;
        assert_eq!(session_loss(StatusCode::NOT_FOUND, unknown), None, "it is about the method");
        assert_eq!(bad(&error("this session is on another replica")), Some(Loss::Refused));
        assert_eq!(bad(r#"{"error":"unknown session"}"#), Some(Loss::Refused), "no JSON-RPC");
        assert_eq!(bad(&error("bad arguments")), None);
        assert_eq!(bad("session"), None);
        assert_eq!(session_loss(StatusCode::INTERNAL_SERVER_ERROR, &lost), None);
    }

    #[test]
    fn a_lost_session_is_told_from_the_errors_of_a_tool() {
        for (error, lost, in_error_event) in [
            (r#"{"code":-32001,"message":"Session not found"}"#, true, true),
            (r#"{"code":-32001,"message":"\u0073ession not found.","data":1}"#, true, true),
            (r#"{"code":-32600,"message":"Not Found: Session has been terminated"}"#, false, true),
            (r#"{"code":-32000,"message":"Bad Request: No valid session ID provided"}"#, false, true),
            // What a tool says that ran.
            (r#"{"code":-32000,"message":"browser session closed"}"#, false, false),
            (r#"{"code":-32001,"message":"browser session closed"}"#, false, false),
            (r#"{"code":-32001,"message":"Session not found: the browser was closed"}"#, false, false),
            (r#"{"code":-32600,"message":"Session terminated before the request completed"}"#, false, false),
            (r#"{"code":-32000,"message":"Session not found"}"#, false, true),
            (r#"{"code":-32001,"message":"Request timed out"}"#, false, false),
            (r#"{"code":-32001}"#, false, false),
            ("nonsense", false, false),
        ] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#);
            assert_eq!(is_session_lost_message(&text, false), lost, "{text}");
            assert_eq!(is_session_lost_message(&text, true), in_error_event, "{text}");
        }
        assert!(is_session_lost_message("Session not found", true));
        assert!(!is_session_lost_message("Session not found", false));
        assert!(!is_session_lost_message("the browser session is closed", true));
        let text = r#"{"jsonrpc":"2.0","id":1,"result":{"text":"Session not found"}}"#;
        assert!(!is_session_lost_message(text, true), "a result is a result");
    }
}
