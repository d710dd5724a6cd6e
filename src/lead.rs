//! Whether this process leads. Only the leader writes, and only while its Lease is surely its own.
//!
//! [`elector`] takes and renews the Lease, [`fence`] keeps every request to the API server behind it, and the term goes with
//! every control request, where a sidecar refuses a lower one than it has seen. A leader that was paused finds its time over
//! by its own clock as soon as it goes on, whatever it was about to do.

pub mod elector;
pub mod fence;

use berth_plan::lead::MOST_TERMS;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How far above ours a term can be that a sidecar has seen: no Lease changes hands more often.
const FARTHEST: u64 = 10_000;

/// The standing of this process; clones share it.
#[derive(Clone)]
pub struct Lead {
    shared: Arc<Shared>,
}

struct Shared {
    standing: Mutex<Option<Standing>>,
    led: watch::Sender<bool>,
    lost: CancellationToken,
    /// The term to write is above this: the highest that a sidecar has refused ours for, or one below what we have held.
    above: AtomicU64,
    shutdown: AtomicBool,
}

#[derive(Clone, Copy)]
struct Standing {
    term: u64,
    until: Instant,
}

/// The Lease is not ours any more, or not surely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this operator does not lead any more")]
pub struct NotLeading;

impl Default for Lead {
    fn default() -> Self {
        let shared = Shared {
            standing: Mutex::default(),
            led: watch::Sender::new(false),
            lost: CancellationToken::new(),
            above: AtomicU64::new(0),
            shutdown: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl Lead {
    /// The term, while the Lease is surely ours.
    pub fn term(&self) -> Result<u64, NotLeading> {
        self.standing()
            .filter(|standing| Instant::now() < standing.until)
            .map_or(Err(NotLeading), |s| Ok(s.term))
    }

    /// Waits until the Lease is ours for the first time.
    pub async fn won(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.shared.led.subscribe().wait_for(|led| *led).await;
    }

    /// Cancelled when the Lease was ours and is not any more: the process has to end.
    pub fn lost(&self) -> &CancellationToken {
        &self.shared.lost
    }

    /// Notes that the sidecar of a pod has seen `term`, which is higher than ours. Either we are about to find the Lease gone, or
    /// it was deleted and made anew, and the next renewal goes past that term. One that is too far off is not believed, which is
    /// `false`: a sidecar that lies must not use up the terms there are.
    pub fn outranked(&self, term: u64, pod_uid: &str) -> bool {
        let ours = self.standing().map_or(0, |standing| standing.term);
        if term > ours.saturating_add(FARTHEST).min(MOST_TERMS) {
            tracing::error!(
                term,
                ours,
                pod_uid,
                "a sidecar says that it has seen a term that cannot be; it obeys again once its pod was deleted"
            );
            return false;
        }
        tracing::warn!(term, ours, pod_uid, "a sidecar has seen a higher term");
        self.shared.above.fetch_max(term, Ordering::AcqRel);
        true
    }

    /// Whether Berth is being uninstalled: nothing is placed and no pool is filled.
    pub fn is_shutting_down(&self) -> bool {
        self.shared.shutdown.load(Ordering::Acquire)
    }

    fn above(&self) -> u64 {
        self.shared.above.load(Ordering::Acquire)
    }

    fn standing(&self) -> Option<Standing> {
        *self.shared.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when the Lease is surely ours, if it ever was.
    fn until(&self) -> Option<Instant> {
        self.standing().map(|standing| standing.until)
    }

    fn hold(&self, term: u64, until: Instant) {
        *self.shared.standing.lock().unwrap_or_else(PoisonError::into_inner) = Some(Standing { term, until });
        // Sidecars remember it: whatever becomes of the Lease, this process never goes below.
        self.shared.above.fetch_max(term.saturating_sub(1), Ordering::AcqRel);
        self.shared.led.send_replace(true);
    }

    fn lose(&self) {
        let now = Instant::now();
        if let Some(standing) = &mut *self.shared.standing.lock().unwrap_or_else(PoisonError::into_inner) {
            standing.until = standing.until.min(now);
        }
        self.shared.lost.cancel();
    }

    /// Notes whether Berth is being uninstalled.
    pub fn set_shutting_down(&self, shutdown: bool) {
        self.shared.shutdown.store(shutdown, Ordering::Release);
    }
}

/// The times of an election.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// How long others wait for a holder that renews no more.
    pub duration: Duration,
    /// Pause between two looks at the Lease.
    pub retry: Duration,
    /// How much earlier than others its holder takes its time for over.
    pub margin: Duration,
}

impl Times {
    /// The times for a Lease of that duration.
    pub fn of(duration: Duration) -> Self {
        Self { duration, retry: duration / 7, margin: duration / 5 }
    }
}

#[cfg(test)]
impl Lead {
    /// One that leads for a day, under that term.
    pub fn for_test(term: u64) -> Self {
        let lead = Self::default();
        lead.hold(term, Instant::now() + Duration::from_hours(24));
        lead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_leader_leads_until_its_time_is_over_by_its_own_clock() {
        let lead = Lead::default();
        assert_eq!(lead.term(), Err(NotLeading));
        lead.hold(7, Instant::now() + Duration::from_secs(12));
        lead.won().await;
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(lead.term(), Ok(7));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(lead.term(), Err(NotLeading));
        assert!(!lead.lost().is_cancelled());
    }

    #[test]
    fn a_sidecar_that_lies_does_not_use_up_the_terms() {
        let lead = Lead::for_test(3);
        assert!(!lead.outranked(u64::MAX, "pod") && !lead.outranked(10_004, "pod"));
        assert_eq!(lead.above(), 2, "one below our own");
        assert!(lead.outranked(40, "pod") && lead.outranked(7, "pod"));
        assert_eq!(lead.above(), 40);
        let last = Lead::for_test(MOST_TERMS - 1);
        assert!(last.outranked(MOST_TERMS, "pod") && !last.outranked(MOST_TERMS + 1, "pod"));
    }

    #[tokio::test]
    async fn a_lost_lead_is_over_at_once() {
        let lead = Lead::for_test(3);
        lead.lose();
        assert_eq!((lead.term(), lead.lost().is_cancelled()), (Err(NotLeading), true));
    }
}
