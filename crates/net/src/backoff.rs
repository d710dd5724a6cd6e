//! Pauses between attempts: each is twice the one before, up to a longest one. It lasts between its half and its whole, by
//! chance, so that those who failed together do not come back together.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The pauses.
#[derive(Clone, Debug)]
pub struct Doubling {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Doubling {
    /// Pauses from `first` to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, next: first }
    }

    /// The pause before the next attempt.
    pub fn pause(&mut self) -> Duration {
        self.pause_within(random())
    }

    /// The same, with a number that is given instead of chance: 0 is the half, the greatest the whole.
    pub fn pause_within(&mut self, random: u32) -> Duration {
        let half = self.next / 2;
        self.next = self.next.saturating_mul(2).min(self.most);
        half + half.mul_f64(f64::from(random) / f64::from(u32::MAX))
    }

    /// An attempt was good: the next pause is the first one again.
    pub fn start_anew(&mut self) {
        self.next = self.first;
    }
}

/// Any number; nothing secret comes of it. The standard library keys its hashes by chance, each in another way.
fn random() -> u32 {
    u32::try_from(RandomState::new().hash_one(()) >> 32).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_pause_is_twice_the_one_before_up_to_the_longest() {
        for (random, part) in [(u32::MAX, 1), (0, 2)] {
            let mut pauses = Doubling::new(Duration::from_millis(200), Duration::from_secs(1));
            let millis = [(); 5].map(|()| pauses.pause_within(random).as_millis() * part);
            assert_eq!(millis, [200, 400, 800, 1000, 1000]);
            pauses.start_anew();
            assert_eq!(pauses.pause_within(random).as_millis() * part, 200);
        }
    }

    #[test]
    fn those_who_failed_together_do_not_come_back_together() {
        let whole = Duration::from_secs(1);
        let pauses: Vec<Duration> = (0..64).map(|_| Doubling::new(whole, whole).pause()).collect();
        assert!(pauses.iter().all(|pause| (whole / 2..=whole).contains(pause)), "{pauses:?}");
        assert!(pauses.iter().collect::<HashSet<_>>().len() > 32, "{pauses:?}");
    }
}
