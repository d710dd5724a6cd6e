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
//! Each of them carries the leader's term in the header [`TERM_HEADER`]. A sidecar remembers the highest that it has seen and
//! refuses a lower one (409, [`RefusalReason::OldTerm`]): a former leader that was paused can do nothing.
//!
//! Gateways speak to the leading operator, over mutual TLS too:
//!
//! | call | meaning |
//! |---|---|
//! | `GET /v1/placements?watch=true` | JSON lines of [`PlacementLine`] |
//! | `POST /v1/sessions/{uid}/wake` | asks for a look at a session whose slot is not where it was; 202, or 404 for one that is not known |
//!
//! The gateway speaks MCP to `/{DATA_PREFIX}/{uid}`; a sidecar that does not hold the session answers 421 before accepting anything.
//! Whoever finds no place for a connection at a server of ours gets 503 with [`NOT_ACCEPTED_HEADER`].

mod end;
mod identity;
mod limits;
mod placement;
mod session;
mod state_lost;
mod watch;

pub use end::{EndPhase, EndReport, EndRequest, EndStep, Outcome};
pub use identity::{
    CA_FILE, CERT_FILE, DATA_PREFIX, GATEWAY_URI, KEY_FILE, NOT_ACCEPTED_HEADER, OPERATOR_DNS_NAME,
    OPERATOR_PORT, OPERATOR_URI, SIDECAR_PORT, TERM_HEADER, server_dns_name,
};
pub use limits::{Limits, ScopeKey};
pub use placement::{PlacementLine, ServerPlacement, SessionPlacements};
pub use session::{
    Generation, Header, ServerKey, SessionSpec, Subject, Timeouts, Upstream, UpstreamTls, Withheld,
};
pub use state_lost::OnStateLost;
pub use watch::{Activity, Failure, Refusal, RefusalReason, SessionReport, SessionState, WatchLine};
