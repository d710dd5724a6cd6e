//! The API as the real API server holds it: what it explains, what it refuses, what it keeps from changing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod explain;
mod immutable;
mod refusals;
