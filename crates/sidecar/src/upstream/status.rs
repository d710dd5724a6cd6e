//! What an upstream's HTTP status means. Pure.

use berth_wire::Failure;
use http::StatusCode;

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
}
