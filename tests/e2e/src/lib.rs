//! What the tests on a real cluster share: a namespace for each test, the probe and its books, sessions, a raw MCP client, and
//! the metrics of Berth's own pods.
//!
//! Environment: `KUBECONFIG` (the cluster), `BERTH_GATEWAY` (base URL of the gateway, default `http://127.0.0.1:18080`),
//! `BERTH_IMAGE_PROBE` (image of the probe). `BERTH_KEEP=1` keeps what failed tests leave: namespaces, logs.

// A test helper that cannot go on says so by a panic: that is what fails the test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::indexing_slicing,
    clippy::float_cmp
)]

mod baseline;
pub mod conformance;
mod cutter;
mod inside;
mod kubectl;
mod late;
mod live;
mod mcp;
mod metrics;
mod namespace;
mod operator;
mod pod;
mod probe;
mod process;
mod proxy;
mod reference;
mod scale;
mod session;
mod tls;
mod user;
mod wait;
mod way;
mod writes;

pub use baseline::{ends_and_leaves_nothing, nothing_is_open, wait_for_baseline};
pub use cutter::Cutter;
pub use kubectl::{Printed, kubectl};
pub use late::{LateOperator, LateOperators};
pub use live::Live;
pub use mcp::{Answer, McpClient, gateway_url, initialize, post, tool_call, tool_call_with, try_post};
pub use metrics::{Metrics, pod_metrics, system_metrics};
pub use namespace::{TestNamespace, in_namespace, system_namespace};
pub use operator::{
    give_lease_back, leader, leader_after, lease, operator_log, scale, with_replicas, without_operator,
};
pub use pod::is_ready;
pub use probe::{Books, Probe};
pub use process::{Process, kill};
pub use proxy::Proxy;
pub use reference::start_reference;
pub use scale::{Dice, figure, rounds, seed};
pub use session::{POOL, mcp_server, session, sidecar, sidecars, subject_of, used_session, wait_until_ready};
pub use tls::Holder;
pub use user::token_of_user;
pub use wait::eventually;
pub use way::Moment;
pub use writes::{api_writes, forbidden_creates};
