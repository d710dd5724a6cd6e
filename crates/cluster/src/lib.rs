//! The way to the API server that the operator and the gateway share: a client whose memory is bounded, and the pauses of watches.

mod client;
mod pauses;

pub use client::builder;
pub use pauses::Pauses;
