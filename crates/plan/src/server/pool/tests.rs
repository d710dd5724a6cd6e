//! Examples, and properties that hold whatever the pool looks like.

use super::*;
use crate::pod::{Occupancy, Trouble};
use crate::server::fixture::{IMAGE, pool_pod, valid};
use proptest::prelude::*;

const NOW: Moment = Moment(1_000_000_000);

fn claim(session: &str, subject: &str, pod: Option<&str>, created: i64) -> Claim {
    Claim {
        session: session.into(),
        subject: Subject { issuer: String::new(), name: subject.into() },
        pod: pod.map(Into::into),
        barred: vec![],
        told_limit: false,
        created: Moment(created),
    }
}

fn planned(yaml: &str, pods: &[PoolPod], claims: &[Claim]) -> Plan {
    plan(&valid(yaml), &Observed { pods, claims, image: IMAGE }, NOW)
}

fn deleted(plan: &Plan) -> Vec<&str> {
    plan.delete.iter().map(|pod| pod.uid.as_str()).collect()
}

#[test]
fn an_empty_pool_gets_the_pods_for_its_warm_slots() {
    let first = pool_pod(0, 50, &[]).name;
    assert_eq!(planned("{}", &[], &[]).create, [first]);
    assert_eq!(planned("{pool: {warm: 0}}", &[], &[]).create, Vec::<String>::new());
    assert_eq!(planned("{pool: {warm: 5, sessionsPerPod: 2}}", &[], &[]).create.len(), 3);
}

#[test]
fn sessions_that_wait_get_pods_beyond_the_warm_ones() {
    let claims: Vec<Claim> = (0..3).map(|n| claim(&format!("s{n}"), "alice", None, n)).collect();
    let plan = planned("{pool: {warm: 1, sessionsPerPod: 1}}", &[], &claims);
    assert_eq!((plan.create.len(), plan.waiting, plan.wake.len()), (4, 3, 0));
}

#[test]
fn a_session_in_two_pods_counts_once_for_the_bound_of_sessions() {
    let pods = [pool_pod(0, 1, &["moved"]), pool_pod(1, 1, &["moved"])];
    let create = |most: u32| {
        planned(&format!("{{pool: {{sessionsPerPod: 1, maxSessions: {most}}}}}"), &pods, &[]).create
    };
    assert_eq!((create(1).len(), create(2).len()), (0, 1));
}

#[test]
fn a_pod_made_from_a_stale_cache_has_the_name_of_the_one_that_is_there() {
    assert_eq!(planned("{}", &[], &[]).create, planned("{}", &[], &[]).create);
    let pods = [pool_pod(1, 1, &["s"])];
    assert_eq!(planned("{pool: {sessionsPerPod: 1}}", &pods, &[]).create, [pool_pod(0, 1, &[]).name]);
}

#[test]
fn a_pod_that_refuses_every_operator_is_no_capacity_and_is_left_alone() {
    let locked = |ordinal: u32, held: &[&str]| {
        let mut pod = pool_pod(ordinal, 2, held).locked_by(Some(Trouble::locked("x", 50_000)));
        pod.occupancy.synced = false;
        pod
    };
    let (waits, yaml) = (vec![claim("waits", "alice", None, 1)], "{pool: {sessionsPerPod: 2, maxPods: 3}}");
    let plan = planned(yaml, &[locked(0, &["s"]), locked(1, &[])], &waits);
    assert_eq!((plan.create, plan.delete), (vec![pool_pod(2, 2, &[]).name], vec![]));
    let full = [locked(0, &["s"]), locked(1, &[]), locked(2, &[])];
    assert_eq!(planned(yaml, &full, &waits).create.len(), 0, "maxPods holds");
}

#[test]
fn a_session_that_comes_back_gets_a_pod_that_it_has_not_left() {
    let mut back = claim("back", "alice", None, 1);
    back.barred = vec!["pod-0".into()];
    let yaml = "{pool: {warm: 0, sessionsPerPod: 3}}";
    let plan = planned(yaml, &[pool_pod(0, 3, &[])], &[back.clone()]);
    assert_eq!((plan.create.as_slice(), plan.delete.len()), (&[pool_pod(1, 3, &[]).name][..], 0));
    // The new pod is enough, and does not go before the session has its slot.
    let mut starting = pool_pod(1, 3, &[]);
    starting.life = Life::Starting;
    let plan = planned(yaml, &[pool_pod(0, 3, &[]), starting], &[back.clone()]);
    assert_eq!((plan.create.len(), plan.delete.len()), (0, 0));
}

#[test]
fn at_the_bound_an_empty_pod_makes_room_for_a_session_that_has_left_it() {
    let back = Claim { barred: vec!["pod-0".into(), "pod-1".into()], ..claim("back", "alice", None, 1) };
    let other = Claim { barred: vec!["pod-1".into()], ..claim("other", "bob", None, 2) };
    let yaml = "{pool: {warm: 0, sessionsPerPod: 3, maxPods: 2}}";
    let empty = || vec![pool_pod(0, 3, &[]), pool_pod(1, 3, &[])];
    let first = planned(yaml, &empty(), &[back.clone(), other.clone()]);
    assert_eq!((deleted(&first), first.create.len()), (vec!["pod-1"], 0), "the one that more have left");
    // While it is on its way out nothing else goes; then another takes its place, which is enough.
    let mut pods = empty();
    pods[1].life = Life::Terminating;
    let going = planned(yaml, &pods, &[back.clone(), other.clone()]);
    assert_eq!((deleted(&going), going.create.len()), (vec![], 0));
    pods.truncate(1);
    let made = planned(yaml, &pods, &[back.clone(), other.clone()]);
    assert_eq!((deleted(&made), made.create.len()), (vec![], 1));
    pods.push(PoolPod { uid: "anew".into(), life: Life::Starting, ..pool_pod(1, 3, &[]) });
    let rest = planned(yaml, &pods, &[back.clone(), other]);
    assert_eq!((deleted(&rest), rest.create.len()), (vec![], 0));
    // Whoever holds a slot keeps it.
    let full = [pool_pod(0, 3, &["a"]), pool_pod(1, 3, &["b"])];
    let plan = planned(yaml, &full, std::slice::from_ref(&back));
    assert_eq!((deleted(&plan), plan.create.len()), (vec![], 0));
    // Above the bound nothing goes for a pod that cannot be made all the same.
    let above = [pool_pod(0, 3, &[]), pool_pod(1, 3, &["b"]), pool_pod(2, 3, &["c"])];
    let back = Claim { barred: above.iter().map(|pod| pod.uid.clone()).collect(), ..back };
    assert_eq!(deleted(&planned(yaml, &above, &[back])), Vec::<&str>::new());
}

#[test]
fn a_session_is_told_when_another_takes_the_last_slot_that_a_bound_permits() {
    let pods = [pool_pod(0, 5, &["first"])];
    let first = claim("first", "alice", Some("pod-0"), 1);
    let second = claim("second", "alice", None, 2);
    let told = Claim { told_limit: true, ..claim("told", "alice", None, 3) };
    for bound in ["maxSessionsPerSubject: 1", "maxSessions: 1"] {
        let yaml = format!("{{pool: {{sessionsPerPod: 5, maxPods: 1, {bound}}}}}");
        let plan = planned(&yaml, &pods, &[first.clone(), second.clone(), told.clone()]);
        assert_eq!((plan.wake.as_slice(), plan.waiting), (&["second".to_owned()][..], 0), "{bound}");
        // While nobody has the place nobody is kept from it.
        let none = planned(&yaml, &[], &[claim("first", "alice", None, 1), second.clone()]);
        assert_eq!(none.wake, Vec::<String>::new(), "{bound}");
    }
    let another = claim("another", "bob", None, 4);
    let yaml = "{pool: {sessionsPerPod: 1, maxPods: 1, maxSessionsPerSubject: 1}}";
    let full = [pool_pod(0, 1, &["first"])];
    assert_eq!(planned(yaml, &full, &[first, another]).wake, Vec::<String>::new(), "no slot is free");
}

#[test]
fn free_slots_wake_the_oldest_sessions_that_may_have_one() {
    let pods = [pool_pod(0, 2, &[])];
    let claims = [
        claim("young", "bob", None, 9),
        claim("second", "alice", None, 2),
        claim("first", "alice", None, 1),
        claim("old", "carol", None, 3),
    ];
    let plan = planned("{pool: {sessionsPerPod: 2, maxSessionsPerSubject: 1, maxPods: 1}}", &pods, &claims);
    assert_eq!(plan.wake, ["first", "old"]);
    assert_eq!(plan.waiting, 3);
}

#[test]
fn a_pod_of_an_older_revision_goes_when_it_is_empty_and_not_before() {
    let old =
        |ordinal: u32, held: &[&str]| PoolPod { revision: "older".into(), ..pool_pod(ordinal, 50, held) };
    let plan = planned("{}", &[old(0, &[]), old(1, &["s"])], &[]);
    assert_eq!(deleted(&plan), ["pod-0"]);
    assert_eq!(plan.create.len(), 1);
}

#[test]
fn a_pod_with_an_older_image_goes_once_a_newer_one_is_ready() {
    let aging = PoolPod { image: "berth:0".into(), ..pool_pod(0, 50, &[]) };
    let starting = PoolPod { life: Life::Starting, ..pool_pod(1, 50, &[]) };
    let first = planned("{}", std::slice::from_ref(&aging), &[]);
    assert_eq!((deleted(&first), first.create.len()), (vec![], 1));
    assert_eq!(deleted(&planned("{}", &[aging.clone(), starting], &[])), Vec::<&str>::new());
    assert_eq!(deleted(&planned("{}", &[aging.clone(), pool_pod(1, 50, &[])], &[])), ["pod-0"]);
    assert_eq!(deleted(&planned("{pool: {maxPods: 1}}", &[aging], &[])), ["pod-0"]);
}

#[test]
fn a_pod_that_held_its_only_session_is_replaced() {
    let mut used = pool_pod(0, 1, &[]);
    used.occupancy.used = true;
    let plan = planned("{pool: {sessionsPerPod: 1}}", &[used], &[]);
    assert_eq!((deleted(&plan), plan.create.len()), (vec!["pod-0"], 1));
}

/// A pod that has not been ready, and whose sidecar has not answered, for so many milliseconds.
fn out_of_reach(ordinal: u32, held: &[&str], not_ready: u64, silent: u64) -> PoolPod {
    let since = Moment(NOW.0 - i64::try_from(not_ready).unwrap());
    let mut pod = PoolPod { life: Life::NotReady { since }, ..pool_pod(ordinal, 50, held) };
    pod.occupancy = Occupancy { synced: false, silent: Duration::from_millis(silent), ..pod.occupancy };
    pod
}

#[test]
fn a_pod_that_has_not_told_what_it_holds_stays() {
    let mut unknown = PoolPod { revision: "older".into(), ..pool_pod(0, 50, &[]) };
    unknown.occupancy.synced = false;
    assert_eq!(deleted(&planned("{}", &[unknown.clone()], &[])), Vec::<&str>::new());
    let gone = |not_ready: u64, silent: u64| {
        let pod = out_of_reach(0, &[], not_ready, silent);
        deleted(&planned("{}", &[PoolPod { revision: "older".into(), ..pod }], &[])).len()
    };
    assert_eq!((gone(119_999, 120_000), gone(120_000, 119_999), gone(120_000, 120_000)), (0, 0, 1));
}

#[test]
fn sessions_of_a_lost_pod_count_as_waiting() {
    let plan = |not_ready, silent| {
        let pods = [out_of_reach(0, &["s"], not_ready, silent), pool_pod(1, 50, &[])];
        planned("{pool: {warm: 0}}", &pods, &[claim("s", "alice", Some("pod-0"), 1)])
    };
    let lost = plan(60_000, 60_000);
    assert_eq!((lost.wake.as_slice(), lost.delete.as_slice()), (&["s".to_owned()][..], &[][..]));
    // A sidecar that this process has only just begun to ask, or whose stream only just broke off, may answer.
    for (not_ready, silent) in [(60_000, 59_999), (300_000, 0), (59_999, 60_000)] {
        let early = plan(not_ready, silent);
        assert_eq!((early.wake.as_slice(), early.waiting), (&[][..], 0), "{not_ready} {silent}");
        assert!(early.silent, "it is looked at again");
    }
    assert!(!planned("{}", &[pool_pod(0, 50, &[])], &[]).silent);
}

#[test]
fn a_bound_on_sessions_bounds_the_free_slots_too() {
    let pods = [pool_pod(0, 1, &["a"])];
    let yaml = "{pool: {warm: 3, sessionsPerPod: 1, maxSessions: 2}}";
    assert_eq!(planned(yaml, &pods, &[claim("a", "alice", Some("pod-0"), 1)]).create.len(), 1);
}

prop_compose! {
    fn any_pod()(
        ordinal in 0_u32..40,
        slots in 1_u32..4,
        held in 0_usize..5,
        life in prop_oneof![
            Just(Life::Starting), Just(Life::Ready), Just(Life::Terminating), Just(Life::Dead),
            (0_i64..300_000).prop_map(|ago| Life::NotReady { since: Moment(NOW.0 - ago) }),
        ],
        synced: bool,
        silent in 0_u64..300_000,
        used: bool,
        old: bool,
    ) -> PoolPod {
        let mut pod = pool_pod(ordinal, slots, &[]);
        pod.occupancy.held = (0..held.min(slots as usize)).map(|n| format!("session-{ordinal}-{n}")).collect();
        pod.occupancy.synced = synced;
        pod.occupancy.silent = Duration::from_millis(silent);
        pod.occupancy.used = used;
        pod.life = life;
        if old { pod.revision = "older".into(); }
        pod
    }
}

fn any_pool() -> impl Strategy<Value = Vec<PoolPod>> {
    prop::collection::vec(any_pod(), 0..12).prop_map(|mut pods| {
        pods.sort_by(|a, b| a.name.cmp(&b.name));
        pods.dedup_by(|a, b| a.name == b.name);
        pods
    })
}

fn any_spec() -> impl Strategy<Value = String> {
    (0_u32..6, 1_u32..4, 1_u32..15).prop_map(|(warm, slots, max)| {
        format!("{{pool: {{warm: {warm}, sessionsPerPod: {slots}, maxPods: {max}}}}}")
    })
}

fn any_claims() -> impl Strategy<Value = Vec<Claim>> {
    (0_usize..8)
        .prop_map(|number| (0..number).map(|n| claim(&format!("waiting-{n}"), "alice", None, 0)).collect())
}

fn any_barred() -> impl Strategy<Value = Vec<Claim>> {
    // All that there are, or some.
    let all = Just((0_u32..40).collect::<Vec<u32>>());
    let left = prop_oneof![all, prop::collection::vec(0_u32..40, 0..40)];
    prop::collection::vec(left, 0..6).prop_map(|all| {
        let barred = |left: Vec<u32>| left.into_iter().map(|ordinal| format!("pod-{ordinal}")).collect();
        let claim =
            |(n, left)| Claim { barred: barred(left), ..claim(&format!("back-{n}"), "alice", None, 0) };
        all.into_iter().enumerate().map(claim).collect()
    })
}

/// The pool after a plan was carried out and everything settled.
fn settle(mut pods: Vec<PoolPod>, plan: &Plan, slots: u32) -> Vec<PoolPod> {
    pods.retain(|pod| pod.life != Life::Terminating && !plan.delete.iter().any(|gone| gone.uid == pod.uid));
    for name in &plan.create {
        let mut made = pool_pod(0, slots, &[]);
        made.name.clone_from(name);
        made.uid = format!("made-{name}");
        pods.push(made);
    }
    for pod in &mut pods {
        pod.occupancy.synced = true;
        if !matches!(pod.life, Life::Dead) {
            pod.life = Life::Ready;
        }
    }
    pods
}

proptest! {
    #[test]
    fn there_are_never_more_pods_than_the_spec_allows(pods in any_pool(), claims in any_claims(), yaml in any_spec()) {
        let plan = planned(&yaml, &pods, &claims);
        let most = valid(&yaml).pool.max_pods as usize;
        prop_assert!(plan.create.is_empty() || pods.len() + plan.create.len() <= most);
    }

    #[test]
    fn a_pod_that_holds_a_session_or_may_hold_one_is_never_deleted(pods in any_pool(), claims in any_claims(), yaml in any_spec()) {
        for gone in planned(&yaml, &pods, &claims).delete {
            let pod = pods.iter().find(|pod| pod.uid == gone.uid).unwrap();
            let dead = pod.life == Life::Dead;
            prop_assert!(dead || pod.occupancy.held.is_empty(), "{pod:?}");
            let may_hold = pod.life == Life::Ready && !pod.occupancy.synced;
            prop_assert!(!may_hold, "{pod:?}");
        }
    }

    #[test]
    fn new_names_are_distinct_and_free(pods in any_pool(), claims in any_claims(), yaml in any_spec()) {
        let mut names = planned(&yaml, &pods, &claims).create;
        names.extend(pods.iter().map(|pod| pod.name.clone()));
        let all = names.len();
        names.sort();
        names.dedup();
        prop_assert_eq!(names.len(), all);
    }

    #[test]
    fn a_pool_comes_to_rest_with_its_warm_slots_or_at_its_bound(pods in any_pool(), yaml in any_spec()) {
        let server = valid(&yaml);
        let mut pods = pods;
        for _ in 0..12 {
            let plan = planned(&yaml, &pods, &[]);
            pods = settle(pods, &plan, server.pool.slots);
        }
        let plan = planned(&yaml, &pods, &[]);
        prop_assert_eq!((&plan.create, &plan.delete), (&vec![], &vec![]), "{:?}", pods);
        let free: u32 = pods.iter().filter(|pod| fit(pod, &server, IMAGE) == Fit::Current).map(PoolPod::free).sum();
        prop_assert!(free >= server.pool.warm || pods.len() >= server.pool.max_pods as usize);
    }

    #[test]
    fn a_pool_comes_to_rest_whatever_pods_sessions_have_left_and_keeps_none_out_that_it_could_take(
        pods in any_pool(), claims in any_barred(), yaml in any_spec(),
    ) {
        let server = valid(&yaml);
        let mut pods = pods;
        for _ in 0..16 {
            let plan = planned(&yaml, &pods, &claims);
            pods = settle(pods, &plan, server.pool.slots);
        }
        let plan = planned(&yaml, &pods, &claims);
        prop_assert_eq!((&plan.create, &plan.delete), (&vec![], &vec![]), "{:?}", pods);
        let held = pods.iter().filter(|pod| !pod.occupancy.held.is_empty()).count();
        for claim in claims.iter().filter(|claim| is_shut_out(&claim.barred, &server, &pods, IMAGE)) {
            prop_assert!(held >= server.pool.max_pods as usize, "{claim:?} {pods:?}");
            let offered = pods.iter().any(|pod| offers(pod, &server, IMAGE));
            prop_assert_eq!(is_locked_out(&claim.barred, &server, &pods, IMAGE, NOW), offered);
        }
    }

    #[test]
    fn a_pool_at_rest_keeps_no_pod_that_it_could_do_without(pods in any_pool(), yaml in any_spec()) {
        let server = valid(&yaml);
        let mut pods = pods;
        for _ in 0..12 {
            let plan = planned(&yaml, &pods, &[]);
            pods = settle(pods, &plan, server.pool.slots);
        }
        let current = || pods.iter().filter(|pod| fit(pod, &server, IMAGE) == Fit::Current);
        let free: u32 = current().map(PoolPod::free).sum();
        for pod in current().filter(|pod| pod.occupancy == Occupancy { synced: true, ..Occupancy::default() }) {
            prop_assert!(free - pod.free() < server.pool.warm, "{pod:?} of {pods:?}");
        }
    }
}

#[test]
fn for_each_pod_to_make_there_is_another_name_that_no_pod_has() {
    let plan = planned("{pool: {warm: 3, sessionsPerPod: 1}}", &[pool_pod(1, 1, &["a"])], &[]);
    let name = |ordinal| pool_pod(ordinal, 1, &[]).name;
    assert_eq!(
        (plan.create, plan.alternatives),
        (vec![name(0), name(2), name(3)], vec![name(4), name(5), name(6)])
    );
    let settled = planned("{}", &[pool_pod(0, 50, &[])], &[]);
    assert_eq!((settled.create, settled.alternatives), (vec![], vec![]));
}
