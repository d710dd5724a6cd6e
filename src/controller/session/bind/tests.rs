//! One binding at real sockets, with stand-ins for sidecars.

use super::*;
use crate::fixture;
use crate::fleet::stand::{Stand, pod, report, until};
use berth_api::label;
use berth_plan::server::validate::accept;
use berth_plan::session::validate::Refusal;
use berth_wire::SessionState;
use serde_json::json;

/// A sidecar at `address` whose pod is ready, and the server of that pod.
pub async fn stage(address: &str) -> (Context, Stand, ValidServer) {
    let (mut ctx, _) = fixture::context(|_| fixture::failure(404, "NotFound", "no")).await;
    let spec = json!({"pool": {"sessionsPerPod": 1}});
    let server = accept(&fixture::server("everything", &spec)).unwrap();
    let stand = Stand::start(&ctx.ca, address, vec![]).await;
    let mut ready = pod(address);
    let revision = server.key.revision.clone();
    ready.metadata.labels.get_or_insert_default().insert(label::REVISION.into(), revision);
    ctx.stores.pods = fixture::store_of(vec![ready.clone()]);
    ctx.fleet.follow(&ready);
    until("synced", || ctx.fleet.is_synced("pod")).await;
    (ctx, stand, server)
}

fn open(server: &ValidServer) -> Binding {
    Binding { server: server.clone(), headers: Ok(vec![]), tls: Ok(None) }
}

#[tokio::test]
async fn a_slot_at_a_server_that_is_gone_or_going_is_told_to_gateways_no_more() {
    let going = {
        let mut going = fixture::server("everything", &json!({}));
        going.metadata.deletion_timestamp = fixture::deleted_session(&json!({})).metadata.deletion_timestamp;
        going
    };
    let there = fixture::server("everything", &json!({}));
    let cases =
        [("127.0.79.11", vec![], 0), ("127.0.79.12", vec![going], 0), ("127.0.79.13", vec![there], 1)];
    for (address, servers, confirmed) in cases {
        let (mut ctx, _stand, server) = stage(address).await;
        ctx.stores.servers = fixture::store_of(servers);
        let session = fixture::deleted_session(&json!({}));
        let held = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
        assert!(matches!(held, Outcome::Held { .. }), "{held:?}");
        assert_eq!(ctx.slots.confirmed("77-session").len(), 1);
        let refusal = Refusal::ServerNotFound { server: "everything".into(), namespace: "demo".into() };
        let refused = Outcome::Refused(refusal);
        assert_eq!(bind(&session, Err(refused.clone()), &[], &ctx, ctx.clock.now()).await, refused);
        assert_eq!(ctx.slots.confirmed("77-session").len(), confirmed, "{address}");
        assert_eq!(ctx.slots.promises_of("77-session").len(), 1, "an end asks that pod");
    }
}

#[tokio::test]
async fn a_slot_in_a_pod_that_obeys_nobody_serves_on_and_says_what_to_do_and_none_is_taken_there() {
    let (ctx, _stand, server) = stage("127.0.79.14").await;
    let mut session = fixture::deleted_session(&json!({}));
    session.metadata.uid = Some("old-term".into());
    let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
    assert!(matches!(outcome, Outcome::Waiting(Wait::NoSlot { .. })), "{outcome:?}");
    assert_eq!(ctx.slots.promises_of("old-term"), []);
    let pod =
        json!({"name": "everything-x-0", "uid": "pod", "address": "127.0.79.14", "serverUid": "server"});
    let status = json!({"servers": [{"name": "everything", "state": "Bound", "podRef": pod}]});
    session.status = serde_json::from_value(status).unwrap();
    ctx.slots.with(|book| book.promise("old-term", "server", "pod"));
    let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
    let Outcome::Held { note: Some(note), .. } = outcome else { panic!("{outcome:?}") };
    assert!(note.contains("\"everything-x-0\"") && note.contains("delete the pod, or set"), "{note}");
    let trouble = ctx.slots.with(|book| pool_pods("demo", "server", &ctx, book)[0].trouble.clone());
    assert_eq!(trouble.unwrap().message, note);
}

#[tokio::test]
async fn a_session_that_only_a_silent_sidecar_knows_of_gets_no_second_slot_from_the_next_operator() {
    let (mut ctx, stand, server) = stage("127.0.79.17").await;
    let session = fixture::deleted_session(&json!({}));
    let held = report("77-session", SessionState::Idle);
    let _holder = Stand::start(&ctx.ca, "127.0.79.18", vec![held]).await;
    let mut holds = ctx.stores.pods.state()[0].as_ref().clone();
    holds.metadata.uid = Some("holds".into());
    holds.metadata.name = Some("everything-x-1".into());
    holds.status.get_or_insert_default().pod_ip = Some("127.0.79.18".into());
    ctx.stores.pods = fixture::store_of(vec![ctx.stores.pods.state()[0].as_ref().clone(), holds.clone()]);
    ctx.started = ctx.clock.now();
    let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
    assert!(matches!(outcome, Outcome::Waiting(Wait::Unheard { .. })), "{outcome:?}");
    ctx.fleet.follow(&holds);
    until("synced", || ctx.fleet.is_synced("holds")).await;
    let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
    let Outcome::Held { pod, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!((pod.uid.as_str(), stand.held()), ("holds", vec![]));
}

#[tokio::test]
async fn a_session_that_waits_says_what_its_server_says_is_wrong_with_the_pool() {
    let (mut ctx, stand, server) = stage("127.0.79.16").await;
    let mut session = fixture::deleted_session(&json!({}));
    session.metadata.uid = Some("one-too-many".into());
    let mut stored = fixture::server("everything", &json!({}));
    let ready = json!({"type": "Ready", "status": "False", "reason": "QuotaExceeded", "message": "q is used up",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 3});
    let status = json!({"conditions": [ready], "pods": 0, "readyPods": 0, "sessions": 0, "freeSlots": 0});
    stored.status = serde_json::from_value(status).unwrap();
    let mut anew = stored.clone();
    anew.metadata.uid = Some("another-of-that-name".into());
    let plain = "waits for a free slot of server \"everything\"";
    for (servers, reason, text) in [
        (
            vec![stored],
            "QuotaExceeded",
            format!("{plain}: its pool says QuotaExceeded, see kubectl describe mcpserver everything"),
        ),
        (vec![anew], "Pending", plain.to_owned()),
        (vec![], "Pending", plain.to_owned()),
    ] {
        ctx.stores.servers = fixture::store_of(servers);
        let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
        let Outcome::Waiting(wait) = outcome else { panic!("{outcome:?}") };
        assert_eq!((wait.reason().as_str(), wait.to_string()), (reason, text));
    }
    assert_eq!(stand.held(), Vec::<String>::new());
}

#[tokio::test]
async fn a_sidecar_that_seems_to_have_told_everything_is_seen_with_all_that_it_reports() {
    let (ctx, _stand, server) = stage("127.0.79.15").await;
    let session = fixture::deleted_session(&json!({}));
    let (uid, now) = ("77-session".to_owned(), ctx.clock.now());
    let binder = Binder { session: &session, uid, server: &server, strays: &[], ctx: &ctx, now };
    let look =
        || binder.look(&[], |_, observed, _| (observed.pods[0].occupancy.synced, observed.reports.len()));
    for _ in 0..100 {
        ctx.fleet.tell("pod", false, &[]);
        std::thread::scope(|scope| {
            // The stream tells everything while a look that has begun waits for the book.
            let looking = ctx.slots.with(|_| {
                let (sender, begun) = std::sync::mpsc::channel();
                let looking = scope.spawn(move || {
                    sender.send(()).unwrap();
                    look()
                });
                begun.recv().unwrap();
                ctx.fleet.tell("pod", true, &[report("77-session", SessionState::Idle)]);
                looking
            });
            assert_eq!(looking.join().unwrap(), (true, 1));
        });
    }
}

#[tokio::test]
async fn what_a_sidecar_cannot_act_on_is_invalid_at_every_look_and_holds_no_slot() {
    let (ctx, _stand, server) = stage("127.0.79.5").await;
    let mut session = fixture::deleted_session(&json!({}));
    session.metadata.uid = Some("invalid".into());
    for _ in 0..2 {
        let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
        let error = "the upstream's url cannot be used".to_owned();
        assert_eq!(outcome, Outcome::Invalid { server: "everything".into(), error });
        assert_eq!(ctx.slots.promised_to("server", "pod"), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_pod_for_one_session_that_is_full_though_it_seems_free_was_used_and_is_not_asked_again() {
    let (ctx, stand, server) = stage("127.0.79.4").await;
    let mut session = fixture::deleted_session(&json!({}));
    session.metadata.uid = Some("one-too-many".into());
    let free = || ctx.slots.with(|book| pool_pods("demo", "server", &ctx, book)[0].free());
    assert_eq!(free(), 1);
    let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
    assert!(matches!(outcome, Outcome::Waiting(Wait::NoSlot { .. })), "{outcome:?}");
    assert_eq!(free(), 0);
    assert!(ctx.fleet.occupancy("pod", vec![]).used);
    assert_eq!(stand.ended(), []);
}

#[tokio::test]
async fn a_slot_of_the_same_subject_of_which_only_a_sidecar_tells_counts() {
    let (ctx, _stand, _) = stage("127.0.79.19").await;
    let spec = json!({"pool": {"sessionsPerPod": 1, "maxSessionsPerSubject": 1}});
    let server = accept(&fixture::server("everything", &spec)).unwrap();
    let session = fixture::deleted_session(&json!({}));
    let mut other = session.clone();
    other.metadata.uid = Some("other".into());
    ctx.slots.know(&other);
    ctx.fleet.tell("pod", true, &[report("other", SessionState::Idle)]);
    let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
    assert!(matches!(outcome, Outcome::Waiting(Wait::SessionsOfSubject { most: 1, .. })), "{outcome:?}");
}
