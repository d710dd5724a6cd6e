//! `AgentSession`: one subject's claim on connections to MCP servers.

use crate::{Duration, SecretKeyRef};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whose session it is, which servers it may use, and how it ends.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "AgentSession",
    plural = "agentsessions",
    namespaced,
    doc = "AgentSession is one subject's claim on connections to MCP servers. Deleting it ends everything it held: calls, upstream sessions and slots.",
    status = "AgentSessionStatus",
    derive = "PartialEq",
    shortname = "bses",
    category = "berth",
    printcolumn(name = "Subject", type_ = "string", json_path = ".spec.subject.name"),
    printcolumn(name = "Servers", type_ = "string", json_path = ".spec.servers[*].name"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(oldSelf.end) || (has(self.end) && self.end == oldSelf.end)")
        .message("end is write-once: once set it can be neither changed nor removed")
        .field_path(".end"),
    validation = Rule::new("!has(self.drainTimeout) || duration(self.drainTimeout) <= duration('1h')")
        .message("drainTimeout must be at most 1h: it bounds the end of the session")
        .field_path(".drainTimeout")
)]
pub struct AgentSessionSpec {
    /// Who the session belongs to. Immutable. Who may create sessions chooses their subject: guard `create agentsessions` by RBAC.
    #[x_kube(validation = Rule::new("self == oldSelf").message("subject is immutable: create another AgentSession for another subject"))]
    pub subject: Subject,
    /// The servers that the session may use, each an McpServer of the same namespace.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub servers: Vec<ServerBinding>,
    /// How long a server may be without a slot before its reason Pending becomes BindTimeout, for example 5m. Counted from the creation of the session, and anew from when Ready turns False; while another server keeps the session Ready it does not count. A reason that says more, such as LimitReached, stays. The operator goes on looking.
    #[serde(default = "default_bind_timeout")]
    pub bind_timeout: Duration,
    /// How long running calls may go on when this session ends, for example 10s. Overrides timeouts.drain of its servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<Duration>,
    /// Set to end the session: the operator then deletes it. Write-once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
}

fn default_bind_timeout() -> Duration {
    Duration::from_text("5m")
}

/// Who a session belongs to. Compared byte for byte, so two spellings of one text are two subjects; never used in a name or label.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// Issuer of the identity. Only the empty issuer is supported: the Kubernetes API server of this cluster.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    #[x_kube(
        validation = Rule::new("self == ''")
            .message("subject.issuer must be empty, which means the Kubernetes API server: other issuers are not supported yet")
    )]
    pub issuer: String,
    /// Name of the subject, for example `system:serviceaccount:demo:alice`.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = Rule::new("size(bytes(self)) <= 1024").message("subject.name must be at most 1024 bytes of UTF-8"),
        validation = Rule::new("!self.matches('\\\\p{Cc}')")
            .message("subject.name must not hold control characters, such as line breaks")
    )]
    pub name: String,
}

/// One server that a session may use.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerBinding {
    /// Name of an McpServer of this namespace.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The session's own credential for this server. Required when auth.type of the server is Session. For any other auth.type it is ignored without a word in status: its Secret is not read and nothing of it is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<SessionCredential>,
}

/// Where the session's own credential for a server is. It goes to the upstream in the header that auth.session of the server names.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionCredential {
    /// The Secret of this namespace and the key in it that hold the credential. The Secret must carry the label `berth.dev/credential: session`. A changed value is used from the next request on.
    pub secret_key_ref: SecretKeyRef,
}

/// The wish to end a session, with its reason.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// Why the session ends. A bare delete counts as Cleared.
    pub reason: EndReason,
}

/// Why a session ended: exactly one for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum EndReason {
    /// The work was done.
    Completed,
    /// Somebody stopped it.
    Stopped,
    /// It was deleted without a reason.
    Cleared,
    /// Berth was uninstalled.
    Shutdown,
    /// One of its clocks ran out.
    Expired,
}

impl EndReason {
    /// The text as it stands in specs, Events and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "Completed",
            Self::Stopped => "Stopped",
            Self::Cleared => "Cleared",
            Self::Shutdown => "Shutdown",
            Self::Expired => "Expired",
        }
    }
}

/// What the operator last saw of a session. Whether a connection is up right now is a metric, not status.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentSessionStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Accepted, ResolvedRefs and Ready; Ended while a long end is under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// One entry for each server of the spec, in that order, then those that were removed from it and are still being left, as Ending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub servers: Vec<BindingStatus>,
    /// Pods that the session has left, or lost, while it is not confirmed that nothing of it is left there; at most 16, those that are lost before those that may still answer. The Event at the end of the session names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["uid".into()]))]
    pub unconfirmed: Vec<UnconfirmedPod>,
}

/// A pod that may hold something of a session, such as an upstream session that stays open.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnconfirmedPod {
    /// Name of the McpServer.
    pub server: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// Whether its sidecar was restarted while the session was there: nobody knows any more what it had open upstream.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restarted: bool,
}

/// What became of one server of a session.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BindingStatus {
    /// Name of the McpServer.
    pub name: String,
    /// Where the binding stands.
    pub state: BindingState,
    /// Why it is not Bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Last trouble with this server, without secrets, at most 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Before when no attempt to reach the upstream is made, as earlier ones failed. Only shown for pauses of ten seconds and more; once it has passed, the next call makes an attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_retry_time: Option<Time>,
    /// Revision of the McpServer that the binding was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// URL of this server for this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The pod that holds the slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_ref: Option<PodRef>,
}

/// Where one binding of a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BindingState {
    /// No slot yet.
    Pending,
    /// A slot is held; a call is served or connects lazily.
    Bound,
    /// A slot is held, but the last attempt to reach the upstream failed.
    Degraded,
    /// The end is under way.
    Ending,
}

/// The pod that holds a slot.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod: a pod of the same name made later is another one.
    pub uid: String,
    /// IP address of the pod.
    pub address: String,
    /// UID of the McpServer: the name in the pod's serving certificate.
    pub server_uid: String,
}
