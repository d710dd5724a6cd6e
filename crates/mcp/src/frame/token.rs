//! Ids and progress tokens: a JSON string or number, kept as spelled.

use std::ops::Range;

/// Longest id or progress token, in bytes as spelled. A relay keeps them as long as a request runs, and puts the one of its client
/// into each message about it, so that an unbounded one would make much of little. JSON-RPC and MCP set no bound; those in use are
/// numbers and UUIDs.
pub const MAX_TOKEN: usize = 1024;

/// An id or progress token and where it stands in its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    raw: &'a str,
    start: usize,
}

impl<'a> Token<'a> {
    /// The token `raw`, a slice of `text`; none if it is neither a string nor a number.
    pub(super) fn within(text: &'a str, raw: &'a str) -> Option<Self> {
        let first = *raw.as_bytes().first()?;
        if !(first == b'"' || first == b'-' || first.is_ascii_digit()) {
            return None;
        }
        let start = raw.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
        (start + raw.len() <= text.len()).then_some(Self { raw, start })
    }

    /// The JSON text, as spelled.
    pub fn raw(&self) -> &'a str {
        self.raw
    }

    /// Byte range in the message.
    pub fn span(&self) -> Range<usize> {
        self.start..self.start + self.raw.len()
    }

    /// What it is compared by.
    pub fn key(&self) -> TokenKey {
        match serde_json::from_str::<String>(self.raw) {
            Ok(text) => TokenKey::Text(text),
            Err(_) => TokenKey::Number(self.raw.to_owned()),
        }
    }
}

/// What tokens are compared by: strings by their characters, however escaped; numbers as spelled. A string never
/// equals a number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TokenKey {
    /// A string, unescaped.
    Text(String),
    /// A number, as spelled.
    Number(String),
}
