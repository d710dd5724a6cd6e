//! Deleting a session ends everything it held, once, in bounded time.

use berth_api::AgentSession;
use berth_e2e::{
    McpClient, POOL, Probe, Process, TestNamespace, eventually, figure, in_namespace, kubectl, mcp_server,
    session, subject_of, used_session, wait_for_baseline, wait_until_ready,
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// An end without trouble, on a small machine.
const END_BOUND: Duration = Duration::from_secs(20);
/// Until sessions are Ready beside others whose pod hangs: the operator waits five seconds for an answer of a sidecar.
const UNHINDERED: Duration = Duration::from_secs(15);
/// How long after its Event a session may still be seen: the finalizer goes then, and it is looked for.
const SEEN: Duration = Duration::from_secs(5);

/// Deletes a session and waits until it is gone. That the end was told within `bound` seconds is what the API server says, which
/// notes the times of the deletion and of the Event in whole seconds.
async fn ends_within(namespace: &TestNamespace, session: &AgentSession, bound: u64) {
    let sessions = namespace.api::<AgentSession>();
    let deleted = sessions.delete(&session.name_any(), &DeleteParams::default()).await.unwrap();
    let deleted = deleted.left().expect("the finalizer holds it").metadata.deletion_timestamp;
    namespace.gone(session, Duration::from_secs(bound) + SEEN).await;
    let about = ListParams::default().fields(&format!("involvedObject.uid={}", session.uid().unwrap()));
    let events = namespace.api::<Event>().list(&about).await.unwrap().items;
    let [event] = events.as_slice() else { panic!("one Event, not {events:?}") };
    let told = event.metadata.creation_timestamp.as_ref();
    let took = told.unwrap().0.as_second() - deleted.unwrap().0.as_second();
    assert!(u64::try_from(took).is_ok_and(|took| took <= bound), "told {took} s after the deletion");
}

#[tokio::test]
async fn ten_sessions_used_and_deleted_leave_nothing_behind() {
    in_namespace("ending", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let token = namespace.token("alice").await;
        let names: Vec<String> = (0..10).map(|n| format!("s{n}")).collect();
        let sessions = join_all(names.iter().map(|name| used_session(&namespace, name, &token))).await;
        assert_eq!(probe.books().await.total("initialize"), 10);

        join_all(sessions.iter().map(|session| namespace.end(session, END_BOUND))).await;
        let books = probe.books().await;
        assert_eq!((books.total("delete"), books.total("deleteUnknown")), (10, 0), "{books:?}");
        assert!(books.sessions().iter().all(|s| s["ended"] == "DELETE"), "{books:?}");
        wait_for_baseline(&namespace, 0).await;
        for session in &sessions {
            let events = namespace.events_about(&session.uid().unwrap()).await;
            assert_eq!(events.len(), 1, "{events:?}");
            assert_eq!((events[0].0.as_str(), events[0].1.as_str()), ("Normal", "Cleared"), "{events:?}");
        }

        // Deleting what is gone changes nothing.
        for session in &sessions {
            let again =
                namespace.api::<AgentSession>().delete(&session.name_any(), &DeleteParams::default()).await;
            assert!(matches!(again, Err(kube::Error::Api(status)) if status.is_not_found()));
        }
        assert_eq!(probe.books().await.total("delete"), 10);

        namespace.api::<berth_api::McpServer>().delete("probe", &DeleteParams::default()).await.unwrap();
        eventually("the pool's pods are gone with their server", Duration::from_mins(1), || async {
            let pods = namespace.api::<Pod>().list(&ListParams::default().labels(POOL)).await.unwrap();
            pods.items.is_empty().then_some(())
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_second_delete_while_the_first_runs_changes_nothing() {
    in_namespace("twice", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let token = namespace.token("alice").await;
        let made = used_session(&namespace, "s", &token).await;
        probe.set_faults(&json!({"delete": {"delayMs": 4_000}})).await;
        let sessions = namespace.api::<AgentSession>();
        for _ in 0..3 {
            sessions.delete("s", &DeleteParams::default()).await.unwrap();
        }
        namespace.gone(&made, END_BOUND).await;
        assert_eq!(probe.books().await.total("delete"), 1);
        let events = namespace.events_about(&made.uid().unwrap()).await;
        assert_eq!(events.len(), 1, "{events:?}");
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_never_answers_its_delete_holds_the_session_no_longer_than_the_bound() {
    in_namespace("hanging", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let timeouts = json!({"timeouts": {"drain": "1s", "close": "1s"}});
        mcp_server(&namespace, "probe", &probe.url(), timeouts).await;
        let token = namespace.token("alice").await;
        let made = used_session(&namespace, "s", &token).await;
        probe.set_faults(&json!({"delete": {"hang": true}})).await;

        ends_within(&namespace, &made, 1 + 1 + 10).await;
        let events = namespace.events_about(&made.uid().unwrap()).await;
        assert_eq!(events.len(), 1, "{events:?}");
        let (kind, reason, note) = &events[0];
        assert_eq!((kind.as_str(), reason.as_str()), ("Warning", "CleanupIncomplete"), "{events:?}");
        assert!(
            note.contains("probe") && note.contains("Cleared"),
            "the note names server and reason: {note}"
        );
        wait_for_baseline(&namespace, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_sidecar_that_hangs_holds_the_session_no_longer_than_the_bound_and_ends_it_once_it_goes_on() {
    in_namespace("hung", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let timeouts = json!({"timeouts": {"drain": "1s", "close": "1s"}});
        mcp_server(&namespace, "probe", &probe.url(), timeouts).await;
        let token = namespace.token("alice").await;
        let made = used_session(&namespace, "s", &token).await;
        let pod = made.status.as_ref().unwrap().servers[0].pod_ref.as_ref().unwrap().name.clone();
        let pod = namespace.api::<Pod>().get(&pod).await.unwrap();
        let stopped = Process::find(&pod, "berth-sidecar").expect("it runs on this machine").stop();

        ends_within(&namespace, &made, 1 + 1 + 10).await;
        drop(stopped);
        let events = namespace.events_about(&made.uid().unwrap()).await;
        let told: Vec<_> = events.iter().map(|event| (event.0.as_str(), event.1.as_str())).collect();
        assert_eq!(told, [("Warning", "CleanupIncomplete")], "{events:?}");
        wait_for_baseline(&namespace, 0).await;
        assert_eq!(probe.books().await.total("delete"), 1, "nothing lives on upstream");
    })
    .await;
}

/// Promise 6: whoever waits for one pod waits alone.
#[tokio::test]
async fn sessions_that_end_in_a_pod_that_hangs_keep_no_session_of_another_server_waiting() {
    in_namespace("hungmany", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        for server in ["hangs", "healthy"] {
            mcp_server(&namespace, server, &probe.url(), json!({"pool": {"warm": 1}})).await;
        }
        let names: Vec<String> = (0..49).map(|n| format!("s{n}")).collect();
        let made = join_all(names.iter().map(|name| session(&namespace, name, "alice", &["hangs"]))).await;
        let placed = made.iter().map(|session| session.status.as_ref().unwrap().servers[0].pod_ref.as_ref().unwrap());
        let pods: BTreeSet<&str> = placed.map(|pod| pod.name.as_str()).collect();
        let [pod] = pods.iter().collect::<Vec<_>>()[..] else { panic!("one pod for all, not {pods:?}") };
        let pod = namespace.api::<Pod>().get(pod).await.unwrap();
        let stopped = Process::find(&pod, "berth-sidecar").expect("it runs on this machine").stop();

        let sessions = namespace.api::<AgentSession>();
        let all = ListParams::default();
        sessions.delete_collection(&DeleteParams::default(), &all).await.unwrap();
        // All workers may meet the pod once, for as long as they wait for an answer; nobody meets it twice.
        let begun = Instant::now();
        for n in 0..5 {
            let name = format!("other{n}");
            let spec = json!({"subject": {"name": subject_of(&namespace, "alice")}, "servers": [{"name": "healthy"}]});
            namespace.create::<AgentSession>(json!({"metadata": {"name": name}, "spec": spec})).await;
            wait_until_ready(&namespace, &name, UNHINDERED.saturating_sub(begun.elapsed())).await;
        }
        figure("time until five sessions are Ready beside 49 that end in a pod that hangs", format_args!("{:?}", begun.elapsed()));
        drop(stopped);
        join_all(made.iter().map(|session| namespace.gone(session, END_BOUND))).await;
    })
    .await;
}

#[tokio::test]
async fn setting_end_deletes_the_session_with_its_reason() {
    in_namespace("end", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let token = namespace.token("alice").await;
        let made = used_session(&namespace, "s", &token).await;
        let end = Patch::Merge(json!({"spec": {"end": {"reason": "Completed"}}}));
        namespace.api::<AgentSession>().patch("s", &PatchParams::default(), &end).await.unwrap();
        namespace.gone(&made, END_BOUND).await;
        assert_eq!(probe.books().await.total("delete"), 1);
        let events = namespace.events_about(&made.uid().unwrap()).await;
        assert_eq!(events.iter().map(|e| e.1.as_str()).collect::<Vec<_>>(), ["Completed"], "{events:?}");
    })
    .await;
}

#[tokio::test]
async fn a_running_call_finishes_within_the_drain_and_is_cancelled_after_it() {
    in_namespace("drain", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({"timeouts": {"drain": "8s"}})).await;
        let token = namespace.token("alice").await;
        for (name, sleep_ms, finishes) in [("short", 1_500, true), ("long", 60_000, false)] {
            let made = used_session(&namespace, name, &token).await;
            let mut client = McpClient::new(&namespace.name, name, "probe", &token);
            client.initialize().await;
            let before = probe.books().await.total("toolsCall");
            let call =
                tokio::spawn(
                    async move { client.call_as(&json!(7), "sleep", json!({"ms": sleep_ms})).await },
                );
            eventually("the call is at the upstream", END_BOUND, || async {
                (probe.books().await.total("toolsCall") > before).then_some(())
            })
            .await;
            ends_within(&namespace, &made, 8 + 5 + 10).await;
            let answer = call.await.unwrap();
            assert_eq!(answer.get("result").is_some(), finishes, "{name}: {answer}");
            assert_eq!(answer.get("error").is_some(), !finishes, "{name}: {answer}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_namespace_with_a_live_session_can_be_deleted() {
    in_namespace("namespace", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({"timeouts": {"drain": "1s", "close": "1s"}}))
            .await;
        let token = namespace.token("alice").await;
        used_session(&namespace, "s", &token).await;
        let printed =
            kubectl(&["delete", "namespace", &namespace.name, "--wait=true", "--timeout=90s"], "").await;
        assert!(printed.ok, "{printed:?}");
    })
    .await;
}
