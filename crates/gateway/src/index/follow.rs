//! Waiting for one session to change.

use super::Index;
use crate::entry::Entry;
use std::sync::Arc;
use tokio::sync::watch;

/// Sees the changes of one session. Dropping the last follower of a key forgets that it was followed.
pub struct Follower {
    pub(super) index: Arc<Index>,
    pub(super) key: Box<str>,
    pub(super) changes: Option<watch::Receiver<Option<Arc<Entry>>>>,
}

impl Follower {
    /// The session as it is now; [`Follower::changed`] tells of what comes after.
    pub fn current(&mut self) -> Option<Arc<Entry>> {
        self.changes.as_mut().and_then(|changes| changes.borrow_and_update().clone())
    }

    /// Waits until the session has changed since [`Follower::current`].
    pub async fn changed(&mut self) {
        let changed = match self.changes.as_mut() {
            Some(changes) => changes.changed().await.is_ok(),
            None => false,
        };
        if !changed {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut table = self.index.table();
        self.changes = None;
        if table.followed.get(&self.key).is_some_and(|sender| sender.receiver_count() == 0) {
            table.followed.remove(&self.key);
        }
    }
}
