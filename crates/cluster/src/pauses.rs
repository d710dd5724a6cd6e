//! Pauses of a watch that fails.

use berth_net::backoff::Doubling;
use kube::runtime::utils::Backoff;
use std::time::Duration;

/// Pauses between attempts to watch, as kube's watches take them; a watch that tells something starts them anew.
pub struct Pauses(Doubling);

impl Pauses {
    /// Pauses of `first` at first, which double up to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self(Doubling::new(first, longest))
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
    fn what_a_watch_tells_starts_its_pauses_anew() {
        let (first, longest) = (Duration::from_millis(500), Duration::from_secs(5));
        let mut pauses = Pauses::new(first, longest);
        let all: Vec<Duration> = pauses.by_ref().take(50).collect();
        assert!(all.iter().all(|pause| (first / 2..=longest).contains(pause)), "{all:?}");
        assert!(all.last() >= Some(&(longest / 2)), "{all:?}");
        pauses.reset();
        let next = pauses.next().unwrap();
        assert!((first / 2..=first).contains(&next), "{next:?}");
    }
}
