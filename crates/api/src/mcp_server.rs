//! `McpServer`: a pool of sidecar pods for one upstream MCP server.

use crate::{Duration, Limits, OnStateLost, Tls};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What an upstream MCP server is, how it is reached, and how many sessions may use it.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "McpServer",
    plural = "mcpservers",
    namespaced,
    doc = "McpServer is a pool of sidecar pods for one upstream MCP server. Each AgentSession that names it gets a connection of its own in one of these pods.",
    status = "McpServerStatus",
    derive = "PartialEq",
    shortname = "bsrv",
    category = "berth",
    printcolumn(name = "Transport", type_ = "string", json_path = ".spec.transport.type"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Pods", type_ = "integer", json_path = ".status.pods"),
    printcolumn(name = "Sessions", type_ = "integer", json_path = ".status.sessions"),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.freeSlots"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')")
        .message("metadata.name must be a DNS label of at most 63 characters without dots: it is a part of the session's URL")
)]
#[serde(rename_all = "camelCase")]
pub struct McpServerSpec {
    /// How the upstream is reached.
    pub transport: Transport,
    /// What a client sees when the upstream forgot its session: `Reinitialize` opens a new one behind its back and marks the next result, `Fail` ends the client's own session with 404, so that it starts anew. Applies to sessions that are there, too.
    #[serde(default)]
    pub on_state_lost: OnStateLost,
    /// How the upstream knows who calls.
    #[serde(default)]
    pub auth: Auth,
    /// How long each step may take.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// How much one session may ask at once. A change applies to sessions that are there, too.
    #[serde(default)]
    pub limits: Limits,
    /// How many pods and slots are kept, and how many sessions may hold one.
    #[serde(default)]
    pub pool: Pool,
}

/// The way to the upstream: a type and the member of that name.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.type != 'Http' || has(self.http)")
        .message("transport.http is required when transport.type is Http: set transport.http.url")
)]
pub struct Transport {
    /// Kind of the transport.
    #[serde(rename = "type")]
    pub type_: TransportType,
    /// A remote server that speaks streamable HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpTransport>,
}

/// Kinds of transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TransportType {
    /// Streamable HTTP to a URL.
    Http,
}

/// A remote server that speaks streamable HTTP.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.tls) || self.url.startsWith('https://')")
        .message("transport.http.tls may only be set when transport.http.url begins with https://")
)]
pub struct HttpTransport {
    /// The MCP endpoint, for example `http://everything.demo.svc:3001/mcp`. Credentials do not belong here: use `auth`.
    #[schemars(length(min = 8, max = 2048))]
    #[x_kube(
        validation = Rule::new(URL)
            .message("transport.http.url must be an absolute http:// or https:// URL with a host of ASCII letters (others as punycode), an optional numeric port from 1 to 65535, and no user information, fragment, spaces or characters that a URL must escape"),
        validation = Rule::new(LABELS)
            .message("transport.http.url: a label of the host has at most 63 characters")
    )]
    pub url: String,
    /// How the upstream's certificate is checked. Unset means: by the public authorities, against the host of the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
}

/// How the upstream knows who calls: a type and the member of that name.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.type != 'Shared' || has(self.shared)")
        .message("auth.shared is required when auth.type is Shared: set auth.shared.secretKeyRef"),
    validation = Rule::new("self.type == 'Shared' || !has(self.shared)")
        .message("auth.shared may only be set when auth.type is Shared"),
    validation = Rule::new("self.type != 'Session' || has(self.session)")
        .message("auth.session is required when auth.type is Session: set auth.session, where {} means Authorization: Bearer"),
    validation = Rule::new("self.type == 'Session' || !has(self.session)")
        .message("auth.session may only be set when auth.type is Session")
)]
pub struct Auth {
    /// Kind of authentication: `None` sends no credential, `Shared` sends one credential for all sessions, `Session` sends each session's own credential.
    #[serde(rename = "type", default)]
    pub type_: AuthType,
    /// One credential for all sessions of this server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedAuth>,
    /// How each session's own credential, spec.servers[].credential of the AgentSession, is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionAuth>,
}

/// Kinds of upstream authentication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AuthType {
    /// No credential is sent.
    #[default]
    None,
    /// One credential for all sessions.
    Shared,
    /// Each session's own credential.
    Session,
}

/// One credential for all sessions of a server.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedAuth {
    /// The Secret of this namespace and the key in it that hold the credential. The Secret must carry the label `berth.dev/credential: server`.
    pub secret_key_ref: SecretKeyRef,
    /// Header that carries the credential. Unset means Authorization.
    #[serde(default = "authorization")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))]
    #[x_kube(
        validation = Rule::new(FREE_HEADER)
            .message("auth.shared.header must not be one that HTTP or MCP itself sets: use Authorization or a header of the server's own, such as X-Api-Key")
    )]
    pub header: String,
    /// Word before the credential in the header, followed by a space. Unset means Bearer; empty sends the credential alone.
    #[serde(default = "bearer")]
    #[schemars(length(max = 64), regex(pattern = r"^[A-Za-z0-9._~+/-]*$"))]
    pub scheme: String,
}

/// How each session's own credential is sent.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionAuth {
    /// Header that carries the credential. Unset means Authorization.
    #[serde(default = "authorization")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))]
    #[x_kube(
        validation = Rule::new(FREE_HEADER)
            .message("auth.session.header must not be one that HTTP or MCP itself sets: use Authorization or a header of the server's own, such as X-Api-Key")
    )]
    pub header: String,
    /// Word before the credential in the header, followed by a space. Unset means Bearer; empty sends the credential alone.
    #[serde(default = "bearer")]
    #[schemars(length(max = 64), regex(pattern = r"^[A-Za-z0-9._~+/-]*$"))]
    pub scheme: String,
}

/// Rule of a URL that a sidecar can dial. A host whose last label is a number must be an IPv4 address (WHATWG URL, section 3.5).
const URL: &str = concat!(
    "self.matches('^https?://(",
    "((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])[.]){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
    "|([A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?[.])*([0-9]+-*)*[A-Za-z_]([A-Za-z0-9_-]*[A-Za-z0-9_])?[.]?",
    "|[[][0-9A-Fa-f:.]+[]]",
    ")(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?",
    "([/?][]![$-;=?-Z_a-z~]*)?$')",
);

/// Rule of its host's labels (RFC 1035, section 2.3.4).
const LABELS: &str = "!self.matches('^https?://[^/?]*[A-Za-z0-9_-]{64}')";

/// Rule of a header that neither HTTP nor MCP itself sets.
const FREE_HEADER: &str = "!(self.lowerAscii() in ['accept', 'accept-encoding', 'connection', 'content-encoding', 'content-length', 'content-type', 'date', 'expect', 'host', 'keep-alive', 'last-event-id', 'mcp-method', 'mcp-name', 'mcp-protocol-version', 'mcp-session-id', 'proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade'])";

fn authorization() -> String {
    "Authorization".to_owned()
}

fn bearer() -> String {
    "Bearer".to_owned()
}

/// A key of a Secret in the same namespace.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in the Secret's data; what it holds is sent in a header and has 16 KiB at most.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// How long each step of a connection or call may take.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("duration(self.connect) > duration('0s') && duration(self.connect) <= duration(self.request)")
        .message("timeouts.connect must be more than 0s and at most timeouts.request"),
    validation = Rule::new("duration(self.request) <= duration(self.requestMax)")
        .message("timeouts.request must be at most timeouts.requestMax"),
    validation = Rule::new("duration(self.drain) <= duration('1h') && duration(self.close) <= duration('10m')")
        .message("timeouts.drain must be at most 1h and timeouts.close at most 10m: they bound the end of a session")
)]
pub struct Timeouts {
    /// How long connecting to the upstream may take as a whole, from resolving its name to the end of `initialize`; for example 30s or 1m30s.
    #[serde(default = "Timeouts::default_connect")]
    pub connect: Duration,
    /// How long a request may go without a result or progress, for example 5m. Each progress notification starts it anew.
    #[serde(default = "Timeouts::default_request")]
    pub request: Duration,
    /// How long a request may take in all, however much progress it reports, for example 30m.
    #[serde(default = "Timeouts::default_request_max")]
    pub request_max: Duration,
    /// How long running calls may go on when a session ends, for example 30s. After that they are cancelled.
    #[serde(default = "Timeouts::default_drain")]
    pub drain: Duration,
    /// How long the upstream may take to confirm the end of its session, for example 5s.
    #[serde(default = "Timeouts::default_close")]
    pub close: Duration,
}

impl Timeouts {
    fn default_connect() -> Duration {
        Duration::from_text("30s")
    }
    fn default_request() -> Duration {
        Duration::from_text("5m")
    }
    fn default_request_max() -> Duration {
        Duration::from_text("30m")
    }
    fn default_drain() -> Duration {
        Duration::from_text("30s")
    }
    fn default_close() -> Duration {
        Duration::from_text("5s")
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Self::default_connect(),
            request: Self::default_request(),
            request_max: Self::default_request_max(),
            drain: Self::default_drain(),
            close: Self::default_close(),
        }
    }
}

/// How many pods and slots a server keeps, and how many sessions may hold one.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// Number of free slots kept ready for the next sessions.
    #[serde(default = "Pool::default_warm")]
    #[schemars(range(min = 0, max = 1000))]
    pub warm: i32,
    /// Number of sessions that share one pod; each has an upstream connection of its own. With 1, a pod serves a single session and is deleted after it. Unset means 50; status.sessionsPerPod shows the value in force. A change applies to pods that are made afterwards; one that holds sessions keeps its number until the last of them ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub sessions_per_pod: Option<i32>,
    /// Maximum number of pods of this server.
    #[serde(default = "Pool::default_max_pods")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_pods: i32,
    /// Maximum number of sessions that hold a slot at once. Unset means as many as maxPods pods have slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_sessions: Option<i32>,
    /// Maximum number of sessions of one subject that hold a slot at once. Unset means no such bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_sessions_per_subject: Option<i32>,
}

impl Pool {
    fn default_warm() -> i32 {
        1
    }
    fn default_max_pods() -> i32 {
        20
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            warm: Self::default_warm(),
            sessions_per_pod: None,
            max_pods: Self::default_max_pods(),
            max_sessions: None,
            max_sessions_per_subject: None,
        }
    }
}

/// What the operator last saw of a server's pool.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct McpServerStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Hash of what names pods and connections (transport, auth); everything else applies live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Accepted, ResolvedRefs and Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Pods of the pool, whatever their state.
    #[serde(default)]
    pub pods: i32,
    /// Pods that take sessions.
    #[serde(default)]
    pub ready_pods: i32,
    /// Sessions that hold a slot.
    #[serde(default)]
    pub sessions: i32,
    /// Free slots in ready pods.
    #[serde(default)]
    pub free_slots: i32,
    /// Slots of each pod that is made now; older pods keep the number that they were made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions_per_pod: Option<i32>,
}
