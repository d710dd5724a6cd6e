//! Every session that the API server has told of, by `namespace/name`.
//!
//! Readers take one entry; whoever waits for a change of one session follows it and is woken by that session alone.
//! Nothing is forgotten because a watch broke: only a deletion, or a list that was received to its end, removes entries.

use crate::entry::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The sessions.
#[derive(Default)]
pub struct Index {
    table: Mutex<Table>,
    synced: watch::Sender<bool>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<Box<str>, Arc<Entry>>,
    followed: HashMap<Box<str>, watch::Sender<Option<Arc<Entry>>>>,
    /// Keys that the list under way has named so far.
    listed: HashSet<Box<str>>,
}

impl Index {
    /// The session of that key.
    pub fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.table().entries.get(key).cloned()
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.table().entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Follows the session of that key, whether it exists yet or not.
    pub fn follow(self: &Arc<Self>, key: &str) -> Follower {
        let mut table = self.table();
        let current = table.entries.get(key).cloned();
        let changes = if let Some(sender) = table.followed.get(key) {
            sender.subscribe()
        } else {
            let (sender, receiver) = watch::channel(current);
            table.followed.insert(key.into(), sender);
            receiver
        };
        drop(table);
        Follower { index: self.clone(), key: key.into(), changes: Some(changes) }
    }

    /// Takes in that a session is so now.
    pub fn apply(&self, key: &str, entry: Entry) {
        self.table().set(key, Some(Arc::new(entry)));
    }

    /// Takes in that a session is gone.
    pub fn remove(&self, key: &str) {
        self.table().set(key, None);
    }

    /// A list begins: what it names before [`Index::end_list`] stays.
    pub fn begin_list(&self) {
        self.table().listed.clear();
    }

    /// The list names this session.
    pub fn listed(&self, key: &str) {
        self.table().listed.insert(key.into());
    }

    /// The list is complete: sessions that it did not name are gone.
    pub fn end_list(&self) {
        let mut table = self.table();
        let listed = std::mem::take(&mut table.listed);
        let gone: Vec<_> = table.entries.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        for key in gone {
            table.set(&key, None);
        }
        drop(table);
        self.synced.send_replace(true);
    }

    /// Whether a list was ever received to its end: before that a session that is not here may exist all the same.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits until [`Index::is_synced`].
    pub async fn synced(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// A panic while the lock was held leaves a table that is still whole: every change is a single call.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn set(&mut self, key: &str, entry: Option<Arc<Entry>>) {
        match &entry {
            Some(entry) => self.entries.insert(key.into(), entry.clone()),
            None => self.entries.remove(key),
        };
        if let Some(sender) = self.followed.get(key) {
            sender.send_replace(entry);
        }
    }
}

/// Sees the changes of one session. Dropping the last follower of a key forgets that it was followed.
pub struct Follower {
    index: Arc<Index>,
    key: Box<str>,
    changes: Option<watch::Receiver<Option<Arc<Entry>>>>,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(uid: &str) -> Entry {
        Entry {
            uid: uid.into(),
            issuer: "".into(),
            subject: "alice".into(),
            deleting: false,
            servers: [].into(),
        }
    }

    fn uid(index: &Index, key: &str) -> Option<String> {
        index.get(key).map(|entry| entry.uid.to_string())
    }

    #[test]
    fn a_list_removes_what_it_did_not_name_only_at_its_end() {
        let index = Index::default();
        index.apply("demo/a", entry("1"));
        index.apply("demo/b", entry("2"));
        index.begin_list();
        index.listed("demo/b");
        assert!(index.get("demo/a").is_some(), "the list is not complete");
        assert!(!index.is_synced());
        index.end_list();
        assert_eq!(uid(&index, "demo/a"), None);
        assert_eq!(uid(&index, "demo/b").as_deref(), Some("2"));
        assert!(index.is_synced());
    }

    #[test]
    fn a_list_that_was_broken_off_counts_for_nothing() {
        let index = Index::default();
        index.apply("demo/a", entry("1"));
        index.begin_list();
        index.begin_list();
        index.listed("demo/a");
        index.end_list();
        assert_eq!(index.len(), 1);
    }

    #[tokio::test]
    async fn a_follower_sees_its_session_come_change_and_go() {
        let index = Arc::new(Index::default());
        let mut follower = index.follow("demo/a");
        assert!(follower.current().is_none());
        index.apply("demo/a", entry("1"));
        assert!(futures::poll!(std::pin::pin!(follower.changed())).is_ready());
        assert_eq!(&*follower.current().unwrap().uid, "1");
        index.remove("demo/a");
        assert!(futures::poll!(std::pin::pin!(follower.changed())).is_ready());
        assert!(follower.current().is_none());
    }

    #[tokio::test]
    async fn a_follower_is_not_woken_by_other_sessions() {
        let index = Arc::new(Index::default());
        let mut follower = index.follow("demo/a");
        index.apply("demo/b", entry("1"));
        assert!(futures::poll!(std::pin::pin!(follower.changed())).is_pending());
    }

    #[test]
    fn the_last_follower_of_a_key_leaves_nothing_behind() {
        let index = Arc::new(Index::default());
        let (first, second) = (index.follow("demo/a"), index.follow("demo/a"));
        drop(first);
        assert_eq!(index.table().followed.len(), 1);
        drop(second);
        assert!(index.table().followed.is_empty());
    }
}
