//! The sidecar: the only holder of connections to one upstream MCP server.
//!
//! | part | what |
//! |---|---|
//! | [`sidecar`] | everything put together: routes and who may use them |
//! | [`budget`] | the memory for message bodies, shared by all sessions |
//! | `control` | the operator's API: PUT, DELETE, list and watch |
//! | `registry` | all sessions: slots, tombstones, news |
//! | `session` | one session: its state machine, connect, calls, scopes, end |
//! | [`upstream`] | HTTP and MCP towards the upstream |
//! | `relay` | MCP towards clients, by way of the gateway |
//!
//! It speaks the contract of `berth-wire` and never links a Kubernetes client.

pub mod args;
mod bounds;
pub mod budget;
mod control;
mod fault;
#[cfg(test)]
mod fixture;
pub mod metrics;
mod registry;
mod relay;
pub mod run;
mod session;
pub mod sidecar;
mod sync;
pub mod upstream;
