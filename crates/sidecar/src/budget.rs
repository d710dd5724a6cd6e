//! The memory of the process for message bodies, shared by all its sessions.
//!
//! Each body is charged while it is held, an answer until its last byte has gone to the client, so that many large bodies at
//! once are refused one by one instead of ending the whole process.

use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit of the budget, in bytes.
const UNIT: usize = 1024;
/// How often a body is held for a moment: as it came, and as it goes on.
pub(crate) const COPIES: usize = 2;

/// How many bytes of bodies may be held at once; clones share it.
#[derive(Clone)]
pub struct Budget {
    whole: usize,
    left: Arc<Semaphore>,
}

/// The budget is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the sidecar's memory for messages is used up; try again when other requests are over; if this lasts, lower \
     pool.sessionsPerPod or the sizes in limits of the McpServer"
)]
pub struct NoRoom;

impl Budget {
    /// A budget of so many MiB.
    pub fn mebibytes(mebibytes: u16) -> Self {
        let units = usize::from(mebibytes) * 1024;
        Self { whole: units * UNIT, left: Arc::new(Semaphore::new(units)) }
    }

    /// Bytes that there are.
    pub fn whole(&self) -> usize {
        self.whole
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.left.available_permits() * UNIT
    }

    /// A charge of nothing yet.
    pub(crate) fn charge(&self) -> Charge {
        Charge { budget: self.clone(), permit: None }
    }
}

/// A part of the budget, given back when dropped.
pub(crate) struct Charge {
    budget: Budget,
    permit: Option<OwnedSemaphorePermit>,
}

impl Charge {
    /// Grows to cover `bytes`; never shrinks.
    pub(crate) fn cover(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = bytes.div_ceil(UNIT).saturating_sub(held);
        if missing == 0 {
            return Ok(());
        }
        let missing = u32::try_from(missing).map_err(|_| NoRoom)?;
        let more = self.budget.left.clone().try_acquire_many_owned(missing).map_err(|_| NoRoom)?;
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            None => self.permit = Some(more),
        }
        Ok(())
    }

    /// Covers `bytes` and no more.
    pub(crate) fn fit(&mut self, bytes: usize) -> Result<(), NoRoom> {
        if let Some(permit) = &mut self.permit {
            drop(permit.split(permit.num_permits().saturating_sub(bytes.div_ceil(UNIT))));
        }
        self.cover(bytes)
    }

    /// What is charged so far; this one is empty again.
    pub(crate) fn take(&mut self) -> Self {
        Self { budget: self.budget.clone(), permit: self.permit.take() }
    }

    /// Bytes that give the charge back when the last of them is dropped.
    pub(crate) fn attach(self, content: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Charged { content, _charge: self })
    }
}

struct Charged<T> {
    content: T,
    _charge: Charge,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Charged<T> {
    fn as_ref(&self) -> &[u8] {
        self.content.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_and_what_is_dropped_is_free_again() {
        let budget = Budget::mebibytes(1);
        let (mut one, mut two) = (budget.charge(), budget.charge());
        one.cover(600 * UNIT).unwrap();
        one.cover(10).unwrap();
        assert_eq!(two.cover(425 * UNIT), Err(NoRoom));
        two.cover(424 * UNIT).unwrap();
        assert_eq!(budget.left(), 0);
        drop(one);
        two.cover(1024 * UNIT).unwrap();
        assert_eq!(budget.left(), 0);
        two.fit(UNIT + 1).unwrap();
        assert_eq!(budget.left(), 1022 * UNIT);
        two.fit(3 * UNIT).unwrap();
        assert_eq!(budget.left(), 1021 * UNIT);
        two.fit(0).unwrap();
        assert_eq!((budget.left(), budget.whole()), (1024 * UNIT, 1024 * UNIT));
        drop(two);
        assert_eq!(budget.left(), 1024 * UNIT);
    }

    #[test]
    fn bytes_keep_their_charge_until_the_last_of_them_is_dropped() {
        let budget = Budget::mebibytes(1);
        let mut charge = budget.charge();
        charge.cover(1).unwrap();
        let bytes = charge.take().attach("hello");
        charge.cover(1).unwrap();
        drop(charge);
        let part = bytes.slice(1..3);
        drop(bytes);
        assert_eq!((&part[..], budget.left()), (&b"el"[..], 1023 * UNIT));
        drop(part);
        assert_eq!(budget.left(), 1024 * UNIT);
    }
}
