//! What a sidecar tells of its sessions.

use crate::{EndReport, Generation, ServerKey};
use serde::{Deserialize, Serialize};

/// One line of `GET /v1/sessions?watch=true`: first every session, then `Synced`, then changes as they happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum WatchLine {
    /// A session is as this says now; replaces what was known of it.
    Session(SessionReport),
    /// Every session has been sent; `slots` is how many the pod has.
    #[serde(rename_all = "camelCase")]
    Synced {
        /// Which server and revision the pod serves.
        server: ServerKey,
        /// Sessions that the pod takes at once.
        slots: u32,
    },
    /// Nothing happened lately, the stream is alive. Sent at least every ten seconds.
    Alive,
}

/// Observed state of one session in one sidecar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionReport {
    /// UID of the `AgentSession`.
    pub uid: String,
    /// Generation of the PUT in force.
    pub generation: Generation,
    /// Where its upstream connection stands.
    pub state: SessionState,
    /// The last failure to reach the upstream, until the next success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Text to `failure`: names server and step, no secret, at most 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// No attempt to connect is made before this, in milliseconds since 1970; set while that is in the future.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_retry_unix_millis: Option<u64>,
    /// What it did so far.
    pub activity: Activity,
    /// How its end went, or goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<EndReport>,
}

/// Where a session's upstream connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SessionState {
    /// Slot held, nothing connected: no request has needed the upstream yet, the connection was evicted, or it cannot be
    /// had for now, as `failure` says.
    Idle,
    /// An attempt to connect is in flight.
    Connecting,
    /// The upstream session is established.
    Connected,
    /// The end is under way: no new work.
    Ending,
    /// Only the tombstone is left; the slot is free.
    Ended,
}

/// Counts of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// Client requests other than ping that were accepted.
    pub requests: u64,
    /// Requests in flight.
    pub in_flight: u32,
    /// Connects that were begun.
    pub connects: u64,
}

/// Why the upstream could not be reached or refused, or may not be used. Names follow the reasons of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Failure {
    /// 401 or 403.
    Unauthorized,
    /// `initialize` did not finish within the connect timeout.
    InitializeTimeout,
    /// The answer was not MCP.
    ProtocolError,
    /// 429.
    RateLimited,
    /// No connection, or a server error.
    UpstreamUnreachable,
    /// The certificate is not trusted.
    TLSUntrusted,
    /// The session names no credential, and its server takes one.
    InvalidSpec,
    /// The credential's Secret or key does not exist.
    RefNotFound,
    /// The credential's Secret may not be used.
    RefNotPermitted,
    /// The credential is empty or cannot be sent in a header.
    InvalidCredential,
}

impl Failure {
    /// The reason's text, as in the API and in `data.reason` of JSON-RPC errors.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unauthorized => "Unauthorized",
            Self::InitializeTimeout => "InitializeTimeout",
            Self::ProtocolError => "ProtocolError",
            Self::RateLimited => "RateLimited",
            Self::UpstreamUnreachable => "UpstreamUnreachable",
            Self::TLSUntrusted => "TLSUntrusted",
            Self::InvalidSpec => "InvalidSpec",
            Self::RefNotFound => "RefNotFound",
            Self::RefNotPermitted => "RefNotPermitted",
            Self::InvalidCredential => "InvalidCredential",
        }
    }
}

/// Body of a 409 to a control request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// Why the request was refused.
    pub reason: RefusalReason,
    /// Text that names the thing and the remedy.
    pub message: String,
    /// With [`RefusalReason::OldTerm`]: the highest term that the sidecar has seen. Terms of a Lease that was deleted begin
    /// anew, so the one who really leads has to go past this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
}

/// Why a sidecar refuses a control request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusalReason {
    /// The sender's term is lower than one that this sidecar has seen: another operator leads.
    OldTerm,
    /// Every slot is held.
    Full,
    /// The PUT is older than the one held.
    Stale,
    /// The session is held for another subject, and never changes it.
    SubjectChanged,
    /// The session has ended here: its tombstone stands.
    Ended,
    /// The pod serves another server or revision.
    WrongServer,
    /// The pod is shutting down.
    ShuttingDown,
}
