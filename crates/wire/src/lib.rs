//! The control contract between operator, sidecar and gateway.
//!
//! Serde types only. The operator speaks to each sidecar over mutual TLS:
//!
//! | call | meaning |
//! |---|---|
//! | `PUT /v1/sessions/{uid}` | [`SessionSpec`]: the whole desired state; idempotent; answers [`SessionReport`] or [`Refusal`] (409) |
//! | `DELETE /v1/sessions/{uid}` | [`EndRequest`] as query; starts or joins the end; 200 [`EndReport`] when over, 202 [`EndReport`] while it runs |
//! | `GET /v1/sessions?watch=true` | JSON lines of [`WatchLine`]; without `watch` one JSON array of [`SessionReport`] |
//!
//! The gateway speaks MCP to `/{DATA_PREFIX}/{uid}`; a sidecar that does not hold the session answers 421 before accepting anything.

mod end;
mod identity;
mod session;
mod watch;

pub use end::{EndPhase, EndReport, EndRequest, EndStep, Outcome};
pub use identity::{
    CA_FILE, CERT_FILE, DATA_PREFIX, GATEWAY_URI, KEY_FILE, OPERATOR_URI, SIDECAR_PORT, server_dns_name,
};
pub use session::{Generation, Header, ServerKey, SessionSpec, Subject, Timeouts, Upstream};
pub use watch::{Activity, Failure, Refusal, RefusalReason, SessionReport, SessionState, WatchLine};
