//! When a value stands still.

use std::time::{Duration, Instant};

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long it must stand still.
const STILL_FOR: Duration = Duration::from_secs(5);
/// How long it may take until it does.
const BOUND: Duration = Duration::from_mins(1);

/// Looks until the value has moved by no more than `within` for [`STILL_FOR`], and gives the last.
pub async fn settled(what: &str, within: u64, look: impl Fn() -> u64) -> u64 {
    let (begun, mut seen) = (Instant::now(), Vec::new());
    loop {
        let value = look();
        seen.push((begun.elapsed(), value));
        if is_still(&seen, within, STILL_FOR) {
            return value;
        }
        assert!(begun.elapsed() < BOUND, "not within {BOUND:?}: {what} stands still, but {seen:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Whether all values of the last `span` are within `within` of each other; `seen` has each with its time, in order, and must
/// reach back that far.
fn is_still(seen: &[(Duration, u64)], within: u64, span: Duration) -> bool {
    let Some(begin) = seen.last().and_then(|(last, _)| last.checked_sub(span)) else { return false };
    // The last one before the span counts too: it is what the value was when the span began.
    let Some(first) = seen.iter().rposition(|(at, _)| *at <= begin) else { return false };
    let values = seen[first..].iter().map(|(_, value)| *value);
    let (low, high) = values.fold((u64::MAX, 0), |(low, high), value| (low.min(value), high.max(value)));
    high - low <= within
}

#[cfg(test)]
mod tests {
    use super::*;

    fn still(values: &[(u64, u64)]) -> bool {
        let seen: Vec<_> = values.iter().map(|(at, value)| (Duration::from_secs(*at), *value)).collect();
        is_still(&seen, 10, Duration::from_secs(3))
    }

    #[test]
    fn it_is_still_when_it_has_not_moved_for_long_enough() {
        assert!(!still(&[]));
        assert!(!still(&[(0, 5)]));
        assert!(!still(&[(0, 5), (1, 5), (2, 5)]), "not for long enough");
        assert!(still(&[(0, 5), (1, 15), (2, 5), (3, 5)]));
        assert!(!still(&[(0, 5), (1, 16), (2, 5), (3, 5)]), "it moved");
        assert!(still(&[(0, 99), (1, 5), (2, 5), (3, 5), (4, 5)]), "what was before does not count");
    }

    #[test]
    fn a_slow_rise_is_not_still() {
        let rising: Vec<_> = (0..20).map(|second| (second, 4 * second)).collect();
        assert!(!still(&rising));
        assert!(!still(&[(0, 5), (9, 99)]), "what it was when the span began counts");
    }
}
