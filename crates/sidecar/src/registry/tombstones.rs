//! What is left of sessions that have ended: enough to answer a repeated DELETE and to refuse a late PUT.

use berth_wire::{Activity, EndReport, Generation, SessionReport, SessionState};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Tombstones that a pod keeps, less than 300 KiB; the oldest go first. Who asks for an end again within its bound gets the same
/// answer: no pod ends so many others meanwhile. An operator may ask later as well, when the whole session ends, in a pod that
/// the session left without an answer: without the tombstone that pod has held nothing, and is told of as not confirmed.
const MAX_TOMBSTONES: usize = 1_024;

/// One ended session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tombstone {
    /// How the end went.
    pub end: EndReport,
    /// What was wanted and done last; none if the session was never held.
    pub last: Option<(Generation, Activity)>,
}

impl Tombstone {
    /// The last state of the session `uid`, whose tombstone this is; none if it was never held.
    pub(crate) fn report(&self, uid: &str) -> Option<SessionReport> {
        let (generation, activity) = self.last?;
        Some(SessionReport {
            uid: uid.to_owned(),
            generation,
            state: SessionState::Ended,
            failure: None,
            message: None,
            next_retry_unix_millis: None,
            activity,
            end: Some(self.end),
        })
    }
}

/// The tombstones of a pod.
#[derive(Default)]
pub(crate) struct Tombstones {
    by_uid: HashMap<Arc<str>, Tombstone>,
    oldest_first: VecDeque<Arc<str>>,
}

impl Tombstones {
    /// Adds one; the first for a session stands.
    pub(crate) fn add(&mut self, uid: Arc<str>, tombstone: Tombstone) {
        if self.by_uid.contains_key(&uid) {
            return;
        }
        if self.oldest_first.len() >= MAX_TOMBSTONES
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.by_uid.remove(&oldest);
        }
        self.oldest_first.push_back(uid.clone());
        self.by_uid.insert(uid, tombstone);
    }

    pub(crate) fn get(&self, uid: &str) -> Option<&Tombstone> {
        self.by_uid.get(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_give_way() {
        let mut tombstones = Tombstones::default();
        for number in 0..=MAX_TOMBSTONES {
            let tombstone = Tombstone { end: EndReport::NOTHING_HELD, last: None };
            tombstones.add(number.to_string().into(), tombstone);
        }
        assert!(tombstones.get("0").is_none());
        assert!(tombstones.get("1").is_some());
        assert_eq!(tombstones.by_uid.len(), MAX_TOMBSTONES);
    }
}
