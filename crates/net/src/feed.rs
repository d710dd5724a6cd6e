//! News for those who watch. A slow reader is not queued for: it gets the newest state of each thing that changed meanwhile.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// How long news that can wait is collected.
const COLLECT: Duration = Duration::from_secs(1);

/// How soon a watcher should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// The state changed.
    Now,
    /// Only counts changed.
    Soon,
}

/// Tells all watchers which things changed, by their UIDs.
#[derive(Default)]
pub struct Feed {
    watchers: Mutex<Vec<Weak<Watcher>>>,
}

/// What changed since one watcher last looked.
#[derive(Default)]
pub struct Watcher {
    changed: Mutex<HashSet<Arc<str>>>,
    urgent: Notify,
}

impl Feed {
    /// A watcher of all that changes from now on.
    pub fn watch(&self) -> Arc<Watcher> {
        let watcher = Arc::new(Watcher::default());
        let mut watchers = lock(&self.watchers);
        watchers.retain(|other| other.strong_count() > 0);
        watchers.push(Arc::downgrade(&watcher));
        watcher
    }

    /// Notes that `uid` changed.
    pub fn mark(&self, uid: &Arc<str>, urgency: Urgency) {
        for watcher in lock(&self.watchers).iter().filter_map(Weak::upgrade) {
            lock(&watcher.changed).insert(uid.clone());
            if urgency == Urgency::Now {
                watcher.urgent.notify_one();
            }
        }
    }
}

impl Watcher {
    /// Waits for news: urgent ones at once, others after a second. Returns without any after that second.
    pub async fn changed(&self) -> HashSet<Arc<str>> {
        let _ = tokio::time::timeout(COLLECT, self.urgent.notified()).await;
        std::mem::take(&mut *lock(&self.changed))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_watcher_gets_each_thing_once() {
        let feed = Feed::default();
        let watcher = feed.watch();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        for _ in 0..1_000 {
            feed.mark(&a, Urgency::Now);
            feed.mark(&b, Urgency::Soon);
        }
        assert_eq!(watcher.changed().await, HashSet::from([a, b]));
    }

    #[tokio::test(start_paused = true)]
    async fn news_that_can_wait_is_told_within_the_second() {
        let feed = Feed::default();
        let watcher = feed.watch();
        let before = tokio::time::Instant::now();
        feed.mark(&"a".into(), Urgency::Soon);
        assert_eq!(watcher.changed().await.len(), 1);
        assert_eq!(before.elapsed(), COLLECT);
        assert!(watcher.changed().await.is_empty());
    }
}
