//! Pauses between attempts: each is twice the one before, up to a longest one.

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
        let pause = self.next;
        self.next = (pause * 2).min(self.most);
        pause
    }

    /// An attempt was good: the next pause is the first one again.
    pub fn start_anew(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pause_is_twice_the_one_before_up_to_the_longest() {
        let mut pauses = Doubling::new(Duration::from_millis(200), Duration::from_secs(1));
        let millis = [(); 5].map(|()| pauses.pause().as_millis());
        assert_eq!(millis, [200, 400, 800, 1000, 1000]);
        pauses.start_anew();
        assert_eq!(pauses.pause(), Duration::from_millis(200));
    }
}
