//! The operator's decisions: `(spec, observed, now)` in, values out.
//!
//! No client, no runtime, no clock and no randomness can be reached from here: what a decision depends on is in its
//! parameters, and what it wants done is in its result. The effects are in the operator's `src/`.
//!
//! | question | file |
//! |---|---|
//! | how are objects named, what is a revision | [`name`] |
//! | may this `McpServer` be acted on, with which credential | [`server::validate`] |
//! | what does a pool pod look like | [`server::build`] |
//! | which pods are made and deleted | [`server::pool`] |
//! | what does a pod tell, who holds its slots | [`pod`] |
//! | which pod gets a session | [`session::place`] |
//! | what is sent to the sidecar | [`session::build`] |
//! | how does a session end | [`end`] |
//! | what does status say | [`server::status`], [`session::status`], [`condition`] |

pub mod condition;
pub mod end;
pub mod lead;
pub mod name;
pub mod pod;
pub mod server;
pub mod session;
pub mod text;
pub mod time;
