//! The upstream side: one MCP server, reached over sockets that belong to one session.
//!
//! [`Target`] is where, [`Trust`] is in whom, [`Dialer`] opens sockets, by way of [`Proxies`] where there are such. [`Credential`] is
//! what requests carry, [`Transport`] sends HTTP, `redirect` to where the upstream wants it, [`handshake`] opens an MCP session and
//! [`Connection`] is one that is open. [`Trouble`] is what can go wrong, in words for people.

mod body;
mod connection;
mod credential;
mod dial;
mod families;
pub(crate) mod handshake;
mod proxy;
mod redirect;
mod retry;
mod status;
mod target;
mod transport;
mod trouble;
mod trust;

pub use body::{Body, BodyError};
pub use connection::Connection;
pub(crate) use connection::FIRST_STATE;
pub use credential::{Carried, Credential};
pub use dial::{DialError, Dialer, DialerError};
pub use proxy::{Proxies, ProxyError};
pub(crate) use retry::{MOST_ASKED, asked_to_wait, retry_after};
pub(crate) use status::{Loss, is_session_lost_message, leaves_open, session_loss};
pub use target::{Host, Target, TargetError};
pub use transport::{SendError, Transport};
pub(crate) use trouble::Site;
pub use trouble::{Step, Trouble};
pub use trust::{Trust, TrustError};

/// Largest text that explains a refusal, in bytes.
pub(crate) const REFUSAL_LIMIT: usize = 64 * 1024;
