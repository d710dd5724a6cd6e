//! Who was promised which slot by this process, before caches and sidecars say so.
//!
//! Deciding and promising are one step under one lock, so that two sessions placed at once never pass a bound together,
//! and a pod that is about to be deleted is promised to nobody. Filled from status at start; the sidecar has the last word.

mod book;

pub use book::{Book, Promise};

use berth_api::AgentSession;
use berth_net::feed::{Feed, Urgency};
use kube::runtime::reflector::ObjectRef;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

/// The [`Book`] of promises, with the lock around it and the news of what changes in it.
#[derive(Default)]
pub struct Slots {
    book: Mutex<Book>,
    /// Tells of sessions whose confirmed slots changed.
    feed: Feed,
}

impl Slots {
    /// Looks and promises in one step. `step` must not wait or lock anything that is held while calling this.
    pub fn with<T>(&self, step: impl FnOnce(&mut Book) -> T) -> T {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let done = step(&mut book);
        let changed = book.take_changed();
        drop(book);
        for session in changed {
            self.feed.mark(&session.into(), Urgency::Now);
        }
        done
    }

    /// Tells of sessions whose confirmed slots changed: see [`Slots::confirmed`].
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Every session with a confirmed slot: see [`Slots::confirmed`].
    pub fn all_confirmed(&self) -> HashMap<String, Vec<(String, String)>> {
        self.with(|book| book.all_confirmed())
    }

    /// The slots of a session that a sidecar has confirmed to this process: server UID and pod UID.
    pub fn confirmed(&self, session_uid: &str) -> Vec<(String, String)> {
        self.with(|book| book.promises_of(session_uid, Promise::is_confirmed))
    }

    /// The promises to a session: server UID and pod UID.
    pub fn promises_of(&self, session_uid: &str) -> Vec<(String, String)> {
        self.with(|book| book.promises_of(session_uid, |_| true))
    }

    /// The sessions that were promised a slot in a pod of a server.
    pub fn promised_to(&self, server_uid: &str, pod_uid: &str) -> Vec<String> {
        self.with(|book| {
            book.promised(server_uid)
                .filter(|(_, promise)| promise.pod == pod_uid)
                .map(|(uid, _)| uid.clone())
                .collect()
        })
    }

    /// Enters a session, with the promises that its status speaks of when it is new here.
    pub fn know(&self, session: &AgentSession) {
        self.with(|book| book.know(session));
    }

    /// Drops a session that is gone; gives the UIDs of the servers where it was promised a slot.
    pub fn forget(&self, session_uid: &str) -> Vec<String> {
        self.with(|book| book.forget(session_uid))
    }

    /// Notes that a pod is gone: no slot in it is confirmed any more.
    pub fn pod_gone(&self, pod_uid: &str) {
        self.with(|book| book.pod_gone(pod_uid));
    }

    /// Marks a session whose end is told and whose finalizer is gone; a cache that lags behind must not begin it anew.
    pub fn finish(&self, session_uid: &str) {
        self.with(|book| book.finish(session_uid));
    }

    /// Whether the end of a session is over.
    pub fn is_over(&self, session_uid: &str) -> bool {
        self.with(|book| book.is_over(session_uid))
    }

    /// The object of a session that is known.
    pub fn object(&self, session_uid: &str) -> Option<ObjectRef<AgentSession>> {
        self.with(|book| book.object(session_uid))
    }

    /// Drops sessions and marks on pods that do not exist any more, and gives the UIDs of servers where that freed a slot.
    /// `sessions` and `pods` are asked after what is held here is listed, so that what comes meanwhile is not taken for gone.
    pub fn retain(
        &self,
        sessions: impl FnOnce() -> HashSet<String>,
        pods: impl FnOnce() -> HashSet<String>,
    ) -> HashSet<String> {
        let (known, condemned) = self.with(Book::begin_sweep);
        let (sessions, pods) = (sessions(), pods());
        let left = known.iter().filter(|session| !sessions.contains(*session));
        let freed = left.flat_map(|session| self.forget(session)).collect();
        self.with(|book| condemned.difference(&pods).for_each(|pod| book.spare(pod)));
        freed
    }
}

#[cfg(test)]
mod tests;
