//! Operators that are killed or paused at any point: nothing is done twice, nothing is left, and one of them goes on.

use crate::quiet::{nothing_is_written_for, settled_writes};
use berth_api::label::LEADER_LEASE;
use berth_api::{AgentSession, McpServer};
use berth_e2e::{
    McpClient, POOL, Probe, Process, TestNamespace, api_writes, eventually, figure, in_namespace, kill,
    leader, leader_after, lease, mcp_server, operator_log, pod_metrics, rounds, seed, subject_of,
    system_namespace, used_session, wait_until_ready, without_operator,
};
use futures::future::join_all;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::core::WatchEvent;
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// A new leader is there after a term at most; what it finds is settled soon after.
const BOUND: Duration = Duration::from_secs(90);
/// Changes that the beginning of a session's life shows, the kubelet's of its pod among them, and its end: kills are spread over
/// these.
const CHANGES: [u32; 2] = [12, 7];
/// After so long without a change there are no more: what an operator that has just begun to lead waits for takes 10 s.
const SILENCE: Duration = Duration::from_secs(20);

/// Changes from now on of those objects of one kind in a namespace that `found` selects, each with the UID of its object.
async fn changes<K>(namespace: &TestNamespace, found: WatchParams) -> BoxStream<'static, String>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + Debug
        + Send
        + serde::de::DeserializeOwned
        + 'static,
{
    let api: Api<K> = namespace.api();
    let version = api.list_metadata(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let events = api.watch(&found, &version).await.unwrap();
    let uid = |event| async {
        match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object)) => {
                ResourceExt::uid(&object)
            }
            _ => None,
        }
    };
    let kind = K::kind(&());
    events.filter_map(uid).map(move |uid| format!("{kind}/{uid}")).boxed()
}

/// Kills `operator` when the `n`-th of `changes` is seen, or when there are no more of them; whether it was the former.
async fn kill_at(n: u32, operator: Process, mut changes: impl Stream<Item = String> + Unpin) -> bool {
    let mut seen = 0;
    while seen < n {
        match tokio::time::timeout(SILENCE, changes.next()).await {
            Ok(Some(_)) => seen += 1,
            _ => break,
        }
    }
    operator.signal("KILL");
    seen == n
}

/// One session's life; the operator that leads dies at the `at`-th change of its beginning or of its end. Whether it came to that.
async fn live_and_die(namespace: &TestNamespace, name: &str, token: &str, at: u32, in_its_end: bool) -> bool {
    let sessions = namespace.api::<AgentSession>();
    // The probe's pod is none of theirs.
    let of_pool = WatchParams::default().labels(POOL);
    let pods = changes::<Pod>(namespace, of_pool.clone()).await;
    let all = || async {
        let kinds = [
            changes::<AgentSession>(namespace, WatchParams::default()).await,
            changes::<McpServer>(namespace, WatchParams::default()).await,
            changes::<Pod>(namespace, of_pool.clone()).await,
            // The operator's own: those of the kubelet are about pods.
            changes::<Event>(namespace, WatchParams::default().fields("involvedObject.kind=AgentSession"))
                .await,
        ];
        stream::select_all(kinds)
    };
    let (identity, pod) = leader(&namespace.client).await;
    let operator = Process::find(&pod, "berth-operator").expect("the leader runs on this machine");
    let mut strike = None;
    if !in_its_end {
        strike = Some(tokio::spawn(kill_at(at, operator.clone(), all().await)));
    }
    let spec = json!({"subject": {"name": subject_of(namespace, "alice")}, "servers": [{"name": "probe"}]});
    namespace.create::<AgentSession>(json!({"metadata": {"name": name}, "spec": spec})).await;
    let made = wait_until_ready(namespace, name, BOUND).await;
    let mut client = McpClient::new(&namespace.name, name, "probe", token);
    client.initialize().await;
    assert_eq!(client.call("echo", json!({"message": name})).await, name);
    if in_its_end {
        strike = Some(tokio::spawn(kill_at(at, operator, all().await)));
    }
    sessions.delete(name, &DeleteParams::default()).await.unwrap();
    namespace.gone(&made, BOUND).await;
    let struck = strike.expect("one of the two").await.unwrap();
    leader_after(&namespace.client, &identity).await;

    let events = namespace.events_about(&made.uid().unwrap()).await;
    assert_eq!(events.iter().map(|e| e.1.as_str()).collect::<Vec<_>>(), ["Cleared"], "{events:?}");
    eventually("the pod of the session is gone", BOUND, || async {
        let left = namespace.api::<Pod>().list(&ListParams::default().labels(POOL)).await.unwrap();
        left.items.is_empty().then_some(())
    })
    .await;
    let mut pods = pods;
    let mut seen = BTreeSet::new();
    while let Ok(Some(pod)) = tokio::time::timeout(Duration::from_millis(200), pods.next()).await {
        seen.insert(pod);
    }
    assert_eq!(seen.len(), 1, "one pod for one session, whoever died: {seen:?}");
    struck
}

/// Forbids that sessions of this namespace lose a finalizer, and waits until that holds for `session`. It does until the binding is
/// deleted, which has the namespace's name.
async fn no_finalizer_goes(
    namespace: &TestNamespace,
    session: &str,
) -> Api<ValidatingAdmissionPolicyBinding> {
    let client = &namespace.client;
    let of: Namespace = Api::all(client.clone()).get(&namespace.name).await.unwrap();
    // With its namespace it goes, and does not hold up its end, whatever becomes of the test.
    let metadata = json!({"name": namespace.name, "ownerReferences": [of.owner_ref(&()).unwrap()]});
    let count = |object: &str| {
        format!("(has({object}.metadata.finalizers) ? size({object}.metadata.finalizers) : 0)")
    };
    let rule = json!({
        "apiGroups": ["berth.dev"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["agentsessions"],
    });
    let constraints = json!({
        "resourceRules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
    });
    let going = "has(namespaceObject.metadata.deletionTimestamp)";
    let kept = format!("{going} || {} >= {}", count("object"), count("oldObject"));
    let policy = json!({
        "metadata": metadata, "spec": {"matchConstraints": constraints, "validations": [{"expression": kept}]},
    });
    let binding = json!({
        "metadata": metadata, "spec": {"policyName": namespace.name, "validationActions": ["Deny"]},
    });
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    policies.create(&PostParams::default(), &serde_json::from_value(policy).unwrap()).await.unwrap();
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    let (none, dry) = (json!({"metadata": {"finalizers": null}}), PatchParams::default().dry_run());
    eventually("the policy is in force", BOUND, || async {
        let tried = namespace.api::<AgentSession>().patch(session, &dry, &Patch::Merge(&none)).await;
        tried.is_err_and(|error| error.to_string().contains("denied request")).then_some(())
    })
    .await;
    bindings
}

/// The leader dies when a session's Event is there and its finalizer is still to go, and no other one tells of the end again.
async fn told_and_not_gone(namespace: &TestNamespace, token: &str) {
    let made = used_session(namespace, "told", token).await;
    let bindings = no_finalizer_goes(namespace, "told").await;
    let sessions = namespace.api::<AgentSession>();
    let (identity, pod) = leader(&namespace.client).await;
    sessions.delete("told", &DeleteParams::default()).await.unwrap();
    let uid = made.uid().unwrap();
    eventually("the Event is there", BOUND, || async {
        (!namespace.events_about(&uid).await.is_empty()).then_some(())
    })
    .await;
    kill(&pod, "berth-operator");
    leader_after(&namespace.client, &identity).await;
    assert!(sessions.get("told").await.unwrap().metadata.finalizers.is_some(), "it died in between");
    bindings.delete(&namespace.name, &DeleteParams::default()).await.unwrap();
    namespace.gone(&made, BOUND).await;
    let events = namespace.events_about(&uid).await;
    assert_eq!(events.iter().map(|e| e.1.as_str()).collect::<Vec<_>>(), ["Cleared"], "{events:?}");
}

#[tokio::test]
async fn operators_killed_between_any_two_writes_leave_nothing_and_then_write_nothing() {
    in_namespace("between", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let token = namespace.token("alice").await;
        // A pod for each session: its making and its end are writes too.
        let pool =
            json!({"pool": {"warm": 0, "sessionsPerPod": 1}, "timeouts": {"drain": "1s", "close": "2s"}});
        mcp_server(&namespace, "probe", &probe.url(), pool).await;
        let (many, mut struck) = (rounds(5, 50), 0);
        for round in 0..many {
            let in_its_end = round % 2 == 1;
            // One after the other, from wherever the seed begins.
            let at = 1 + (seed() + round / 2) % CHANGES[usize::from(in_its_end)];
            let phase = if in_its_end { "end" } else { "beginning" };
            eprintln!("round {} of {many}: killed at change {at} of its {phase}", round + 1);
            struck += u32::from(live_and_die(&namespace, &format!("r{round}"), &token, at, in_its_end).await);
        }
        told_and_not_gone(&namespace, &token).await;
        assert!(struck * 5 >= many * 4, "{struck} of {many} kills were between two changes");
        let books = probe.books().await;
        figure("operators killed, and those of them between two changes", format!("{many} and {struck}"));
        figure(
            "upstream sessions opened and ended",
            format!("{} and {}", books.total("initialize"), books.total("delete")),
        );
        assert_eq!(
            (books.total("initialize"), books.total("delete")),
            (u64::from(many) + 1, u64::from(many) + 1),
            "{books:?}"
        );
        nothing_is_written_for(&namespace, Duration::from_mins(1)).await;
    })
    .await;
}

/// Control requests that sidecars took.
async fn taken(namespace: &TestNamespace) -> f64 {
    pod_metrics(&namespace.client, &namespace.name, POOL).await.sum("berth_sidecar_control_accepted_total")
}

#[tokio::test]
async fn a_leader_that_was_paused_for_two_terms_does_nothing_when_it_goes_on() {
    in_namespace("paused", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let (identity, pod) = leader(&namespace.client).await;
        let operator = Process::find(&pod, "berth-operator").expect("the leader runs on this machine");
        nothing_is_written_for(&namespace, Duration::ZERO).await;
        let begun = api_writes(&namespace.client).await;
        // It stops in the middle of its work.
        let mut first = changes::<AgentSession>(&namespace, WatchParams::default()).await;
        let names: Vec<String> = (0..20).map(|n| format!("s{n}")).collect();
        let spec =
            json!({"subject": {"name": subject_of(&namespace, "alice")}, "servers": [{"name": "probe"}]});
        let made = names
            .iter()
            .map(|name| namespace.create::<AgentSession>(json!({"metadata": {"name": name}, "spec": spec})));
        let stopped = async {
            first.by_ref().take(10).count().await;
            (operator.stop(), Instant::now())
        };
        let (_, (paused, since)) = futures::join!(join_all(made), stopped);

        leader_after(&namespace.client, &identity).await;
        for name in &names {
            wait_until_ready(&namespace, name, BOUND).await;
        }
        let two_terms = Duration::from_secs(30);
        tokio::time::sleep(two_terms.saturating_sub(since.elapsed())).await;
        eventually("the new leader has told of all of them", BOUND, || async {
            let status = namespace.api::<McpServer>().get("probe").await.unwrap().status?;
            (status.sessions == 20 && status.ready_pods == status.pods).then_some(())
        })
        .await;
        // Of all namespaces, whoever wrote it: also what the API server refuses is counted.
        let written = settled_writes(&namespace).await;
        let leads = || async {
            let spec = lease(&namespace.client).await.spec.unwrap();
            (spec.holder_identity, spec.lease_transitions)
        };
        let settled = (written, taken(&namespace).await, leads().await);
        assert!(settled.1 >= 20.0, "sidecars count what they take: {}", settled.1);
        let writes = |counts: &BTreeMap<String, f64>| counts.values().sum::<f64>();
        assert!(
            writes(&settled.0) >= writes(&begun) + 40.0,
            "what is written is counted: {begun:?}, {settled:?}"
        );

        assert!(operator.lives(), "it is still paused, and not killed for being silent");
        drop(paused);
        eventually("the old leader has ended", BOUND, || async { (!operator.lives()).then_some(()) }).await;
        let now = (api_writes(&namespace.client).await, taken(&namespace).await, leads().await);
        let more: Vec<_> = now.0.iter().filter(|(what, count)| settled.0.get(*what) != Some(count)).collect();
        assert!(
            now == settled,
            "written since: {more:?}; {:?}, not {:?}",
            (now.1, now.2),
            (settled.1, settled.2)
        );
        assert_eq!(probe.books().await.total("initialize"), 0);
    })
    .await;
}

/// What the status of the server `probe` says of being Ready: the status and the text.
async fn says(namespace: &TestNamespace) -> (String, String) {
    let status = namespace.api::<McpServer>().get("probe").await.unwrap().status.unwrap_or_default();
    let ready = status.conditions.into_iter().find(|condition| condition.type_ == "Ready");
    ready.map(|ready| (ready.status, ready.message)).unwrap_or_default()
}

#[tokio::test]
async fn a_pod_that_saw_a_term_written_by_hand_is_named_with_the_remedy_and_the_pool_grows_past_it() {
    in_namespace("tampered", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let timeouts = json!({"timeouts": {"drain": "1s", "close": "2s"}});
        mcp_server(&namespace, "probe", &probe.url(), timeouts).await;
        let token = namespace.token("alice").await;
        let held = used_session(&namespace, "held", &token).await;
        let pods = namespace.api::<Pod>();
        let pod = pods.list(&ListParams::default().labels(POOL)).await.unwrap().items[0].name_any();

        // A count that no Lease reaches is put back at once; one that might be is taken, and reaches the sidecar.
        let leases: Api<Lease> = Api::namespaced(namespace.client.clone(), &system_namespace());
        let transitions =
            || async { lease(&namespace.client).await.spec.unwrap().lease_transitions.unwrap() };
        let write = |count: i32| {
            let count = Patch::Merge(json!({"spec": {"leaseTransitions": count}}));
            let leases = leases.clone();
            async move { leases.patch(LEADER_LEASE, &PatchParams::default(), &count).await.unwrap() }
        };
        let before = transitions().await;
        write(i32::MAX).await;
        eventually("the count is put back", BOUND, || async {
            (transitions().await == before).then_some(())
        })
        .await;
        let (since, far) = (Timestamp::now(), 20_000_000);
        write(far).await;
        eventually("it leads under that term", BOUND, || async {
            let lines = operator_log(&namespace.client, &since).await;
            lines.iter().any(|line| line.contains("leading") && line.contains("20000000")).then_some(())
        })
        .await;
        used_session(&namespace, "second", &token).await;
        without_operator(&namespace.client, async {
            leases.delete(LEADER_LEASE, &DeleteParams::default()).await.unwrap();
        })
        .await;

        eventually("the server names the pod and the remedy, and has free slots", BOUND, || async {
            let (ready, text) = says(&namespace).await;
            let told = text.contains(&pod) && text.contains("delete the pod, or set spec.leaseTransitions");
            (ready == "True" && told).then_some(())
        })
        .await;
        assert!(transitions().await < far, "the Lease was made anew");
        used_session(&namespace, "third", &token).await;
        let mut client = McpClient::new(&namespace.name, "held", "probe", &token);
        client.initialize().await;
        assert_eq!(client.call("echo", json!({"message": "on"})).await, "on", "who is there is served on");

        pods.delete(&pod, &DeleteParams::default()).await.unwrap();
        eventually("nothing is wrong any more", BOUND, || async {
            (says(&namespace).await == ("True".to_owned(), String::new())).then_some(())
        })
        .await;
        eventually("its sessions are placed anew", BOUND, || async {
            let found = namespace.api::<AgentSession>().get("held").await.unwrap();
            let entry = found.status.unwrap_or_default().servers.into_iter().next()?;
            let moved = entry.pod_ref.is_some() && entry.pod_ref != held.status.as_ref()?.servers[0].pod_ref;
            (entry.last_error.is_none() && moved).then_some(())
        })
        .await;
        namespace.end(&held, BOUND).await;
    })
    .await;
}
