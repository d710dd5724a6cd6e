//! Every session that the API server has told of, by `namespace/name`.
//!
//! Readers take one entry; whoever waits for a change of one session follows it and is woken by that session alone.
//! Nothing is forgotten because a watch broke: only a deletion, or a list that was received to its end, removes entries.
//!
//! Over the places that a session's status names lie those that the leading operator tells of, which come earlier. They
//! count for the session of that UID only, say nothing but where its slots are, and are all forgotten when the leader
//! falls silent.

mod follow;
mod overlay;

pub use follow::Follower;

use crate::entry::Entry;
use berth_wire::SessionPlacements;
use overlay::{Early, Placed};
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
    sessions: HashMap<Box<str>, Session>,
    early: Early,
    followed: HashMap<Box<str>, watch::Sender<Option<Arc<Entry>>>>,
    /// Keys that the list under way has named so far.
    listed: HashSet<Box<str>>,
}

struct Session {
    /// As the API server tells of it.
    watched: Arc<Entry>,
    /// As the leader tells of it.
    placed: Placed,
    /// Both together.
    current: Arc<Entry>,
}

impl Index {
    /// The session of that key.
    pub fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.table().current(key)
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.table().sessions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Follows the session of that key, whether it exists yet or not.
    pub fn follow(self: &Arc<Self>, key: &str) -> Follower {
        let mut table = self.table();
        let current = table.current(key);
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
        self.table().apply(key, Arc::new(entry));
    }

    /// Takes in that a session is gone.
    pub fn remove(&self, key: &str) {
        self.table().remove(key);
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
        let gone: Vec<_> = table.sessions.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        for key in gone {
            table.remove(&key);
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

    /// Takes in where the leader says that the slots of a session are; replaces what it said of it before.
    pub fn place(&self, placements: &SessionPlacements) {
        self.table().place(placements);
    }

    /// Forgets all that the leader said.
    pub fn forget_placements(&self) {
        self.table().forget_placements();
    }

    /// A panic while the lock was held leaves a table that is still whole: every change is a single call.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn current(&self, key: &str) -> Option<Arc<Entry>> {
        self.sessions.get(key).map(|session| session.current.clone())
    }

    fn apply(&mut self, key: &str, watched: Arc<Entry>) {
        let before = self.sessions.remove(key).filter(|before| before.watched.uid == watched.uid);
        let placed = before.map_or_else(|| self.early.take(&watched.uid), |before| before.placed);
        let current = overlay::lay(&watched, &placed);
        self.tell(key, Some(&current));
        self.sessions.insert(key.into(), Session { watched, placed, current });
    }

    fn remove(&mut self, key: &str) {
        self.sessions.remove(key);
        self.tell(key, None);
    }

    fn place(&mut self, placements: &SessionPlacements) {
        let (uid, placed) = (placements.uid.as_str(), overlay::read(placements));
        let key = format!("{}/{}", placements.namespace, placements.name);
        match self.sessions.get_mut(key.as_str()).filter(|session| *session.watched.uid == *uid) {
            Some(session) => {
                session.placed = placed;
                self.lay_anew(&key);
            }
            None if placed.is_empty() => drop(self.early.take(uid)),
            None => self.early.put(uid, placed),
        }
    }

    fn forget_placements(&mut self) {
        self.early.clear();
        let placed = self.sessions.iter().filter(|(_, session)| !session.placed.is_empty());
        let keys: Vec<_> = placed.map(|(key, _)| key.clone()).collect();
        for key in keys {
            if let Some(session) = self.sessions.get_mut(&key) {
                session.placed = Placed::default();
            }
            self.lay_anew(&key);
        }
    }

    /// The places of a session have changed: followers are told if that makes a difference.
    fn lay_anew(&mut self, key: &str) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let current = overlay::lay(&session.watched, &session.placed);
        if current != session.current {
            session.current = current.clone();
            self.tell(key, Some(&current));
        }
    }

    fn tell(&self, key: &str, entry: Option<&Arc<Entry>>) {
        if let Some(sender) = self.followed.get(key) {
            sender.send_replace(entry.cloned());
        }
    }
}

#[cfg(test)]
mod tests;
