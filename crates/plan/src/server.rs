//! Decisions on `McpServer`.

pub mod authorities;
pub mod build;
pub mod credential;
pub mod network;
pub mod pool;
pub mod status;
pub mod validate;

#[cfg(test)]
pub(crate) mod fixture;
