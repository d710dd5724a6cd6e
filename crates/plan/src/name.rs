//! Names of objects, derived from UIDs so that a second create hits `AlreadyExists` instead of making a second object.

use berth_api::McpServerSpec;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Longest name of a pod or Secret: also a valid label value and host name.
pub const MAX_LENGTH: usize = 63;
/// Hexadecimal digits of the hash in a name.
const HASH_DIGITS: usize = 8;
/// Hexadecimal digits of a revision.
const REVISION_DIGITS: usize = 10;

/// The revision of an `McpServer`: a hash of what names pods and connections, which is transport and auth. Everything
/// else applies live.
pub fn revision(spec: &McpServerSpec) -> String {
    // Both types have string keys only, so writing them as JSON cannot fail.
    let text = serde_json::to_string(&(&spec.transport, &spec.auth)).unwrap_or_default();
    hash(&[&text], REVISION_DIGITS)
}

/// Name of pool pod number `ordinal` of a server at a revision: `{server}-{hash}-{ordinal}`.
pub fn pool_pod(server: &str, server_uid: &str, revision: &str, ordinal: u32) -> String {
    with_suffix(server, &format!("-{}-{ordinal}", hash(&[server_uid, revision], HASH_DIGITS)))
}

/// The `number` names with the lowest ordinals that are not `taken`.
pub fn free_names(number: u32, taken: &BTreeSet<&str>, name_of: impl Fn(u32) -> String) -> Vec<String> {
    let free = (0..u32::MAX).map(name_of).filter(|name| !taken.contains(name.as_str()));
    free.take(number as usize).collect()
}

/// Name of the Secret that holds a server's serving certificate.
pub fn certificate(server: &str, server_uid: &str) -> String {
    with_suffix(server, &format!("-{}-tls", hash(&[server_uid], HASH_DIGITS)))
}

/// Name of a server's network policy.
pub fn network_policy(server: &str, server_uid: &str) -> String {
    with_suffix(server, &format!("-{}-net", hash(&[server_uid], HASH_DIGITS)))
}

/// Name of the one Event that tells of a session's end.
pub fn end_event(session_uid: &str) -> String {
    format!("session-ended-{session_uid}")
}

/// The server's name, cut so that the suffix fits.
fn with_suffix(server: &str, suffix: &str) -> String {
    let room = MAX_LENGTH.saturating_sub(suffix.len());
    let prefix: String = server.chars().take(room).collect();
    format!("{}{suffix}", prefix.trim_end_matches('-'))
}

/// The first `digits` hexadecimal digits of the SHA-256 of `parts`, each ended by a zero byte.
pub fn hash(parts: &[&str], digits: usize) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    let mut text = String::new();
    for byte in hasher.finalize() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.truncate(digits);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::fixture::server;

    #[test]
    fn a_name_fits_whatever_the_server_is_called() {
        for length in [1, 30, 49, 50, 62, 63] {
            let server = format!("{}a", "b-".repeat(32)).chars().take(length).collect::<String>();
            let names = [
                pool_pod(&server, "uid", "rev", 999),
                certificate(&server, "uid"),
                network_policy(&server, "uid"),
            ];
            for name in names {
                assert!(name.len() <= MAX_LENGTH, "{name}");
                assert!(!name.contains("--"), "{name}");
            }
        }
    }

    #[test]
    fn servers_and_revisions_never_share_a_pod_name() {
        assert_ne!(pool_pod("s", "uid-1", "r", 0), pool_pod("s", "uid-2", "r", 0));
        assert_ne!(pool_pod("s", "uid", "r1", 0), pool_pod("s", "uid", "r2", 0));
        assert_ne!(pool_pod("s", "uid", "r", 0), pool_pod("s", "uid", "r", 1));
    }

    #[test]
    fn the_lowest_free_ordinals_fill_gaps() {
        let name = |ordinal: u32| format!("p-{ordinal}");
        assert_eq!(free_names(3, &BTreeSet::from(["p-0", "p-2"]), name), ["p-1", "p-3", "p-4"]);
    }

    #[test]
    fn a_revision_names_transport_and_auth_and_nothing_else() {
        let base = revision(&server("{}").spec);
        assert_eq!(base, revision(&server("{pool: {warm: 5}, timeouts: {drain: 1s}}").spec));
        assert_ne!(
            base,
            revision(&server("{transport: {type: Http, http: {url: 'http://other.test/mcp'}}}").spec)
        );
        assert_ne!(
            base,
            revision(&server("{auth: {type: Shared, shared: {secretKeyRef: {name: a, key: b}}}}").spec)
        );
        let session = revision(&server("{auth: {type: Session, session: {}}}").spec);
        assert_ne!(session, base);
        assert_ne!(session, revision(&server("{auth: {type: Session, session: {header: X-Key}}}").spec));
    }
}
