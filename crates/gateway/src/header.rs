//! Which headers go through the gateway. What is not named here stays: credentials, cookies, hosts, origins, proxies' traces.

use crate::respond::Refusal;
use berth_mcp::header as mcp;
use http::{HeaderMap, HeaderName, header};

/// Largest head of a request, names and values together, in bytes.
pub const HEAD_MAX: usize = 64 * 1024;

/// Headers that go on to the sidecar.
const TO_SIDECAR: [HeaderName; 7] = [
    header::ACCEPT,
    header::CONTENT_TYPE,
    HeaderName::from_static(mcp::LAST_EVENT_ID),
    HeaderName::from_static(mcp::MCP_METHOD),
    HeaderName::from_static(mcp::MCP_NAME),
    HeaderName::from_static(mcp::MCP_PROTOCOL_VERSION),
    HeaderName::from_static(mcp::MCP_SESSION_ID),
];
/// Parameters of a tool that its schema marks for a header; intermediaries must pass them whatever their name.
const PARAMETERS: &str = "mcp-param-";

/// Headers that go back to the client. Length and framing are those of our own connection.
const TO_CLIENT: [HeaderName; 6] = [
    header::ALLOW,
    header::CACHE_CONTROL,
    header::CONTENT_TYPE,
    header::RETRY_AFTER,
    header::WWW_AUTHENTICATE,
    HeaderName::from_static("x-accel-buffering"),
];
/// MCP's own headers go back too.
const MCP: &str = "mcp-";

/// Refuses a head that is too large.
pub fn check_size(headers: &HeaderMap) -> Result<(), Refusal> {
    let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if size > HEAD_MAX { Err(Refusal::HeadTooLarge) } else { Ok(()) }
}

/// The headers of a client's request that a sidecar gets.
pub fn for_sidecar(headers: &HeaderMap) -> HeaderMap {
    keep(headers, |name| TO_SIDECAR.contains(name) || name.as_str().starts_with(PARAMETERS))
}

/// The headers of a sidecar's answer that a client gets.
pub fn for_client(headers: &HeaderMap) -> HeaderMap {
    keep(headers, |name| TO_CLIENT.contains(name) || name.as_str().starts_with(MCP))
}

fn keep(headers: &HeaderMap, passes: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let passing = headers.iter().filter(|(name, _)| passes(name));
    let mut kept = HeaderMap::with_capacity(headers.len());
    kept.extend(passing.map(|(name, value)| (name.clone(), value.clone())));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(names: &[&'static str]) -> HeaderMap {
        names.iter().map(|name| (HeaderName::from_static(name), "v".parse().unwrap())).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_sidecar_gets_the_headers_of_mcp_and_nothing_of_the_caller() {
        let sent = head(&[
            "authorization",
            "cookie",
            "host",
            "origin",
            "x-forwarded-for",
            "forwarded",
            "proxy-authorization",
            "connection",
            "content-length",
            "transfer-encoding",
            "user-agent",
            "x-api-key",
            "accept-encoding",
            "te",
            "accept",
            "content-type",
            "last-event-id",
            "mcp-method",
            "mcp-name",
            "mcp-protocol-version",
            "mcp-session-id",
            "mcp-param-region",
        ]);
        let expected = [
            "accept",
            "content-type",
            "last-event-id",
            "mcp-method",
            "mcp-name",
            "mcp-param-region",
            "mcp-protocol-version",
            "mcp-session-id",
        ];
        assert_eq!(names(&for_sidecar(&sent)), expected);
    }

    #[test]
    fn a_client_gets_no_hop_by_hop_header_and_no_cookie() {
        let answered = head(&[
            "content-type",
            "content-length",
            "connection",
            "set-cookie",
            "server",
            "mcp-session-id",
            "cache-control",
            "retry-after",
            "www-authenticate",
            "allow",
            "transfer-encoding",
        ]);
        let expected =
            ["allow", "cache-control", "content-type", "mcp-session-id", "retry-after", "www-authenticate"];
        assert_eq!(names(&for_client(&answered)), expected);
    }

    #[test]
    fn repeated_values_stay_in_order() {
        let mut sent = HeaderMap::new();
        sent.append("accept", "application/json".parse().unwrap());
        sent.append("accept", "text/event-stream".parse().unwrap());
        let kept: Vec<_> = for_sidecar(&sent).get_all("accept").iter().cloned().collect();
        assert_eq!(kept, ["application/json", "text/event-stream"]);
    }

    #[test]
    fn a_head_above_the_limit_is_refused() {
        let mut sent = HeaderMap::new();
        sent.insert("x", "v".repeat(HEAD_MAX - 1).parse().unwrap());
        assert!(check_size(&sent).is_ok());
        sent.insert("y", "v".parse().unwrap());
        assert_eq!(check_size(&sent), Err(Refusal::HeadTooLarge));
    }
}
