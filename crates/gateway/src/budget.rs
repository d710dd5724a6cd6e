//! How many bytes of request bodies the process holds at once: whoever has a token can send bodies, so their sum is bounded
//! too, not only each one.

use crate::respond::Refusal;
use prometheus_client::metrics::gauge::Gauge;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// What may be held; clones share it.
#[derive(Clone)]
pub struct Budget {
    left: Arc<Semaphore>,
    wait: Duration,
    held: Gauge,
}

impl Budget {
    /// A budget of `bytes`, of which `held` shows what is in use. Who finds it used up waits as long as `wait`.
    pub fn new(bytes: usize, wait: Duration, held: Gauge) -> Self {
        Self { left: Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))), wait, held }
    }

    /// A share without a byte yet.
    pub fn share(&self) -> Share {
        Share { budget: self.clone(), bytes: 0 }
    }
}

/// The part of the budget that one body takes, given back when dropped.
pub struct Share {
    budget: Budget,
    bytes: u32,
}

impl Share {
    /// Takes `bytes` more. Only what has arrived is to be taken: an announced body then costs others nothing.
    ///
    /// # Errors
    /// [`Refusal::Busy`] when there is no room in time.
    pub async fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        let bytes = u32::try_from(bytes).map_err(|_| Refusal::Busy)?;
        let sum = self.bytes.checked_add(bytes).ok_or(Refusal::Busy)?;
        match timeout(self.budget.wait, self.budget.left.acquire_many(bytes)).await {
            Ok(Ok(permit)) => permit.forget(),
            Ok(Err(_)) | Err(_) => return Err(Refusal::Busy),
        }
        self.bytes = sum;
        self.budget.held.inc_by(bytes.into());
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.left.add_permits(self.bytes as usize);
        self.budget.held.dec_by(self.bytes.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_does_not_fit_in_time_is_refused_and_fits_once_others_are_dropped() {
        let held = Gauge::default();
        let budget = Budget::new(10, Duration::from_millis(10), held.clone());
        let (mut first, mut second) = (budget.share(), budget.share());
        first.grow(4).await.unwrap();
        first.grow(4).await.unwrap();
        assert_eq!(second.grow(3).await, Err(Refusal::Busy));
        second.grow(2).await.unwrap();
        assert_eq!(held.get(), 10);
        drop(first);
        assert_eq!(held.get(), 2);
        second.grow(8).await.unwrap();
        drop(second);
        assert_eq!((held.get(), budget.left.available_permits()), (0, 10));
    }

    #[tokio::test]
    async fn who_waits_goes_on_as_soon_as_there_is_room() {
        let budget = Budget::new(10, Duration::MAX, Gauge::default());
        let (mut first, mut second) = (budget.share(), budget.share());
        first.grow(10).await.unwrap();
        let mut waiting = std::pin::pin!(second.grow(1));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(first);
        waiting.await.unwrap();
    }
}
