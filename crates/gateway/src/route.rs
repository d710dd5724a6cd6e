//! The decision on a request, given what is known of its session. No effects, no clock.

use crate::authenticate::User;
use crate::entry::{Binding, Entry, Placement};
use berth_api::Reason;
use std::sync::Arc;

/// What is to be done with a request now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It can be sent to this place.
    Forward(Destination),
    /// Its session has no slot for it yet, for this reason.
    Wait(Reason),
    /// The same, and there will be none before somebody has repaired what the reason tells of.
    Blocked(Reason),
    /// For this caller there is no such session: unknown, ended, somebody else's, or without that server.
    NotFound,
}

/// A session in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// UID of the `AgentSession`.
    pub session_uid: Arc<str>,
    /// The pod that holds its slot.
    pub placement: Placement,
}

/// Decides on a call of `user` to `server` of the session that `entry` tells of. `may_connect`: whether an access review
/// lets the user use sessions of other subjects.
pub fn decide(entry: Option<&Entry>, server: &str, user: &User, may_connect: bool) -> Decision {
    let Some(entry) = entry.filter(|entry| !entry.deleting && (may_connect || is_subject(entry, user)))
    else {
        return Decision::NotFound;
    };
    match entry.servers.iter().find(|known| &*known.name == server).map(|known| &known.binding) {
        None => Decision::NotFound,
        Some(Binding::Pending(reason)) if needs_repair(*reason) => Decision::Blocked(*reason),
        Some(Binding::Pending(reason)) => Decision::Wait(*reason),
        Some(Binding::Placed(placement)) => {
            Decision::Forward(Destination { session_uid: entry.uid.clone(), placement: placement.clone() })
        }
    }
}

/// Whether a slot comes only after somebody has changed an object.
fn needs_repair(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::InvalidSpec | Reason::RefNotFound | Reason::RefNotPermitted | Reason::InvalidCredential
    )
}

/// Callers come from TokenReview, whose issuer is the API server: the empty one. Names are compared byte for byte.
fn is_subject(entry: &Entry, user: &User) -> bool {
    entry.issuer.is_empty() && *entry.subject == *user.name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Server;

    fn user(name: &str) -> User {
        User { name: name.into(), ..User::default() }
    }

    fn placement() -> Placement {
        Placement {
            pod_uid: "pod-1".into(),
            address: "10.0.0.7".parse().unwrap(),
            server_uid: "server-1".into(),
        }
    }

    fn entry(binding: Binding) -> Entry {
        Entry {
            uid: "uid-1".into(),
            issuer: "".into(),
            subject: "alice".into(),
            deleting: false,
            servers: [Server { name: "github".into(), binding }].into(),
        }
    }

    fn forward() -> Decision {
        Decision::Forward(Destination { session_uid: "uid-1".into(), placement: placement() })
    }

    #[test]
    fn the_subject_and_whoever_may_connect_are_forwarded() {
        let placed = entry(Binding::Placed(placement()));
        assert_eq!(decide(Some(&placed), "github", &user("alice"), false), forward());
        assert_eq!(decide(Some(&placed), "github", &user("bob"), true), forward());
    }

    #[test]
    fn whatever_is_not_for_the_caller_is_not_found() {
        let placed = entry(Binding::Placed(placement()));
        let other_issuer = Entry { issuer: "https://idp.example".into(), ..placed.clone() };
        let ended = Entry { deleting: true, ..placed.clone() };
        let table = [
            ("unknown", None, "github", "alice", false),
            ("unknown, may connect", None, "github", "alice", true),
            ("foreign", Some(&placed), "github", "bob", false),
            ("other case", Some(&placed), "github", "Alice", false),
            ("other issuer, same name", Some(&other_issuer), "github", "alice", false),
            ("ended", Some(&ended), "github", "alice", false),
            ("ended, may connect", Some(&ended), "github", "bob", true),
            ("no such server", Some(&placed), "gitlab", "alice", false),
        ];
        for (case, entry, server, name, may_connect) in table {
            assert_eq!(decide(entry, server, &user(name), may_connect), Decision::NotFound, "{case}");
        }
    }

    #[test]
    fn a_session_without_a_slot_waits_with_its_reason() {
        let pending = entry(Binding::Pending(Reason::LimitReached));
        assert_eq!(
            decide(Some(&pending), "github", &user("alice"), false),
            Decision::Wait(Reason::LimitReached)
        );
        assert_eq!(decide(Some(&pending), "github", &user("bob"), false), Decision::NotFound);
    }

    #[test]
    fn what_somebody_must_repair_is_told_apart_from_what_takes_time() {
        let of = |reason| decide(Some(&entry(Binding::Pending(reason))), "github", &user("alice"), false);
        for reason in
            [Reason::InvalidSpec, Reason::RefNotFound, Reason::RefNotPermitted, Reason::InvalidCredential]
        {
            assert_eq!(of(reason), Decision::Blocked(reason));
        }
        for reason in [Reason::Pending, Reason::BindTimeout, Reason::LimitReached, Reason::Unschedulable] {
            assert_eq!(of(reason), Decision::Wait(reason));
        }
    }
}
