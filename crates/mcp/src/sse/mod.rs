//! Server-sent events as the WHATWG HTML standard defines them.

mod decode;
mod encode;

pub use decode::{Decoder, MAX_FIELD, TooLarge};
pub use encode::{COMMENT, encode};

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Value of `event`, if there was one.
    pub event: Option<String>,
    /// Value of `id`, if there was one in this event.
    pub id: Option<String>,
    /// Value of `retry`, in milliseconds, if there was one in this event.
    pub retry_millis: Option<u64>,
    /// The `data` lines joined by line feeds. Empty in an event that only carries an id or a retry time, which MCP
    /// servers send to make a stream resumable.
    pub data: String,
}

#[cfg(test)]
mod tests;
