//! The whole gateway over real sockets on 127.0.0.0/8: raw HTTP clients in front, scripted reviews at its side, scripted
//! sidecars behind over real mutual TLS.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)] // Helpers of tests are tests.

mod access;
mod api_server;
mod client;
mod ending;
mod leader;
mod limits;
mod pki;
mod placements;
mod process;
mod reviews;
mod routing;
mod sidecar;
mod streaming;
mod world;
