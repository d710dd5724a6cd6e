//! What the operator wants of a sidecar: the body of `PUT /v1/sessions/{uid}`.

use crate::{Failure, Limits, OnStateLost, ScopeKey};
use serde::{Deserialize, Serialize};

/// The whole desired state of one session in one sidecar.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionSpec {
    /// UID of the `AgentSession`: the session's key in the sidecar. Never the user, never a credential's hash.
    pub uid: String,
    /// `namespace/name` of the `AgentSession`, for logs only.
    pub display_name: String,
    /// Which server and revision the slot is for; a sidecar of another one refuses.
    pub server: ServerKey,
    /// Orders PUTs: one older than the one held is refused.
    pub generation: Generation,
    /// Whose session it is, for as long as it lives: a PUT that changes it is refused.
    pub subject: Subject,
    /// Where the upstream is and what is sent to it.
    pub upstream: Upstream,
    /// How long each step may take.
    pub timeouts: Timeouts,
    /// What its clients see when the upstream forgot its session.
    #[serde(default, skip_serializing_if = "OnStateLost::is_default")]
    pub on_state_lost: OnStateLost,
    /// How much it may ask at once.
    #[serde(default)]
    pub limits: Limits,
    /// Seals the session ids of its clients, so that they outlive this sidecar. Without it they end with the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope_key: Option<ScopeKey>,
}

/// An `McpServer` at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerKey {
    /// UID of the `McpServer`.
    pub uid: String,
    /// Name of the `McpServer`, for errors and logs.
    pub name: String,
    /// Hash of what names its pods and connections.
    pub revision: String,
}

/// Generations of the two objects that a PUT is made from. A PUT is older when either is lower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Generation {
    /// `metadata.generation` of the `AgentSession`.
    pub session: i64,
    /// `metadata.generation` of the `McpServer`.
    pub server: i64,
}

impl Generation {
    /// Whether this one was made from an older session or server than `held`.
    pub fn is_older_than(self, held: Self) -> bool {
        self.session < held.session || self.server < held.server
    }
}

/// Whose session it is. Compared byte for byte.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// Issuer; empty means the Kubernetes API server.
    pub issuer: String,
    /// Name at that issuer.
    pub name: String,
}

/// Where the upstream is and what is sent to it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Upstream {
    /// Absolute `http` or `https` URL of the MCP endpoint.
    pub url: String,
    /// How its certificate is checked, if not by the public authorities against the host of the URL. A PUT replaces it for every
    /// socket that is opened after its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<UpstreamTls>,
    /// Headers for every request, credentials among them. Never logged. A PUT replaces them for every request that begins after
    /// its answer.
    pub headers: Vec<Header>,
    /// The credential is this session's alone: what the upstream limits it to concerns no other session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_credential: bool,
    /// Set while the credential cannot be had: `headers` do not count then, calls are refused with this, and what was opened is
    /// ended without a credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<Withheld>,
}

/// How an upstream's certificate is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamTls {
    /// Certificates, as PEM, of authorities that are trusted beside the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_pem: Option<String>,
    /// The name that the certificate must have, if not the host of the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

/// Why a session may not use its upstream for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Withheld {
    /// What is wrong with the credential.
    pub reason: Failure,
    /// Text that names the thing and the remedy, never a value.
    pub message: String,
}

/// A header that may hold a credential; its value never shows in `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Name of the header.
    pub name: String,
    /// Value, already checked to be one that a header can carry.
    pub value: String,
}

impl std::fmt::Debug for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Header({}: [redacted])", self.name)
    }
}

/// How long each step may take, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// Whole of a connect.
    pub connect_millis: u64,
    /// A request without progress.
    pub request_millis: u64,
    /// A request altogether.
    pub request_max_millis: u64,
    /// Running calls, once the session ends.
    pub drain_millis: u64,
    /// The upstream's confirmation of the end.
    pub close_millis: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_older_when_either_part_is_lower() {
        let held = Generation { session: 2, server: 5 };
        assert!(Generation { session: 1, server: 5 }.is_older_than(held));
        assert!(Generation { session: 3, server: 4 }.is_older_than(held));
        assert!(!held.is_older_than(held));
        assert!(!Generation { session: 3, server: 5 }.is_older_than(held));
    }

    #[test]
    fn what_is_not_withheld_reads_as_before_there_was_such_a_field() {
        let upstream: Upstream =
            serde_json::from_str(r#"{"url": "http://a.test/mcp", "headers": []}"#).unwrap();
        assert_eq!(upstream.withheld, None);
        assert_eq!(serde_json::to_string(&upstream).unwrap(), r#"{"url":"http://a.test/mcp","headers":[]}"#);
        let withheld = Withheld { reason: Failure::RefNotPermitted, message: "label it".into() };
        let upstream = Upstream { withheld: Some(withheld), ..upstream };
        let text = serde_json::to_string(&upstream).unwrap();
        assert!(text.contains(r#""withheld":{"reason":"RefNotPermitted","message":"label it"}"#), "{text}");
        assert!(serde_json::from_str::<Upstream>(&text).unwrap() == upstream);
    }

    #[test]
    fn a_credential_is_shared_unless_it_is_said_to_be_the_sessions_own() {
        let upstream = Upstream { own_credential: true, ..Upstream::default() };
        let text = serde_json::to_string(&upstream).unwrap();
        assert_eq!(text, r#"{"url":"","headers":[],"ownCredential":true}"#);
        assert!(serde_json::from_str::<Upstream>(&text).unwrap() == upstream);
        assert!(!serde_json::from_str::<Upstream>(r#"{"url":"","headers":[]}"#).unwrap().own_credential);
    }

    #[test]
    fn what_is_trusted_beside_the_public_authorities_reads_back() {
        let tls = UpstreamTls { ca_pem: Some("pem".into()), server_name: None };
        let upstream = Upstream { tls: Some(tls), ..Upstream::default() };
        let text = serde_json::to_string(&upstream).unwrap();
        assert_eq!(text, r#"{"url":"","tls":{"caPem":"pem"},"headers":[]}"#);
        assert!(serde_json::from_str::<Upstream>(&text).unwrap() == upstream);
    }

    #[test]
    fn what_is_to_be_seen_of_a_lost_state_is_only_written_if_it_is_not_the_default() {
        let usual = serde_json::to_value(SessionSpec::default()).unwrap();
        assert_eq!(usual.get("onStateLost"), None);
        let read: SessionSpec = serde_json::from_value(usual).unwrap();
        assert_eq!(read.on_state_lost, OnStateLost::Reinitialize);
        let fail = SessionSpec { on_state_lost: OnStateLost::Fail, ..SessionSpec::default() };
        let written = serde_json::to_value(&fail).unwrap();
        assert_eq!(written["onStateLost"], "Fail");
        assert!(serde_json::from_value::<SessionSpec>(written).unwrap() == fail);
    }

    #[test]
    fn a_subject_of_any_shape_is_the_same_bytes_on_the_other_side() {
        let names =
            ["日本@example.test", "CORP\\u1", "caf\u{e9}", "cafe\u{301}", "\"a\"/b c", &"é".repeat(512)];
        for (at, name) in names.iter().enumerate() {
            let subject = Subject { issuer: String::new(), name: (*name).to_owned() };
            let read: Subject = serde_json::from_str(&serde_json::to_string(&subject).unwrap()).unwrap();
            assert_eq!(read.name.as_bytes(), name.as_bytes());
            assert_eq!(
                names.iter().position(|other| *other == read.name),
                Some(at),
                "{name} is another subject"
            );
        }
    }

    #[test]
    fn a_header_never_shows_its_value() {
        let header = Header { name: "Authorization".into(), value: "Bearer hunter2".into() };
        assert!(!format!("{header:?}").contains("hunter2"));
    }
}
