//! The leading operator as the gateway sees it. Nothing depends on it: what it tells comes earlier than the status of a
//! session, which is enough to route by.
//!
//! [`lease`] knows where it is, [`stream`] takes what it says of places into the index, [`wake`] asks it to look at a
//! session.

pub mod lease;
pub mod stream;
pub mod wake;

use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;

/// Where the leading operator serves gateways, if that is known; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Leader(Arc<watch::Sender<Option<SocketAddr>>>);

impl Leader {
    /// Where it is.
    pub fn address(&self) -> Option<SocketAddr> {
        *self.0.borrow()
    }

    /// It is there now.
    pub fn set(&self, address: Option<SocketAddr>) {
        self.0.send_if_modified(|known| std::mem::replace(known, address) != address);
    }

    /// Follows it; what is given back is told of another address only.
    pub fn follow(&self) -> watch::Receiver<Option<SocketAddr>> {
        self.0.subscribe()
    }
}
