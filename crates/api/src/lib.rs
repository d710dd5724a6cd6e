//! API types of group `berth.dev`, version `v1alpha1`.
//!
//! Types only: no client and no runtime can be reached from here. The CRDs in `crds/` are generated from this crate
//! by `cargo run -p berth-api --bin crds` and checked against it by `tests/crds_in_sync.rs`.

// Docs of the API types become the text of `kubectl explain`, which shows no markup; columns repeat `type_ = "string"`.
#![allow(clippy::doc_markdown, clippy::duplicated_attributes)]

mod agent_session;
mod byte_size;
mod condition;
mod duration;
pub mod label;
mod limits;
mod mcp_server;
mod tls;

pub use agent_session::{
    AgentSession, AgentSessionSpec, AgentSessionStatus, BindingState, BindingStatus, End, EndReason, PodRef,
    ServerBinding, SessionCredential, Subject, UnconfirmedPod,
};
pub use byte_size::ByteSize;
pub use condition::{ConditionType, Reason};
pub use duration::Duration;
pub use limits::{Limits, OnStateLost};
pub use mcp_server::{
    Auth, AuthType, HttpTransport, McpServer, McpServerSpec, McpServerStatus, Pool, SecretKeyRef,
    SessionAuth, SharedAuth, Timeouts, Transport, TransportType,
};
pub use tls::{CaKind, CaRef, Tls};

/// The API group of every kind here.
pub const GROUP: &str = "berth.dev";
/// The one served version.
pub const VERSION: &str = "v1alpha1";
