//! The vocabulary of MCP (Model Context Protocol) over streamable HTTP, without sockets.
//!
//! - [`frame`]: finds the few members of a JSON-RPC message that a relay must know, and replaces them without touching
//!   any other byte;
//! - [`sse`]: server-sent events, read incrementally and written;
//! - [`error`]: JSON-RPC error codes and bodies;
//! - [`header`], [`method`], [`version`]: names that the specification fixes.

pub mod error;
pub mod frame;
pub mod header;
pub mod method;
pub mod sse;
