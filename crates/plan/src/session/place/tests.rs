//! Examples, and properties that hold whatever the pool looks like.

use super::*;
use crate::pod::{Life, Occupancy};
use crate::server::fixture::{IMAGE, pool_pod, valid};
use berth_wire::{Activity, Generation};
use proptest::prelude::*;
use std::time::Duration;

const NOW: Moment = Moment(1_000_000_000);

fn report(state: SessionState, in_flight: u32) -> SessionReport {
    SessionReport {
        uid: "me".into(),
        generation: Generation::default(),
        state,
        failure: None,
        message: None,
        next_retry_unix_millis: None,
        activity: Activity { in_flight, ..Activity::default() },
        end: None,
    }
}

fn observed(pods: &[PoolPod]) -> Observed<'_> {
    Observed {
        session: "me",
        pods,
        reports: &[],
        promised: None,
        refused_by: &[],
        held: 0,
        held_by_subject: 0,
        image: IMAGE,
        started: Moment(0),
    }
}

fn old(ordinal: u32, held: &[&str]) -> PoolPod {
    PoolPod { revision: "older".into(), ..pool_pod(ordinal, 50, held) }
}

/// A pod that holds the session and has not been ready, and silent, for so long.
fn not_ready(ordinal: u32, for_millis: u64) -> PoolPod {
    let silent = Duration::from_millis(for_millis);
    let mut pod = PoolPod {
        life: Life::NotReady { since: Moment(NOW.0 - i64::try_from(for_millis).unwrap()) },
        ..pool_pod(ordinal, 50, &["me"])
    };
    pod.occupancy = Occupancy { synced: false, silent, ..pod.occupancy };
    pod
}

/// The decision in short: its name and the pod's UID, or the reason.
fn decided(yaml: &str, observed: &Observed<'_>) -> String {
    match decide(&valid(yaml), observed, NOW) {
        Decision::Keep(pod) => format!("keep {}", pod.uid),
        Decision::Take(pod) => format!("take {}", pod.uid),
        Decision::Leave(pod) => format!("leave {}", pod.uid),
        Decision::Wait(wait) => format!("wait {}", wait.reason()),
    }
}

#[test]
fn a_session_takes_the_fullest_pod_that_can_have_it() {
    let mut starting = pool_pod(2, 50, &["a", "b", "c"]);
    starting.life = Life::Starting;
    let pods = [
        pool_pod(0, 50, &[]),
        pool_pod(1, 50, &["a"]),
        starting,
        old(3, &["a", "b"]),
        pool_pod(4, 1, &["a"]),
    ];
    assert_eq!(decided("{}", &observed(&pods)), "take pod-1");
    let refused = ["pod-1".to_owned()];
    assert_eq!(decided("{}", &Observed { refused_by: &refused, ..observed(&pods) }), "take pod-0");
    assert_eq!(decided("{}", &observed(&pods[2..])), "wait Pending");
}

#[test]
fn a_pod_with_another_image_is_the_last_resort() {
    let aging = PoolPod { image: "berth:0".into(), ..pool_pod(0, 50, &["a"]) };
    let pods = [aging, pool_pod(1, 50, &[])];
    assert_eq!(decided("{}", &observed(&pods)), "take pod-1");
    assert_eq!(decided("{}", &observed(&pods[..1])), "take pod-0");
}

#[test]
fn a_session_stays_where_a_sidecar_holds_it() {
    let pods = [pool_pod(0, 50, &["a"]), pool_pod(1, 50, &["me"])];
    let reports = [("pod-1".to_owned(), report(SessionState::Connected, 0))];
    assert_eq!(decided("{}", &Observed { reports: &reports, ..observed(&pods) }), "keep pod-1");
    // Even past the bounds, which are for new sessions.
    let full = Observed { reports: &reports, held: 9, held_by_subject: 9, ..observed(&pods) };
    assert_eq!(decided("{pool: {maxSessions: 1, maxSessionsPerSubject: 1}}", &full), "keep pod-1");
}

#[test]
fn a_promise_stands_until_the_sidecar_is_heard_and_after_its_restart() {
    let mut unheard = pool_pod(1, 50, &["me"]);
    unheard.occupancy.synced = false;
    for pod in [unheard, pool_pod(1, 50, &["me"]), not_ready(1, 59_999)] {
        let pods = [pool_pod(0, 50, &["a"]), pod];
        assert_eq!(decided("{}", &Observed { promised: Some("pod-1"), ..observed(&pods) }), "keep pod-1");
    }
}

#[test]
fn an_operator_that_has_just_begun_to_lead_places_nobody_before_it_has_heard_who_may_be_held() {
    let after = |millis: i64, pods: &[PoolPod], promised| {
        decided("{}", &Observed { started: Moment(NOW.0 - millis), promised, ..observed(pods) })
    };
    let mut unheard = pool_pod(1, 50, &[]);
    unheard.occupancy.synced = false;
    let pods = [pool_pod(0, 50, &["a"]), unheard.clone()];
    for promised in [None, Some("gone")] {
        assert_eq!(after(9_999, &pods, promised), "wait Pending");
        assert_eq!(after(10_000, &pods, promised), "take pod-0", "not for ever");
    }
    assert_eq!(after(0, &pods, Some("pod-1")), "keep pod-1", "it is known where that one is");
    let heard = [pool_pod(0, 50, &["a"]), pool_pod(1, 50, &[])];
    assert_eq!(after(0, &heard, None), "take pod-0");
    let starting = PoolPod { life: Life::Starting, ..unheard };
    assert_eq!(after(0, &[pool_pod(0, 50, &["a"]), starting], None), "take pod-0", "nobody was placed there");
}

#[test]
fn a_session_whose_pod_is_lost_is_placed_anew() {
    let terminating = PoolPod { life: Life::Terminating, ..pool_pod(1, 50, &["me"]) };
    for lost in [Some(terminating), Some(not_ready(1, 60_000)), None] {
        let pods: Vec<PoolPod> = lost.into_iter().chain([pool_pod(0, 50, &[])]).collect();
        assert_eq!(decided("{}", &Observed { promised: Some("pod-1"), ..observed(&pods) }), "take pod-0");
    }
}

#[test]
fn an_older_revision_that_has_told_everything_but_the_session_does_not_keep_it() {
    let mut pods = [old(0, &["me"]), pool_pod(1, 50, &[])];
    let promised = |pods: &[PoolPod]| decided("{}", &Observed { promised: Some("pod-0"), ..observed(pods) });
    assert_eq!(promised(&pods), "take pod-1", "it would refuse the session");
    assert_eq!(promised(&pods[..1]), "wait Pending");
    pods[0].occupancy.synced = false;
    assert_eq!(promised(&pods), "keep pod-0", "it may hold the session");
}

#[test]
fn sessions_count_once_wherever_they_are_held_and_only_those_that_are_meant() {
    let dead = PoolPod { life: Life::Dead, ..pool_pod(3, 50, &["d"]) };
    let pods = [pool_pod(0, 50, &["me", "a", "b"]), pool_pod(1, 50, &["a", "c"]), dead];
    assert_eq!(held_by_others("me", &pods, |_| true), 3);
    assert_eq!(held_by_others("me", &pods, |session| session != "b"), 2);
}

#[test]
fn a_session_never_goes_back_to_a_pod_in_which_it_ended() {
    let pods = [pool_pod(0, 50, &["a", "b"]), pool_pod(1, 50, &[])];
    for state in [SessionState::Ended, SessionState::Ending] {
        let reports = [("pod-0".to_owned(), report(state, 0))];
        let observed = Observed { reports: &reports, promised: Some("pod-0"), ..observed(&pods) };
        assert_eq!(decided("{}", &observed), "take pod-1");
    }
}

#[test]
fn a_session_that_ended_wherever_a_slot_is_free_says_so_unless_such_a_pod_can_be_replaced() {
    let over = |pod: &str| (pod.to_owned(), report(SessionState::Ended, 0));
    let wait = |most: u32, pods: &[PoolPod], reports: &[(String, SessionReport)]| {
        let yaml = format!("{{pool: {{maxPods: {most}}}}}");
        match decide(&valid(&yaml), &Observed { reports, ..observed(pods) }, NOW) {
            Decision::Wait(wait) => format!("{}: {wait}", wait.reason()),
            other => format!("{other:?}"),
        }
    };
    let pods = [pool_pod(0, 50, &["a"]), pool_pod(1, 1, &["b"])];
    let locked_out = "LimitReached: has ended in each pod of server \"everything\" with a free slot: raise pool.maxPods, or wait until such a pod is replaced";
    let waits = "Pending: waits for a free slot of server \"everything\"";
    assert_eq!(wait(2, &pods, &[over("pod-0")]), locked_out);
    assert_eq!(wait(3, &pods, &[over("pod-0")]), waits, "another pod will be made");
    assert_eq!(wait(2, &[pool_pod(0, 50, &[]), pods[1].clone()], &[over("pod-0")]), waits, "it is replaced");
    let starting = PoolPod { life: Life::Starting, ..pool_pod(1, 50, &["b"]) };
    assert_eq!(wait(2, &[pods[0].clone(), starting], &[over("pod-0")]), waits, "that one is for it");
    assert_eq!(wait(1, &[pool_pod(1, 1, &["b"])], &[over("pod-1")]), waits, "no slot is free");
    assert_eq!(wait(1, &[pool_pod(1, 1, &["b"])], &[]), waits);
}

#[test]
fn of_two_pods_that_hold_it_the_promised_one_counts() {
    let pods = [pool_pod(0, 50, &["me"]), pool_pod(1, 50, &["me"])];
    let held = |pod: &str| (pod.to_owned(), report(SessionState::Idle, 0));
    let reports = [held("pod-0"), held("pod-1")];
    assert_eq!(
        decided("{}", &Observed { reports: &reports, promised: Some("pod-1"), ..observed(&pods) }),
        "keep pod-1"
    );
}

#[test]
fn an_idle_session_leaves_an_older_revision_when_there_is_a_slot_for_it() {
    let pods = [old(0, &["me"]), pool_pod(1, 50, &[])];
    let at = |in_flight| [("pod-0".to_owned(), report(SessionState::Connected, in_flight))];
    assert_eq!(decided("{}", &Observed { reports: &at(0), ..observed(&pods) }), "leave pod-0");
    assert_eq!(decided("{}", &Observed { reports: &at(1), ..observed(&pods) }), "keep pod-0");
    assert_eq!(decided("{}", &Observed { reports: &at(0), ..observed(&pods[..1]) }), "keep pod-0");
    // What may have changed since, or was made from a later spec, is no ground for it.
    let mut silent = pods.clone();
    silent[0].occupancy.synced = false;
    assert_eq!(decided("{}", &Observed { reports: &at(0), ..observed(&silent) }), "keep pod-0");
    let mut later = at(0);
    later[0].1.generation.server = i64::MAX;
    assert_eq!(decided("{}", &Observed { reports: &later, ..observed(&pods) }), "keep pod-0");
}

#[test]
fn a_session_without_credential_leaves_an_older_revision_at_once_and_no_other() {
    let at = |failure, in_flight| {
        let report = SessionReport { failure, ..report(SessionState::Connected, in_flight) };
        [("pod-0".to_owned(), report)]
    };
    let decided = |pod: PoolPod, reports: &[(String, SessionReport)]| {
        decided("{}", &Observed { reports, ..observed(&[pod]) })
    };
    let stuck = [
        Failure::InvalidSpec,
        Failure::RefNotFound,
        Failure::RefNotPermitted,
        Failure::InvalidCredential,
        Failure::Unauthorized,
    ];
    for failure in stuck.map(Some) {
        assert_eq!(decided(old(0, &["me"]), &at(failure, 0)), "leave pod-0", "{failure:?}");
        assert_eq!(decided(old(0, &["me"]), &at(failure, 1)), "keep pod-0", "its calls may finish");
        assert_eq!(decided(pool_pod(0, 50, &["me"]), &at(failure, 0)), "keep pod-0", "it is told there");
    }
    for failure in [None, Some(Failure::UpstreamUnreachable), Some(Failure::RateLimited)] {
        assert_eq!(decided(old(0, &["me"]), &at(failure, 0)), "keep pod-0", "{failure:?}");
    }
}

#[test]
fn bounds_on_sessions_are_named() {
    let pods = [pool_pod(0, 50, &[])];
    let two = Observed { held: 2, held_by_subject: 1, ..observed(&pods) };
    assert_eq!(decided("{pool: {maxSessions: 3, maxSessionsPerSubject: 2}}", &two), "take pod-0");
    assert_eq!(decided("{pool: {maxSessions: 2}}", &two), "wait LimitReached");
    assert_eq!(decided("{pool: {maxSessionsPerSubject: 1}}", &two), "wait LimitReached");
    assert_eq!(decided("{pool: {maxSessions: 0}}", &observed(&pods)), "wait LimitReached");
}

prop_compose! {
    fn any_pod(ordinal: u32)(
        slots in 0_u32..4,
        held in 0_usize..5,
        ready: bool,
        synced: bool,
        used: bool,
        revision in prop_oneof![Just(None), Just(Some("older"))],
    ) -> PoolPod {
        let mut pod = pool_pod(ordinal, slots, &[]);
        pod.occupancy.held = (0..held).map(|n| format!("session-{n}")).collect();
        pod.occupancy.synced = synced;
        pod.occupancy.used = used;
        if !ready { pod.life = Life::Starting; }
        if let Some(revision) = revision { pod.revision = revision.into(); }
        pod
    }
}

fn any_pool() -> impl Strategy<Value = Vec<PoolPod>> {
    (any_pod(0), any_pod(1), any_pod(2), any_pod(3)).prop_map(|(a, b, c, d)| vec![a, b, c, d])
}

proptest! {
    #[test]
    fn a_placement_always_has_a_free_slot_in_a_ready_pod_of_the_current_revision(pods in any_pool()) {
        let server = valid("{}");
        if let Decision::Take(pod) = decide(&server, &observed(&pods), NOW) {
            prop_assert!(pod.free() > 0 && pod.is_placeable() && pod.revision == server.key.revision);
            let fuller = pods.iter().filter(|other| other.is_placeable() && other.revision == server.key.revision);
            let same = fuller.filter(|other| fit(other, &server, IMAGE) == fit(pod, &server, IMAGE) && other.free() > 0);
            prop_assert!(same.map(PoolPod::free).min() == Some(pod.free()));
        }
    }

    #[test]
    fn a_session_waits_only_when_no_pod_can_have_it(pods in any_pool()) {
        let server = valid("{}");
        if decide(&server, &observed(&pods), NOW) == Decision::Wait(Wait::NoSlot { server: "everything".into() }) {
            prop_assert!(!pods.iter().any(|pod| pod.free() > 0 && pod.is_placeable() && pod.revision == server.key.revision));
        }
    }
}

#[test]
fn a_session_for_which_nothing_can_be_decided_stays_where_it_is_and_goes_nowhere_else() {
    let kept = |pods: &[PoolPod], reports: &[(String, SessionReport)], promised: Option<&str>| {
        let observed = Observed { reports, promised, ..observed(pods) };
        super::kept(&valid("{}"), &observed, NOW).map(|pod| pod.uid.clone())
    };
    let held = |state| vec![("pod-0".to_owned(), report(state, 0))];
    let pods = [pool_pod(0, 50, &["me"]), pool_pod(1, 50, &[])];
    assert_eq!(kept(&pods, &held(SessionState::Connected), None).as_deref(), Some("pod-0"));
    assert_eq!(kept(&[old(0, &["me"])], &held(SessionState::Idle), None).as_deref(), Some("pod-0"));
    assert_eq!(kept(&pods, &[], Some("pod-1")).as_deref(), Some("pod-1"), "what was promised");
    assert_eq!(kept(&pods, &held(SessionState::Ended), Some("pod-0")), None, "it has ended there");
    assert_eq!(kept(&pods, &[], None), None, "a free slot is not taken");
}
