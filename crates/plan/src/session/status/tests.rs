//! What users read, case by case.

use super::*;
use crate::server::credential::{self, User};
use crate::server::fixture::{pool_pod, valid};
use crate::session::validate::fixture::session;
use berth_wire::{Activity, Failure, Generation, SessionState};

const NOW: Moment = Moment(1_000_000_000);
const GATEWAY: &str = "http://gateway.berth.svc:8080/";

fn report(failure: Option<Failure>, message: Option<&str>) -> SessionReport {
    SessionReport {
        uid: "77-session".into(),
        generation: Generation::default(),
        state: SessionState::Idle,
        failure,
        message: message.map(Into::into),
        next_retry_unix_millis: None,
        activity: Activity::default(),
        end: None,
    }
}

fn held(failure: Option<Failure>, message: Option<&str>) -> Outcome {
    Outcome::kept(&valid("{}"), &pool_pod(0, 50, &["77-session"]), Some(report(failure, message)))
}

fn waiting() -> Outcome {
    Outcome::Waiting(Wait::NoSlot { server: "everything".into() })
}

fn refused() -> Outcome {
    Outcome::Refused(Refusal::ServerNotFound { server: "gone".into(), namespace: "demo".into() })
}

fn two_servers() -> AgentSession {
    session("{servers: [{name: a}, {name: b}]}")
}

/// Type, status and reason of each condition.
fn conditions(status: &AgentSessionStatus) -> Vec<String> {
    let text = |found: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
        format!("{}={} {}", found.type_, found.status, found.reason)
    };
    status.conditions.iter().map(text).collect()
}

fn ready(session: &AgentSession, outcomes: &[Outcome]) -> String {
    conditions(&status(session, outcomes, GATEWAY, NOW)).pop().unwrap()
}

#[test]
fn a_bound_session_says_where_and_under_which_url() {
    let status = status(&session("{}"), &[held(None, None)], GATEWAY, NOW);
    assert_eq!(
        conditions(&status),
        ["Accepted=True Accepted", "ResolvedRefs=True ResolvedRefs", "Ready=True Bound"]
    );
    assert_eq!(
        serde_json::to_value(&status.servers).unwrap(),
        serde_json::json!([{
            "name": "everything",
            "state": "Bound",
            "revision": valid("{}").key.revision,
            "url": "http://gateway.berth.svc:8080/demo/chat/everything/mcp",
            "podRef": {"name": pool_pod(0, 50, &[]).name, "uid": "pod-0", "address": "10.0.0.1", "serverUid": "0a1b-server"},
        }])
    );
}

#[test]
fn a_missing_server_is_an_unresolved_reference() {
    let status = status(&session("{}"), &[refused()], GATEWAY, NOW);
    assert_eq!(
        conditions(&status),
        ["Accepted=True Accepted", "ResolvedRefs=False RefNotFound", "Ready=False RefNotFound"]
    );
    assert_eq!(status.servers[0].url, None);
}

#[test]
fn one_bad_server_of_two_leaves_the_session_ready_and_degraded() {
    let down = || held(Some(Failure::UpstreamUnreachable), Some("connect refused"));
    assert_eq!(ready(&two_servers(), &[held(None, None), refused()]), "Ready=True Degraded");
    assert_eq!(ready(&two_servers(), &[down(), held(None, None)]), "Ready=True Degraded");
    assert_eq!(ready(&two_servers(), &[down(), refused()]), "Ready=False UpstreamUnreachable");
    assert_eq!(ready(&session("{}"), &[down()]), "Ready=False UpstreamUnreachable");
}

fn without_credential(told: bool, refusal: credential::Refusal) -> Outcome {
    let refusal = Refusal::Credential { server: "everything".into(), refusal };
    Outcome::withheld(&valid("{}"), &pool_pod(0, 50, &["77-session"]), refusal, told)
}

fn unlabelled() -> credential::Refusal {
    credential::Refusal::NotPermitted { secret: "token".into(), user: User::Session }
}

#[test]
fn a_bound_session_that_loses_its_credential_keeps_its_slot_and_says_why_it_is_not_ready() {
    let status = status(&session("{}"), &[without_credential(true, unlabelled())], GATEWAY, NOW);
    assert_eq!(
        conditions(&status),
        ["Accepted=True Accepted", "ResolvedRefs=False RefNotPermitted", "Ready=False RefNotPermitted"]
    );
    let server = &status.servers[0];
    assert_eq!((server.state, server.reason.as_deref()), (BindingState::Degraded, Some("RefNotPermitted")));
    assert!(server.pod_ref.is_some() && server.url.is_some() && server.revision.is_some());
    assert!(server.last_error.as_ref().unwrap().contains("secret \"token\" is not labelled"), "{server:?}");
}

#[test]
fn a_missing_credential_is_a_spec_that_is_not_accepted_and_every_reference_resolves() {
    let missing = Outcome::Refused(Refusal::NoCredential { index: 1, server: "b".into() });
    let alone = status(&session("{}"), std::slice::from_ref(&missing), GATEWAY, NOW);
    assert_eq!(
        conditions(&alone),
        ["Accepted=False InvalidSpec", "ResolvedRefs=True ResolvedRefs", "Ready=False InvalidSpec"]
    );
    assert!(alone.conditions[0].message.contains("spec.servers[1].credential"), "{alone:?}");
    let beside = status(&two_servers(), &[held(None, None), missing], GATEWAY, NOW);
    assert_eq!(
        conditions(&beside),
        ["Accepted=False InvalidSpec", "ResolvedRefs=True ResolvedRefs", "Ready=True Degraded"]
    );
}

#[test]
fn every_unresolved_reference_is_named_under_the_reason_of_the_first() {
    let outcomes = [refused(), without_credential(true, unlabelled())];
    let status = status(&two_servers(), &outcomes, GATEWAY, NOW);
    let resolved = &status.conditions[1];
    assert_eq!((resolved.type_.as_str(), resolved.reason.as_str()), ("ResolvedRefs", "RefNotFound"));
    assert!(resolved.message.contains("\"gone\"") && resolved.message.contains("\"token\""), "{resolved:?}");
}

#[test]
fn what_comes_unseen_is_looked_for_and_what_an_event_tells_is_not() {
    let missing = || credential::Refusal::SecretNotFound {
        secret: "token".into(),
        key: "value".into(),
        user: User::Session,
    };
    let no_key = || credential::Refusal::KeyNotFound {
        secret: "token".into(),
        key: "value".into(),
        field: "spec.servers[0].credential.secretKeyRef".into(),
    };
    let refused = |refusal| Outcome::Refused(Refusal::Credential { server: "everything".into(), refusal });
    let later = |millis: i64| Some(Moment(NOW.0 + millis));
    let seldom = Some(NOW.plus(spread(Duration::from_mins(2), "77-session")));
    let table = [
        (refused(missing()), seldom),
        (refused(unlabelled()), seldom),
        (refused(no_key()), None),
        (without_credential(true, unlabelled()), seldom),
        (without_credential(true, no_key()), None),
        // The sidecar has to learn of it, whatever it is.
        (without_credential(false, no_key()), later(2_000)),
    ];
    for (outcome, next) in table {
        assert_eq!(next_look(&session("{}"), std::slice::from_ref(&outcome), NOW), next, "{outcome:?}");
    }
}

#[test]
fn a_failed_upstream_shows_its_reason_and_a_bounded_error() {
    let long = "é".repeat(500);
    let status = status(&session("{}"), &[held(Some(Failure::Unauthorized), Some(&long))], GATEWAY, NOW);
    let server = &status.servers[0];
    assert_eq!((server.state, server.reason.as_deref()), (BindingState::Degraded, Some("Unauthorized")));
    assert!(server.last_error.as_ref().unwrap().len() <= ERROR_BYTES && server.url.is_some());
}

#[test]
fn a_session_that_waits_too_long_says_so_at_its_deadline_and_not_before() {
    let mut session = session("{bindTimeout: 10s}");
    session.metadata.creation_timestamp = Some(NOW.to_api());
    let at = |millis: i64| {
        let now = Moment(NOW.0 + millis);
        (status(&session, &[waiting()], GATEWAY, now), next_look(&session, &[waiting()], now))
    };
    let (early, next) = at(9_999);
    assert_eq!(conditions(&early).pop().unwrap(), "Ready=False Pending");
    assert_eq!(next, Some(Moment(NOW.0 + 10_000)));
    let (late, next) = at(10_000);
    assert_eq!(conditions(&late).pop().unwrap(), "Ready=False BindTimeout");
    assert_eq!(next, Some(Moment(NOW.0 + 40_000)));
}

#[test]
fn a_bound_on_sessions_is_not_a_timeout() {
    let limit = Outcome::Waiting(Wait::Sessions { server: "everything".into(), most: 1 });
    let mut session = session("{bindTimeout: 10s}");
    session.metadata.creation_timestamp = Some(Moment(0).to_api());
    assert_eq!(ready(&session, &[limit]), "Ready=False LimitReached");
}

#[test]
fn while_a_sidecar_is_unheard_what_was_said_before_stands() {
    let mut session = session("{}");
    let failed = held(Some(Failure::Unauthorized), Some("no"));
    session.status = Some(status(&session, &[failed], GATEWAY, NOW));
    let unheard = Outcome::kept(&valid("{}"), &pool_pod(0, 50, &[]), None);
    let later = Moment(NOW.0 + 60_000);
    assert_eq!(Some(status(&session, &[unheard], GATEWAY, later)), session.status);
    let elsewhere = Outcome::kept(&valid("{}"), &pool_pod(1, 50, &[]), None);
    assert_eq!(ready(&session, &[elsewhere]), "Ready=True Bound");
}

#[test]
fn a_slot_in_a_pod_that_nobody_can_reach_is_not_bound() {
    let mut pod = pool_pod(0, 50, &[]);
    pod.life = Life::NotReady { since: NOW };
    pod.occupancy.synced = false;
    assert_eq!(ready(&session("{}"), &[Outcome::kept(&valid("{}"), &pod, None)]), "Ready=False Pending");
    assert_eq!(
        ready(&session("{}"), &[silent(&session("{}"), &valid("{}"), &pod, None, "refused")]),
        "Ready=False Pending"
    );
}

#[test]
fn a_slot_that_no_sidecar_confirmed_is_not_bound() {
    let pod = pool_pod(0, 50, &[]);
    let mut session = session("{}");
    let asked = |session: &AgentSession| silent(session, &valid("{}"), &pod, None, "no answer");
    assert_eq!(ready(&session, &[asked(&session)]), "Ready=False Pending");
    session.status = Some(status(&session, &[held(None, None)], GATEWAY, NOW));
    assert_eq!(ready(&session, &[asked(&session)]), "Ready=True Bound");
}

#[test]
fn a_pod_of_which_nobody_has_heard_that_the_session_is_over_there_stays_named() {
    let mut session = session("{}");
    let undecided = [refused(), Outcome::Unconfirmed { error: "no answer".into() }];
    for outcome in &undecided {
        assert_eq!(status(&session, std::slice::from_ref(outcome), GATEWAY, NOW).servers[0].pod_ref, None);
    }
    let before = status(&session, &[held(None, None)], GATEWAY, NOW);
    session.status = Some(before.clone());
    for outcome in undecided {
        let server = status(&session, &[outcome], GATEWAY, NOW).servers.remove(0);
        assert_eq!((server.state, server.url), (BindingState::Pending, None), "nobody is sent there");
        assert_eq!(server.pod_ref, before.servers[0].pod_ref);
    }
}

#[test]
fn what_a_sidecar_cannot_act_on_is_an_invalid_spec_until_it_changes() {
    let error = "upstream.url: not a URL";
    let invalid = Outcome::Invalid { server: "everything".into(), error: error.into() };
    let status = status(&session("{}"), std::slice::from_ref(&invalid), GATEWAY, NOW);
    assert_eq!(conditions(&status).pop().unwrap(), "Ready=False InvalidSpec");
    let server = &status.servers[0];
    assert_eq!((server.state, server.reason.as_deref()), (BindingState::Pending, Some("InvalidSpec")));
    assert!(server.pod_ref.is_none() && server.last_error.as_ref().unwrap().contains(error));
    assert_eq!(next_look(&session("{}"), &[invalid], NOW), None);
}

#[test]
fn a_settled_session_looks_again_at_no_time_of_its_own() {
    let session = session("{}");
    assert_eq!(next_look(&session, &[held(None, None), refused()], NOW), None);
    let outdated = Outcome::kept(
        &valid("{}"),
        &crate::pod::PoolPod { revision: "older".into(), ..pool_pod(0, 50, &[]) },
        None,
    );
    assert_eq!(next_look(&session, &[outdated], NOW), Some(Moment(NOW.0 + 2_000)));
}

#[test]
fn the_status_of_32_failing_servers_is_small() {
    let names: Vec<String> = (0..32).map(|n| format!("{{name: server-{n}}}")).collect();
    let session = session(&format!("{{servers: [{}]}}", names.join(", ")));
    let outcomes = vec![held(Some(Failure::ProtocolError), Some(&"x".repeat(2 << 20))); 32];
    let status = status(&session, &outcomes, GATEWAY, NOW);
    assert!(serde_json::to_string(&status).unwrap().len() < 32 << 10);
}

#[test]
fn the_servers_are_listed_in_the_order_of_the_spec() {
    let session = session("{servers: [{name: z}, {name: a}, {name: m}]}");
    let listed = status(&session, &[refused(), held(None, None), waiting()], GATEWAY, NOW).servers;
    let listed: Vec<_> = listed.iter().map(|server| (server.name.as_str(), server.state)).collect();
    let expected = [("z", BindingState::Pending), ("a", BindingState::Bound), ("m", BindingState::Pending)];
    assert_eq!(listed, expected);
}

#[test]
fn each_server_is_named_once_in_what_is_wrong() {
    let named = waiting();
    let foreign = held(Some(Failure::UpstreamUnreachable), Some("connect refused"));
    let silent = held(Some(Failure::Unauthorized), None);
    let session = session("{servers: [{name: everything}, {name: b}, {name: c}, {name: d}]}");
    let status = status(&session, &[named, foreign, silent, held(None, None)], GATEWAY, NOW);
    assert_eq!(
        status.conditions.last().unwrap().message,
        "waits for a free slot of server \"everything\"; server \"b\": connect refused; server \"c\""
    );
}

/// The server with the condition Ready and so many free slots.
fn server_that_says(ready: &str, reason: &str, message: &str, free: i32) -> berth_api::McpServer {
    let mut server = crate::server::fixture::server("{}");
    server.status = serde_json::from_value(serde_json::json!({
        "conditions": [{"type": "Ready", "status": ready, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": server.metadata.generation}],
        "pods": 1, "readyPods": 1, "sessions": 1, "freeSlots": free,
    }))
    .unwrap();
    server
}

#[test]
fn a_session_that_waits_says_what_is_wrong_with_the_pool_and_at_its_deadline_too() {
    let quota = server_that_says("False", "QuotaExceeded", "a pod of the pool was refused: q", 0);
    let outcomes = [waiting().explained(&quota)];
    let mut session = session("{bindTimeout: 1s}");
    session.metadata.creation_timestamp = Some(Moment(NOW.0 - 5_000).to_api());
    let told = status(&session, &outcomes, GATEWAY, NOW);
    assert_eq!(conditions(&told).pop().unwrap(), "Ready=False QuotaExceeded");
    let text = "waits for a free slot of server \"everything\": its pool says QuotaExceeded, see kubectl describe mcpserver everything";
    assert_eq!(told.conditions.last().unwrap().message, text);
    assert_eq!(told.servers[0].reason.as_deref(), Some("QuotaExceeded"));
    assert_eq!(next_look(&session, &outcomes, NOW), Some(NOW.plus(WAITING)));
    for (ready, reason) in [("True", "PoolReady"), ("False", "PoolStarting"), ("False", "LimitReached")] {
        assert_eq!(waiting().explained(&server_that_says(ready, reason, "x", 0)), waiting(), "{reason}");
    }
    let limit = Outcome::Waiting(Wait::Sessions { server: "everything".into(), most: 1 });
    assert_eq!(limit.clone().explained(&quota), limit);
}

#[test]
fn a_session_that_cannot_leave_the_former_spec_says_so_and_stays_ready() {
    let older = crate::pod::PoolPod { revision: "older".into(), ..pool_pod(0, 50, &["77-session"]) };
    let kept = |report| Outcome::kept(&valid("{}"), &older, Some(report));
    let full = server_that_says("False", "LimitReached", "full", 0);
    let told = status(&session("{}"), &[kept(report(None, None)).explained(&full)], GATEWAY, NOW);
    assert_eq!(conditions(&told).pop().unwrap(), "Ready=True Bound");
    let name = full.metadata.name.clone().unwrap();
    let text =
        format!("still uses the former spec of server {name:?}, until a slot of the present one is free");
    assert_eq!(told.servers[0].last_error.as_ref(), Some(&text));
    // The same again is no write.
    let again = AgentSession { status: Some(told.clone()), ..session("{}") };
    assert_eq!(status(&again, &[kept(report(None, None)).explained(&full)], GATEWAY, NOW), told);
    // What the upstream says is not hidden by it, nor is what people have to do by the pod.
    let down = report(Some(Failure::UpstreamUnreachable), Some("connect refused"));
    let down = status(&session("{}"), &[kept(down).explained(&full)], GATEWAY, NOW);
    assert_eq!(conditions(&down).pop().unwrap(), "Ready=False UpstreamUnreachable");
    assert_eq!(down.servers[0].last_error, Some(format!("{text}; connect refused")));
    let noted = kept(report(None, None)).noted("delete the pod");
    assert_eq!(noted.clone().explained(&full), noted);
    // One that moves within moments is not written of.
    let moves = kept(report(None, None));
    for server in
        [server_that_says("False", "PoolStarting", "", 0), server_that_says("True", "PoolReady", "", 3)]
    {
        assert_eq!(moves.clone().explained(&server), moves);
    }
    assert_eq!(held(None, None).explained(&full), held(None, None));
}

#[test]
fn a_slot_that_serves_on_in_a_pod_which_obeys_nobody_is_bound_and_says_what_to_do() {
    let trouble = crate::pod::Trouble::locked("everything-x-0", 50_000);
    let noted = |report| {
        Outcome::kept(&valid("{}"), &pool_pod(0, 50, &["77-session"]), report).noted(&trouble.message)
    };
    let mut session = session("{}");
    for report in [Some(report(None, None)), None] {
        let status = status(&session, &[noted(report)], GATEWAY, NOW);
        assert_eq!(conditions(&status).pop().unwrap(), "Ready=True Bound");
        assert!(
            status.conditions.last().unwrap().message.contains("\"everything-x-0\" refuses every operator"),
            "{status:?}"
        );
        assert!(status.servers[0].pod_ref.is_some() && status.servers[0].state == BindingState::Bound);
        session.status = Some(status);
    }
    // It is over with the first answer.
    let status = status(&session, &[held(None, None)], GATEWAY, NOW);
    assert_eq!(
        (status.conditions.last().unwrap().message.as_str(), &status.servers[0].last_error),
        ("", &None)
    );
}

#[test]
fn an_upstream_that_refuses_or_cannot_be_had_is_told_by_its_reason() {
    for (failure, reason) in [
        (Failure::Unauthorized, "Unauthorized"),
        (Failure::RateLimited, "RateLimited"),
        (Failure::UpstreamUnreachable, "UpstreamUnreachable"),
        (Failure::TLSUntrusted, "TLSUntrusted"),
    ] {
        let bad = held(Some(failure), Some("it does not go"));
        let of = status(&session("{}"), std::slice::from_ref(&bad), GATEWAY, NOW);
        let entry = &of.servers[0];
        assert_eq!((entry.state, entry.reason.as_deref()), (BindingState::Degraded, Some(reason)));
        assert_eq!(entry.last_error.as_deref(), Some("it does not go"));
        assert_eq!(ready(&session("{}"), std::slice::from_ref(&bad)), format!("Ready=False {reason}"));
        assert_eq!(ready(&two_servers(), &[held(None, None), bad]), "Ready=True Degraded");
    }
}

/// The time shown for a server whose sidecar tries again at `next`, at `now`, where `before` is shown already.
fn shown(next: Option<u64>, before: Option<&Time>, now: Moment) -> Option<Time> {
    let mut session = session("{}");
    let told = |next| {
        let report = report(Some(Failure::RateLimited), None);
        let report = SessionReport { next_retry_unix_millis: next, ..report };
        Outcome::kept(&valid("{}"), &pool_pod(0, 50, &["77-session"]), Some(report))
    };
    let mut held = status(&session, &[told(None)], GATEWAY, NOW);
    held.servers[0].next_retry_time = before.cloned();
    session.status = Some(held);
    status(&session, &[told(next)], GATEWAY, now).servers[0].next_retry_time.clone()
}

#[test]
fn the_next_attempt_is_shown_while_it_is_far_enough_away_and_then_stays() {
    let at = |seconds: u64| Some(1_000_000_000 + seconds * 1000);
    let time = |seconds: u64| NOW.plus(Duration::from_secs(seconds)).to_api();
    assert_eq!(shown(None, None, NOW), None);
    assert_eq!(shown(at(9), None, NOW), None, "the pause is too short to be worth a write");
    assert_eq!(shown(at(120), None, NOW), Some(time(120)));
    let later = NOW.plus(Duration::from_secs(115));
    assert_eq!(shown(at(120), Some(&time(120)), later), Some(time(120)), "it changes nothing");
    assert_eq!(shown(at(120), Some(&time(120)), NOW.plus(Duration::from_mins(2))), None);
    assert_eq!(shown(None, Some(&time(120)), NOW), None, "the upstream is well again");
    assert_eq!(shown(at(240), Some(&time(120)), later), Some(time(240)));
}

#[test]
fn without_news_from_the_sidecar_the_next_attempt_stays_until_it_has_passed() {
    let mut session = session("{}");
    let mut before = status(&session, &[held(Some(Failure::RateLimited), None)], GATEWAY, NOW);
    let time = NOW.plus(Duration::from_mins(1)).to_api();
    before.servers[0].next_retry_time = Some(time.clone());
    session.status = Some(before);
    let silent = Outcome::kept(&valid("{}"), &pool_pod(0, 50, &["77-session"]), None);
    let shown = |now| {
        status(&session, std::slice::from_ref(&silent), GATEWAY, now).servers[0].next_retry_time.clone()
    };
    assert_eq!(shown(NOW), Some(time));
    assert_eq!(shown(NOW.plus(Duration::from_mins(1))), None);
}
