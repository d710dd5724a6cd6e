//! What users read, case by case.

use super::*;
use crate::pod::Life;
use crate::server::authorities::CaState;
use crate::server::credential::SecretState;
use crate::server::fixture::{IMAGE, pool_pod, server, valid};
use crate::server::validate::validate;

const NOW: Moment = Moment(1_000_000_000);

fn of(yaml: &str, pods: &[PoolPod], waiting: u32, refused: Option<&Trouble>) -> McpServerStatus {
    let valid = valid(yaml);
    status(&server(yaml), &Found { server: Ok(&valid), pods, waiting, refused, image: IMAGE }, NOW)
}

fn ready(status: &McpServerStatus) -> String {
    let ready = status.conditions.last().unwrap();
    format!("{}={} {}", ready.type_, ready.status, ready.reason)
}

fn starting(trouble: Option<Reason>) -> PoolPod {
    let trouble = trouble.map(|reason| Trouble { reason, message: "image \"x\": no such image".into() });
    PoolPod { life: Life::Starting, trouble, ..pool_pod(0, 50, &[]) }
}

#[test]
fn counts_speak_of_pods_that_take_sessions() {
    let old = PoolPod { revision: "older".into(), ..pool_pod(3, 50, &["c"]) };
    let status =
        of("{}", &[pool_pod(0, 50, &["a", "b"]), pool_pod(1, 50, &[]), starting(None), old], 0, None);
    assert_eq!((status.pods, status.ready_pods, status.sessions, status.free_slots), (4, 3, 3, 98));
    assert_eq!((status.sessions_per_pod, ready(&status).as_str()), (Some(50), "Ready=True PoolReady"));
    assert_eq!(status.revision, Some(valid("{}").key.revision));
}

#[test]
fn a_pool_without_a_free_slot_says_why() {
    let forbidden = Trouble { reason: Reason::PodForbidden, message: "no".into() };
    let full = || vec![pool_pod(0, 1, &["a"])];
    let table: [(&str, Vec<PoolPod>, Option<&Trouble>, &str); 7] = [
        ("{}", vec![], None, "Ready=False PoolStarting"),
        ("{}", vec![starting(None)], None, "Ready=False PoolStarting"),
        ("{}", vec![starting(Some(Reason::ImagePullFailed))], None, "Ready=False ImagePullFailed"),
        ("{}", vec![], Some(&forbidden), "Ready=False PodForbidden"),
        ("{pool: {sessionsPerPod: 1, maxPods: 1}}", full(), None, "Ready=False LimitReached"),
        ("{pool: {sessionsPerPod: 1, maxSessions: 1}}", full(), None, "Ready=False LimitReached"),
        ("{pool: {warm: 0}}", vec![], None, "Ready=True PoolReady"),
    ];
    for (yaml, pods, refused, wanted) in table {
        assert_eq!(ready(&of(yaml, &pods, 0, refused)), wanted, "{yaml} {pods:?}");
    }
}

#[test]
fn what_people_have_to_mend_names_the_pod_and_the_remedy() {
    let name = pool_pod(0, 50, &[]).name;
    let text = |status: &McpServerStatus| status.conditions.last().unwrap().message.clone();
    let taken = name_taken(&name);
    let status = of("{}", &[], 1, Some(&taken));
    assert_eq!(ready(&status), "Ready=False PodForbidden");
    assert!(text(&status).contains(&name) && text(&status).ends_with("delete it"), "{status:?}");
    // Ready by the kubelet, and its sidecar tells no operator what it holds.
    let mut locked = pool_pod(0, 50, &[]).locked_by(Some(Trouble::locked(&name, 50_000)));
    locked.occupancy.synced = false;
    let pods = [locked, pool_pod(1, 50, &[])];
    for (pods, wanted) in [(&pods[..1], "Ready=False PoolStarting"), (&pods, "Ready=True PoolReady")] {
        let status = of("{}", pods, 1, None);
        assert_eq!(ready(&status), wanted);
        let text = text(&status);
        assert!(text.contains(&format!("{name:?}")), "{text}");
        assert!(
            text.ends_with("set spec.leaseTransitions of the Lease \"berth-operator\" back to 50000"),
            "{text}"
        );
    }
}

#[test]
fn sessions_that_cannot_leave_the_former_spec_are_counted_with_the_reason() {
    let old = |ordinal, held: &[&str]| PoolPod { revision: "older".into(), ..pool_pod(ordinal, 50, held) };
    let full = "all 1 pods of pool.maxPods are in use; end sessions or raise it";
    let two = "2 of the sessions still use the former spec, until a slot of the present one is free";
    let one = "1 of the sessions still uses the former spec, until a slot of the present one is free";
    let quota = Trouble { reason: Reason::QuotaExceeded, message: "no".into() };
    let table = [
        (
            "{pool: {maxPods: 1}}",
            vec![old(0, &["a", "b"])],
            None,
            "Ready=False LimitReached",
            format!("{full}; {two}"),
        ),
        (
            "{pool: {maxPods: 1, warm: 0}}",
            vec![old(0, &["a"])],
            None,
            "Ready=True PoolReady",
            format!("{full}; {one}"),
        ),
        (
            "{pool: {warm: 0}}",
            vec![old(0, &["a"])],
            None,
            "Ready=True PoolReady",
            format!("{one}; raise pool.warm"),
        ),
        ("{}", vec![old(0, &["a"])], Some(&quota), "Ready=False QuotaExceeded", format!("no; {one}")),
        (
            "{}",
            vec![old(0, &["a"])],
            None,
            "Ready=False PoolStarting",
            "pods of the pool are being made".into(),
        ),
        ("{}", vec![old(0, &["a"]), pool_pod(1, 50, &[])], None, "Ready=True PoolReady", String::new()),
        (
            "{pool: {maxPods: 1, sessionsPerPod: 1}}",
            vec![pool_pod(0, 1, &["a"])],
            None,
            "Ready=False LimitReached",
            full.into(),
        ),
        (
            "{pool: {warm: 0}}",
            vec![PoolPod { life: Life::Dead, ..old(0, &["a"]) }],
            None,
            "Ready=True PoolReady",
            String::new(),
        ),
    ];
    for (yaml, pods, refused, wanted, text) in table {
        let status = of(yaml, &pods, 0, refused);
        let message = &status.conditions.last().unwrap().message;
        assert_eq!((ready(&status).as_str(), message), (wanted, &text), "{yaml} {pods:?}");
        let stored = McpServer { status: Some(status), ..server(yaml) };
        let moves_soon = wanted.ends_with("PoolStarting") || pods.len() == 2;
        assert_eq!(is_held_up(&stored), !moves_soon, "{yaml} {pods:?}");
    }
}

#[test]
fn who_waits_is_told_what_somebody_has_to_mend_and_nothing_of_an_older_spec() {
    let with = |refused: Option<&Trouble>, pods: &[PoolPod]| McpServer {
        status: Some(of("{}", pods, 1, refused)),
        ..server("{}")
    };
    for reason in [Reason::QuotaExceeded, Reason::PodForbidden] {
        let refused = Trouble { reason, message: "a pod of the pool was refused: used 4".into() };
        let stored = with(Some(&refused), &[]);
        let told = trouble(&stored).unwrap();
        assert_eq!(told.reason, reason);
        let changed = Trouble { message: "a pod of the pool was refused: used 5".into(), ..refused.clone() };
        assert_eq!(trouble(&with(Some(&changed), &[])), Some(told), "other figures are no news");
        let mut later = stored;
        later.metadata.generation = Some(9);
        assert_eq!(trouble(&later), None);
        assert_eq!(trouble(&with(Some(&refused), &[pool_pod(0, 50, &[])])), None, "a slot is free");
    }
    for reason in [Reason::Unschedulable, Reason::ImagePullFailed] {
        assert_eq!(trouble(&with(None, &[starting(Some(reason))])).unwrap().reason, reason);
    }
    assert_eq!(trouble(&with(None, &[starting(None)])), None, "it is on its way");
    assert_eq!(trouble(&server("{}")), None);
}

#[test]
fn a_refused_server_is_not_ready_for_the_same_reason() {
    let shared = server("{auth: {type: Shared, shared: {secretKeyRef: {name: token, key: value}}}}");
    let refusal = validate(&shared, SecretState::Missing, CaState::Missing).unwrap_err();
    let found = Found { server: Err(&refusal), pods: &[], waiting: 0, refused: None, image: IMAGE };
    let status = status(&shared, &found, NOW);
    let all: Vec<String> = status
        .conditions
        .iter()
        .map(|found| format!("{}={} {}", found.type_, found.status, found.reason))
        .collect();
    assert_eq!(all, ["Accepted=True Accepted", "ResolvedRefs=False RefNotFound", "Ready=False RefNotFound"]);
}

#[test]
fn an_unchanged_pool_has_an_unchanged_status() {
    let mut held = server("{}");
    held.status = Some(of("{}", &[pool_pod(0, 50, &[])], 0, None));
    let valid = valid("{}");
    let pods = [pool_pod(0, 50, &[])];
    let found = Found { server: Ok(&valid), pods: &pods, waiting: 0, refused: None, image: IMAGE };
    assert_eq!(Some(status(&held, &found, Moment(NOW.0 + 3_600_000))), held.status);
}

#[test]
fn refusals_of_pods_are_told_by_kind() {
    let reason = |message: &str| create_trouble(message).map(|trouble| trouble.reason);
    assert_eq!(reason("pods \"x\" is forbidden: exceeded quota: q"), Some(Reason::QuotaExceeded));
    assert_eq!(reason("pods \"x\" is forbidden: violates PodSecurity"), Some(Reason::PodForbidden));
    assert_eq!(reason("unable to create new content in namespace demo because it is being terminated"), None);
}

#[test]
fn what_pods_need_and_cannot_have_is_named_with_the_remedy_and_is_no_end_of_what_serves() {
    let what = "failed to apply network policy \"everything-x\": a policy says no";
    let cases = [
        (
            prepare_trouble(Some(what)),
            "Ready=False PodForbidden",
            "; let the operator do so, or delete what is in its way",
        ),
        (prepare_trouble(None), "Ready=False PoolStarting", "; the operator tries again, and logs why"),
        (
            prepare_trouble(Some("secrets \"x\": exceeded quota: q")),
            "Ready=False QuotaExceeded",
            "; raise the quota",
        ),
    ];
    for (trouble, wanted, remedy) in cases {
        let message = |status: &McpServerStatus| status.conditions.last().unwrap().message.clone();
        let empty = of("{}", &[], 0, Some(&trouble));
        assert_eq!((ready(&empty).as_str(), message(&empty)), (wanted, trouble.message.clone()));
        assert!(trouble.message.ends_with(remedy), "{trouble:?}");
        let serving = of("{}", &[pool_pod(0, 50, &[])], 0, Some(&trouble));
        assert_eq!((ready(&serving).as_str(), message(&serving)), ("Ready=True PoolReady", trouble.message));
    }
    assert!(prepare_trouble(Some(what)).message.contains("network policy \"everything-x\""));
}
