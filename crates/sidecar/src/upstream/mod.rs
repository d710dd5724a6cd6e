//! The upstream side: one MCP server, reached over sockets that belong to one session.
//!
//! [`Target`] is where, [`Dialer`] opens sockets, [`Credential`] is what requests carry, [`Transport`] sends HTTP,
//! [`handshake`] opens an MCP session and [`Connection`] is one that is open. [`Trouble`] is what can go wrong, in words for
//! people.

mod body;
mod connection;
mod credential;
mod dial;
pub(crate) mod handshake;
mod retry;
mod status;
mod target;
mod transport;
mod trouble;

pub use body::{Body, BodyError};
pub use connection::Connection;
pub use credential::{Carried, Credential};
pub use dial::{DialError, Dialer, DialerError};
pub(crate) use status::{is_session_lost, is_session_lost_message};
pub use target::{Host, Target, TargetError};
pub use transport::{SendError, Transport};
pub(crate) use trouble::Site;
pub use trouble::{Step, Trouble};

/// Largest answer of an upstream, or event of an answer, in bytes.
pub const RESPONSE_LIMIT: usize = 16 * 1024 * 1024;
/// Largest text that explains a refusal, in bytes.
pub(crate) const REFUSAL_LIMIT: usize = 64 * 1024;
