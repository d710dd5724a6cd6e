//! What every Berth binary needs around its own work: mutual TLS between the parts, a bounded accept loop, a client to
//! peers, the lines that they stream and the pauses between attempts, health and metrics, the allocator, logging and shutdown. Nothing here
//! knows Kubernetes or MCP.

pub mod admin;
pub mod backoff;
pub mod client;
mod connector;
pub mod error;
pub mod feed;
pub mod identity;
pub mod lines;
pub mod metrics;
pub mod peer;
mod pool;
pub mod process;
pub mod runtime;
pub mod serve;
pub mod shutdown;
pub mod socket;
pub mod telemetry;
pub mod watch;
