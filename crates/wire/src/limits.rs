//! What bounds a session's messages and calls, and the key of its clients' session ids.

use serde::{Deserialize, Serialize};

/// Bounds of one session. What is left out has its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// Largest message of a client, in bytes.
    pub request_bytes: u32,
    /// Largest answer of the upstream, or event of an answer, in bytes.
    pub response_bytes: u32,
    /// Calls that run at once, without those whose client does not read the answer.
    pub concurrent_calls: u32,
    /// Calls that wait for one of those to end, and those others.
    pub queued_calls: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_bytes: 4 * 1024 * 1024,
            response_bytes: 16 * 1024 * 1024,
            concurrent_calls: 16,
            queued_calls: 64,
        }
    }
}

/// The key that seals the session ids of clients: 32 bytes in base64. Whoever has it can act as any client of the session; it
/// never shows in `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ScopeKey(pub String);

impl std::fmt::Debug for ScopeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ScopeKey([redacted])")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_are_left_out_have_their_defaults() {
        let limits: Limits = serde_json::from_str(r#"{"concurrentCalls":3}"#).unwrap();
        assert_eq!(limits, Limits { concurrent_calls: 3, ..Limits::default() });
        assert_eq!(serde_json::from_str::<Limits>("{}").unwrap(), Limits::default());
    }

    #[test]
    fn a_scope_key_never_shows_its_value() {
        let key: ScopeKey = serde_json::from_str(r#""aHVudGVyMg==""#).unwrap();
        assert!(!format!("{key:?}").contains("aHVudGVyMg"));
        assert_eq!(serde_json::to_string(&key).unwrap(), r#""aHVudGVyMg==""#);
    }
}
