//! Bounds on time that come from outside.

use std::time::Duration;

/// Longest time that is reckoned with; more could overflow the clock.
const LONGEST: Duration = Duration::from_hours(365 * 24);

/// So many milliseconds, at most a year.
pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_overflows_the_clock() {
        assert_eq!(millis(1_500), Duration::from_millis(1_500));
        assert!(tokio::time::Instant::now().checked_add(millis(u64::MAX)).is_some());
    }
}
