//! The programs that `make bench` runs in pods beside Berth.
//!
//! [`relay`] is the bare pair: what a call costs if it goes through two hyper processes with mutual TLS between them that do
//! nothing else. [`load`] is the client that sends calls to any of the ways, and says how long they took.

pub mod load;
pub mod percentile;
pub mod relay;
pub mod tls;

/// Whatever ends a program, or one connection of it.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
