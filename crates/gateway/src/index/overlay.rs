//! What the leading operator says of places, laid over what the watch says of sessions.

use crate::entry::{Binding, Entry, Placement, Server};
use berth_wire::{ServerPlacement, SessionPlacements};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Most sessions whose places are kept before the watch has told of them. Beyond that the one that waits longest is
/// forgotten: its status will say where it is.
const EARLY_MAX: usize = 4096;

/// The slots of one session, each with the name of its server.
pub(super) type Placed = Box<[(Box<str>, Placement)]>;

/// The slots that the leader tells of.
pub(super) fn read(placements: &SessionPlacements) -> Placed {
    let slot = |slot: &ServerPlacement| {
        let placement = Placement {
            pod_uid: slot.pod_uid.as_str().into(),
            address: slot.address,
            server_uid: slot.server_uid.as_str().into(),
        };
        (slot.server.as_str().into(), placement)
    };
    placements.servers.iter().map(slot).collect()
}

/// The session with the places that are known of earlier than its status. Everything else is as the watch says.
pub(super) fn lay(watched: &Arc<Entry>, placed: &Placed) -> Arc<Entry> {
    if placed.is_empty() {
        return watched.clone();
    }
    let server = |server: &Server| {
        let earlier = placed.iter().find(|(name, _)| *name == server.name);
        let binding =
            earlier.map_or_else(|| server.binding.clone(), |(_, place)| Binding::Placed(place.clone()));
        Server { name: server.name.clone(), binding }
    };
    let servers: Box<[Server]> = watched.servers.iter().map(server).collect();
    // Once the status has caught up there is one copy only.
    if servers == watched.servers {
        return watched.clone();
    }
    Arc::new(Entry {
        uid: watched.uid.clone(),
        issuer: watched.issuer.clone(),
        subject: watched.subject.clone(),
        deleting: watched.deleting,
        servers,
    })
}

/// Places of sessions that the watch has not told of yet, by the session's UID.
#[derive(Default)]
pub(super) struct Early {
    placed: HashMap<Box<str>, (u64, Placed)>,
    /// The same UIDs in the order in which they came.
    order: BTreeMap<u64, Box<str>>,
    next: u64,
}

impl Early {
    pub(super) fn put(&mut self, uid: &str, placed: Placed) {
        self.take(uid);
        if self.placed.len() >= EARLY_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.placed.remove(&oldest);
        }
        self.order.insert(self.next, uid.into());
        self.placed.insert(uid.into(), (self.next, placed));
        self.next += 1;
    }

    /// Takes what is kept for the session; nothing if there is none.
    pub(super) fn take(&mut self, uid: &str) -> Placed {
        let Some((order, placed)) = self.placed.remove(uid) else { return Placed::default() };
        self.order.remove(&order);
        placed
    }

    pub(super) fn clear(&mut self) {
        self.placed.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(pod: &str) -> Placed {
        let placement = Placement {
            pod_uid: pod.into(),
            address: "10.0.0.7".parse().unwrap(),
            server_uid: "server-1".into(),
        };
        [("github".into(), placement)].into()
    }

    #[test]
    fn what_comes_early_is_bounded_and_the_oldest_goes_first() {
        let mut early = Early::default();
        for number in 0..EARLY_MAX {
            early.put(&number.to_string(), placed("p"));
        }
        early.put("0", placed("again"));
        early.put("one more", placed("p"));
        assert_eq!((early.placed.len(), early.order.len()), (EARLY_MAX, EARLY_MAX));
        assert!(early.take("1").is_empty(), "the oldest");
        assert_eq!(early.take("0"), placed("again"), "it came anew");
        assert_eq!(early.take("one more"), placed("p"));
        assert!(early.take("one more").is_empty(), "taken once");
        early.clear();
        assert!(early.placed.is_empty() && early.order.is_empty());
    }

    #[test]
    fn a_session_whose_status_says_the_same_is_not_copied() {
        let binding = Binding::Placed(placed("p")[0].1.clone());
        let servers = [Server { name: "github".into(), binding }].into();
        let (uid, issuer, subject) = ("u".into(), "".into(), "alice".into());
        let watched = Arc::new(Entry { uid, issuer, subject, deleting: false, servers });
        assert!(Arc::ptr_eq(&lay(&watched, &placed("p")), &watched));
        assert!(Arc::ptr_eq(&lay(&watched, &Placed::default()), &watched));
        let moved = lay(&watched, &placed("q"));
        assert_eq!(moved.servers[0].binding, Binding::Placed(placed("q")[0].1.clone()));
        assert_eq!(moved.subject, watched.subject);
    }
}
