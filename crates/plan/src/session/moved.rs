//! What a session that lives still holds in pods that it has left for others: it ends there.
//!
//! A pod that is out of reach loses its sessions to other pods, and nobody can end them in it. When it is back its sidecar holds
//! them still, with their credentials and their upstream connections, and the pod is never empty.

use crate::session::status::Outcome;
use berth_api::{AgentSession, PodRef};
use berth_wire::SessionState;

/// What a sidecar tells of the session, once its stream has told everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told<'a> {
    /// UID of the server.
    pub server_uid: &'a str,
    /// UID of the pod.
    pub pod_uid: &'a str,
    /// How the session is there.
    pub state: SessionState,
}

/// A pod where the session lives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftBehind<'a> {
    /// UID of that pod.
    pub pod_uid: &'a str,
    /// The pod of the same server that has the session's slot.
    pub place: &'a PodRef,
}

/// The pods where the session lives on, given what became of its bindings: it has its slot of the same server in another pod,
/// whose sidecar tells of it too. Never the pod that has the slot.
pub fn left_behind<'a>(outcomes: &'a [Outcome], told: &[Told<'a>]) -> Vec<LeftBehind<'a>> {
    let living = || told.iter().filter(|told| lives(told.state));
    let is_confirmed = |place: &&PodRef| {
        living().any(|told| told.server_uid == place.server_uid && told.pod_uid == place.uid)
    };
    let places = outcomes.iter().filter_map(place).filter(is_confirmed);
    let of = |place: &'a PodRef| {
        let elsewhere =
            move |told: &&Told<'_>| told.server_uid == place.server_uid && told.pod_uid != place.uid;
        living().filter(elsewhere).map(move |told| LeftBehind { pod_uid: told.pod_uid, place })
    };
    places.flat_map(of).collect()
}

/// Whether `stored`, as the API server has it now, is the session with that UID and says that its slot is in the pod `place`: a
/// cache may lag behind what another operator has written.
pub fn is_stored(stored: &AgentSession, uid: &str, place: &PodRef) -> bool {
    let mut pods =
        stored.status.iter().flat_map(|status| &status.servers).filter_map(|entry| entry.pod_ref.as_ref());
    stored.metadata.uid.as_deref() == Some(uid)
        && pods.any(|pod| pod.uid == place.uid && pod.server_uid == place.server_uid)
}

fn place(outcome: &Outcome) -> Option<&PodRef> {
    match outcome {
        Outcome::Held { pod, .. } | Outcome::Withheld { pod, .. } => Some(pod),
        Outcome::Refused(_) | Outcome::Waiting(_) | Outcome::Unconfirmed { .. } | Outcome::Invalid { .. } => {
            None
        }
    }
}

/// Whether the sidecar does not end the session yet.
fn lives(state: SessionState) -> bool {
    !matches!(state, SessionState::Ending | SessionState::Ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::place::Wait;
    use crate::session::validate::fixture;
    use proptest::prelude::*;
    use serde_json::json;

    fn pod(server: &str, uid: &str) -> PodRef {
        let (name, address) = (format!("everything-{uid}"), "10.0.0.1".into());
        PodRef { name, uid: uid.into(), address, server_uid: server.into() }
    }

    fn held(server: &str, uid: &str) -> Outcome {
        let pod = pod(server, uid);
        Outcome::Held { pod, revision: "r".into(), report: None, outdated: false, note: None }
    }

    fn told<'a>(server_uid: &'a str, pod_uid: &'a str, state: SessionState) -> Told<'a> {
        Told { server_uid, pod_uid, state }
    }

    #[test]
    fn a_pod_that_is_back_is_left_once_the_other_one_tells_of_the_session() {
        use SessionState::{Connected, Ended, Ending, Idle};
        let outcomes = [held("s", "b")];
        let cases = [
            (vec![told("s", "a", Connected), told("s", "b", Idle)], vec!["a"]),
            (vec![told("s", "a", Connected)], vec![]),
            (vec![told("s", "a", Connected), told("s", "b", Ending)], vec![]),
            (vec![told("s", "a", Ending), told("s", "c", Ended), told("s", "b", Idle)], vec![]),
            (vec![told("another", "a", Connected), told("s", "b", Idle)], vec![]),
        ];
        for (all, wanted) in cases {
            let left = left_behind(&outcomes, &all);
            assert_eq!(left.iter().map(|left| left.pod_uid).collect::<Vec<_>>(), wanted, "{all:?}");
            assert!(left.iter().all(|left| *left.place == pod("s", "b")));
        }
        let both = [told("s", "a", Connected), told("s", "b", Idle)];
        let waits = Outcome::Waiting(Wait::NoSlot { server: "everything".into() });
        assert_eq!(left_behind(&[waits, Outcome::Unconfirmed { error: String::new() }], &both), []);
    }

    #[test]
    fn the_place_is_stored_only_if_that_very_session_says_so() {
        let mut stored = fixture::session("{}");
        stored.metadata.uid = Some("77".into());
        let place = pod("s", "b");
        assert!(!is_stored(&stored, "77", &place));
        let entry = json!({"name": "everything", "state": "Bound", "podRef": place});
        stored.status = serde_json::from_value(json!({"servers": [entry]})).unwrap();
        assert!(is_stored(&stored, "77", &place) && !is_stored(&stored, "78", &place));
        assert!(!is_stored(&stored, "77", &pod("s", "a")) && !is_stored(&stored, "77", &pod("another", "b")));
    }

    fn any_state() -> impl Strategy<Value = SessionState> {
        use SessionState::{Connected, Ended, Ending, Idle};
        prop::sample::select(vec![Idle, Connected, Ending, Ended])
    }

    proptest! {
        /// Two servers, each with three pods; a slot of each is in one of its pods or nowhere.
        #[test]
        fn what_is_left_lives_beside_a_slot_that_lives_and_is_never_that_slot(
            places in prop::collection::vec(prop::option::of(0..3_usize), 2),
            states in prop::collection::vec(prop::option::of(any_state()), 6),
        ) {
            let uid = |index: usize| format!("{}-{}", index / 3, index % 3);
            let (servers, uids): (Vec<_>, Vec<_>) = (0..6).map(|index| ((index / 3).to_string(), uid(index))).unzip();
            let outcomes: Vec<Outcome> = places.iter().enumerate().map(|(server, place)| match place {
                Some(pod) => held(&server.to_string(), &uid(server * 3 + pod)),
                None => Outcome::Unconfirmed { error: String::new() },
            }).collect();
            let all: Vec<Told<'_>> = states.iter().enumerate()
                .filter_map(|(index, state)| Some(told(&servers[index], &uids[index], (*state)?)))
                .collect();
            let living = |index: usize| states[index].is_some_and(lives);
            let left = left_behind(&outcomes, &all);
            for index in 0..6 {
                let place = places[index / 3].map(|pod| index / 3 * 3 + pod);
                let wanted = living(index) && place.is_some_and(|place| place != index && living(place));
                prop_assert_eq!(left.iter().any(|left| left.pod_uid == uids[index]), wanted, "{}", index);
            }
        }
    }
}
