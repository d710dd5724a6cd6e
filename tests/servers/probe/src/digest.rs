//! Digests: the only form in which the probe keeps or shows a credential.

use std::{collections::BTreeSet, fmt::Write as _};

use http::{HeaderMap, header::AUTHORIZATION};
use sha2::{Digest as _, Sha256};

/// Headers whose values are harmless and worth reading; every other value becomes a digest, so a
/// credential in a header nobody thought of stays hidden too.
const SHOWN: &[&str] = &[
    "accept",
    "accept-encoding",
    "cache-control",
    "connection",
    "content-length",
    "content-type",
    "forwarded",
    "host",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "origin",
    "te",
    "traceparent",
    "tracestate",
    "transfer-encoding",
    "user-agent",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-request-id",
];

/// Lower-case hex of SHA-256.
pub fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Digest of the whole `Authorization` header value, or `none`.
pub fn authorization(headers: &HeaderMap) -> String {
    headers.get(AUTHORIZATION).map_or_else(|| "none".to_owned(), |value| hex(value.as_bytes()))
}

/// The headers as the books show them: `(name, value)`, credentials and unknown ones as
/// `sha256:<hex>`. Repeated headers are repeated.
pub fn shown_headers(headers: &HeaderMap, more: &BTreeSet<String>) -> Vec<(String, String)> {
    headers
        .iter()
        .map(|(name, value)| {
            let clear = SHOWN.contains(&name.as_str()) || more.contains(name.as_str());
            let text = value.to_str().ok().filter(|_| clear).map(str::to_owned);
            let value = text.unwrap_or_else(|| format!("sha256:{}", hex(value.as_bytes())));
            (name.as_str().to_owned(), value)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_plain_sha256() {
        assert_eq!(hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn only_listed_headers_are_clear() {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", "Bearer s3cret".parse().unwrap());
        headers.insert("x-api-key", "s3cret".parse().unwrap());
        headers.insert("accept", "*/*".parse().unwrap());
        headers.insert("x-user", "u1".parse().unwrap());
        let shown = shown_headers(&headers, &BTreeSet::from(["x-user".to_owned()]));
        let text = format!("{shown:?}");
        assert!(!text.contains("s3cret"), "{text}");
        assert!(shown.contains(&("accept".to_owned(), "*/*".to_owned())));
        assert!(shown.contains(&("x-user".to_owned(), "u1".to_owned())));
        assert!(shown.contains(&("x-api-key".to_owned(), format!("sha256:{}", hex(b"s3cret")))));
    }

    #[test]
    fn absent_authorization_is_none() {
        assert_eq!(authorization(&HeaderMap::new()), "none");
    }
}
