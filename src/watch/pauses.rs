//! Pauses of a watch that fails.

use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use std::time::Duration;

/// Longest pause: it bounds how much later than the API server the operator is back after an outage.
const LONGEST: Duration = Duration::from_secs(5);

/// kube's own pauses with their jitter, none longer than five seconds.
#[derive(Default)]
pub struct Pauses(DefaultBackoff);

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|pause| pause.min(LONGEST))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_of_any_length_costs_a_few_seconds_after_it() {
        let mut pauses = Pauses::default();
        let first = pauses.next().unwrap();
        let later: Vec<Duration> = pauses.by_ref().take(50).collect();
        assert!(first < LONGEST && later.iter().all(|pause| *pause <= LONGEST), "{first:?} {later:?}");
        assert_eq!(later.last(), Some(&LONGEST));
        pauses.reset();
        assert!(pauses.next().unwrap() < LONGEST);
    }
}
