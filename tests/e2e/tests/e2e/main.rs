//! Berth as installed by its chart on a real cluster, in front of real MCP servers. Run with one thread: the gauges of the
//! operator and the gateway are shared.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::float_cmp
)]

mod clients;
mod conformance;
mod credentials;
mod ending;
mod gateway;
mod isolation;
mod lazy;
mod leading;
mod outages;
mod quiet;
mod references;
mod restored;
mod stale;
mod subjects;
mod surviving;
mod tenants;
