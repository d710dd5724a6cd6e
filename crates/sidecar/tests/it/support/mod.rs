//! A sidecar to test, its peers and its upstream.

pub mod client;
pub mod faulty;
pub mod harness;
pub mod pki;
pub mod upstream;

use std::time::Duration;

/// How long a condition may take to come true; tests wait for conditions, never for time.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `condition` holds.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    eventually_within(PATIENCE, what, condition).await;
}

/// The same, for so long.
pub async fn eventually_within(patience: Duration, what: &str, condition: impl Fn() -> bool) {
    let reached = tokio::time::timeout(patience, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(reached.await.is_ok(), "not reached: {what}");
}
