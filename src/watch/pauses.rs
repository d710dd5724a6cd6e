//! Pauses of a watch that fails.

use berth_net::backoff::Doubling;
use kube::runtime::utils::Backoff;
use std::time::Duration;

/// First pause: a watch that fails begins with a list of all.
const FIRST: Duration = Duration::from_secs(1);
/// Longest pause: it bounds how much later than the API server the operator is back after an outage.
const LONGEST: Duration = Duration::from_secs(5);

/// The pauses of [`Doubling`], as kube's watches take them; a watch that tells something starts them anew.
pub struct Pauses(Doubling);

impl Default for Pauses {
    fn default() -> Self {
        Self(Doubling::new(FIRST, LONGEST))
    }
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.0.pause())
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.0.start_anew();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_of_any_length_costs_a_few_seconds_after_it() {
        let mut pauses = Pauses::default();
        let all: Vec<Duration> = pauses.by_ref().take(50).collect();
        assert!(all.iter().all(|pause| (FIRST / 2..=LONGEST).contains(pause)), "{all:?}");
        assert!(all.last() >= Some(&(LONGEST / 2)), "{all:?}");
        pauses.reset();
        assert!(pauses.next() <= Some(FIRST));
    }
}
