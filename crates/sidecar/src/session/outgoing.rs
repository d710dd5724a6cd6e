//! Messages to the upstream that are no calls: each may take a socket and memory until it is accepted, so that only so many of a
//! session are on their way at once.

use super::Session;
use crate::budget::Charge;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Such messages at once.
pub(crate) const MAX_OUTGOING: usize = 16;

/// The places of one session.
pub(super) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_OUTGOING)))
    }
}

/// A message on its way, until this is dropped.
pub(crate) struct Outgoing {
    _place: OwnedSemaphorePermit,
    /// Covers the message.
    _held: Charge,
}

impl Session {
    /// Waits for a place for a message of `bytes` bytes; none if there is no memory for it.
    pub(crate) async fn outgoing(&self, bytes: usize) -> Option<Outgoing> {
        let place = self.places.0.clone().acquire_owned().await.ok()?;
        self.covered(place, bytes)
    }

    /// The same without waiting.
    pub(crate) fn outgoing_now(&self, bytes: usize) -> Option<Outgoing> {
        let place = self.places.0.clone().try_acquire_owned().ok()?;
        self.covered(place, bytes)
    }

    fn covered(&self, place: OwnedSemaphorePermit, bytes: usize) -> Option<Outgoing> {
        let mut held = self.shared.budget.charge();
        held.cover(bytes).ok()?;
        Some(Outgoing { _place: place, _held: held })
    }
}
