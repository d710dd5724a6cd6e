//! When an object is looked at again.

use berth_net::backoff::Doubling;
use berth_plan::time::spread;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Pause after the first failure; each further one in a row doubles it.
const FIRST: Duration = Duration::from_millis(500);
/// Longest pause.
const LONGEST: Duration = Duration::from_mins(2);
/// A settled object is looked at after this, [`spread`].
const RESYNC: Duration = Duration::from_mins(10);

/// The pauses of objects whose last look failed, by UID. An object without failures takes no room.
#[derive(Default)]
pub struct Failures(Mutex<HashMap<String, Doubling>>);

impl Failures {
    /// Counts a failure and says how long to wait.
    pub fn next_pause(&self, uid: &str) -> Duration {
        let mut pauses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pauses.entry(uid.to_owned()).or_insert_with(|| Doubling::new(FIRST, LONGEST)).pause()
    }

    /// Forgets the failures of an object.
    pub fn clear(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// Forgets objects that do not exist any more. `existing` is asked after those held here are listed.
    pub fn retain(&self, existing: impl FnOnce() -> HashSet<String>) {
        let held: Vec<String> =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect();
        if held.is_empty() {
            return;
        }
        let existing = existing();
        held.iter().filter(|uid| !existing.contains(*uid)).for_each(|uid| self.clear(uid));
    }
}

/// When a settled object is looked at again; spread by its UID, so that they do not come all at once.
pub fn resync(uid: &str) -> Duration {
    spread(RESYNC, uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_a_cap_and_starts_anew_after_success() {
        let failures = Failures::default();
        let (first, longest) = (FIRST / 2..=FIRST, LONGEST / 2..=LONGEST);
        let pauses: Vec<Duration> = (0..12).map(|_| failures.next_pause("a")).collect();
        assert!(first.contains(&pauses[0]) && longest.contains(&pauses[11]), "{pauses:?}");
        assert!(first.contains(&failures.next_pause("b")), "each object has its own");
        failures.clear("a");
        assert!(first.contains(&failures.next_pause("a")));
    }

    #[test]
    fn an_object_that_is_gone_takes_no_room() {
        let failures = Failures::default();
        for uid in ["stays", "gone"] {
            failures.next_pause(uid);
        }
        failures.retain(|| HashSet::from(["stays".to_owned()]));
        assert_eq!(failures.0.lock().unwrap().keys().collect::<Vec<_>>(), ["stays"]);
        assert!((FIRST..=FIRST * 2).contains(&failures.next_pause("stays")));
    }

    #[test]
    fn resyncs_are_spread_over_a_fifth() {
        let all: Vec<Duration> = (0..100).map(|n| resync(&format!("uid-{n}"))).collect();
        assert!(all.iter().all(|span| (RESYNC..RESYNC + RESYNC / 5).contains(span)));
        assert!(all.iter().max() > all.iter().min());
    }
}
