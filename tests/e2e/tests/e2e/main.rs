//! Berth as installed by its chart on a real cluster, in front of real MCP servers. Run with one thread: the gauges of the
//! operator and the gateway are shared.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::float_cmp
)]

mod admission;
mod bounds;
mod canary;
mod churn;
mod clients;
mod conformance;
mod connect;
mod credentials;
mod ending;
mod forgotten;
mod gateway;
mod isolation;
mod lazy;
mod leading;
mod misrouting;
mod network;
mod outages;
mod outcome;
mod quiet;
mod references;
mod refused;
mod restored;
mod revisions;
mod stale;
mod streams;
mod subjects;
mod surviving;
mod tenants;
