//! The real sidecar over real mutual TLS sockets, against a scripted upstream.

// Clippy lets tests do all this, but not the helpers that they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// Values are mostly `json!` literals, which read best when passed as they are.
#![allow(clippy::needless_pass_by_value)]

mod asks;
mod binary;
mod connect;
mod control;
mod credential;
mod end;
mod hang;
mod limits;
mod many;
mod network;
mod recover;
mod relay;
mod sealed;
mod streams;
mod support;
mod term;
