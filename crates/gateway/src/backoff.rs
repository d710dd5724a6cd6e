//! The pauses of [`Doubling`], as kube's watches take them.

use berth_net::backoff::Doubling;
use kube::runtime::utils::Backoff;
use std::time::Duration;

/// Pauses between attempts to watch; a watch that tells something starts them anew.
pub struct Pauses(pub Doubling);

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
        let (first, most) = (Duration::from_millis(500), Duration::from_secs(5));
        let mut pauses = Pauses(Doubling::new(first, most));
        let later = pauses.by_ref().nth(10).unwrap();
        assert!((most / 2..=most).contains(&later), "{later:?}");
        pauses.reset();
        let next = pauses.next().unwrap();
        assert!((first / 2..=first).contains(&next), "{next:?}");
    }
}
