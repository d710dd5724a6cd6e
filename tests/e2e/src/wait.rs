//! Waiting for a condition.

use std::future::Future;
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Looks until `condition` gives a value; fails the test after `bound`, with what it waited for.
pub async fn eventually<T, F>(what: &str, bound: Duration, mut condition: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let begun = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(begun.elapsed() < bound, "not within {bound:?}: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
