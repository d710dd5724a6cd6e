//! What a session costs in memory: gateway and sidecar with many sessions, less the same processes with none.

use crate::pods::{gateway, only_pod};
use crate::progress;
use crate::report::{Measure, Report};
use crate::settle::settled;
use crate::usage::Processes;
use berth_api::AgentSession;
use berth_e2e::{McpClient, POOL, Probe, TestNamespace, eventually, mcp_server, session};
use futures::stream::{self, StreamExt};
use kube::api::{DeleteParams, ListParams};
use serde_json::json;
use std::future::Future;
use std::time::Duration;

/// Sessions made, called or waited for at once.
const AT_ONCE: usize = 16;
/// Sessions that come and go before anything is measured, so that no code or buffer is used for the first time later.
const WARM_UP: usize = 4;
/// How far memory may move and still count as settled: a hundredth of a goal, for all sessions together.
const WITHIN_PER_SESSION: u64 = 160;
/// How long many sessions may take to come or go.
const BOUND: Duration = Duration::from_mins(4);

/// Measures with `count` sessions in one pod.
pub async fn measure(namespace: &TestNamespace, count: u64, report: &mut Report) {
    let probe = Probe::start(namespace).await;
    let pool = json!({"pool": {"warm": 1, "maxPods": 1, "sessionsPerPod": count.max(WARM_UP as u64)}});
    mcp_server(namespace, "probe", &probe.url(), pool).await;
    let gateway = gateway(&namespace.client).await;
    let sidecar = only_pod(&namespace.client, &namespace.name, POOL).await;
    let processes = Processes::of(&[(&gateway, "berth-gateway"), (&sidecar, "berth-sidecar")]);
    let resident = async |what: &str| {
        let bytes = settled(what, count * WITHIN_PER_SESSION, || processes.resident()).await;
        progress(&format!("memory: {what}: {} KiB", bytes / 1024));
        bytes
    };

    let warm_up: Vec<String> = (0..WARM_UP).map(|number| format!("warm-{number}")).collect();
    open(namespace, &warm_up).await;
    call(namespace, &warm_up).await;
    end_all(namespace).await;
    let none = resident("no session").await;

    let names: Vec<String> = (0..count).map(|number| format!("s-{number}")).collect();
    let (first, second) = names.split_at(names.len() / 2);
    open(namespace, first).await;
    let half_idle = resident("half of the sessions, idle").await;
    open(namespace, second).await;
    let idle = resident("all sessions, idle").await;
    call(namespace, first).await;
    let half_connected = resident("half of them connected").await;
    call(namespace, second).await;
    let connected = resident("all connected").await;
    end_all(namespace).await;

    let mut add = |name, bytes: u64, samples: u64, how: &str| {
        let value = f64::from(u32::try_from(bytes / samples).expect("a session takes less than 4 GiB"));
        report.add(name, Measure { value, unit: "bytes", samples, how: how.to_owned() });
    };
    let idle_how =
        "memory of gateway and sidecar with all sessions Bound and never called, less that with none";
    add("idle_session_bytes", idle.saturating_sub(none), count, idle_how);
    let connected_how =
        "memory of gateway and sidecar with all initialized and called once, less that with none";
    add("connected_session_bytes", connected.saturating_sub(none), count, connected_how);
    // Memory that is free inside of the processes before hides a part of what the first sessions take; not of the last.
    let last = second.len() as u64;
    let (idle, connected) = (idle.saturating_sub(half_idle), connected.saturating_sub(half_connected));
    add("idle_session_last_bytes", idle, last, "what the last half took while idle");
    let how = "what the last half took while idle, and to be connected";
    add("connected_session_last_bytes", idle + connected, last, how);
}

/// Makes sessions of alice and waits until all are Ready.
async fn open(namespace: &TestNamespace, names: &[String]) {
    for_each("memory: sessions made", names, |name| async move {
        session(namespace, name, "alice", &["probe"]).await;
    })
    .await;
}

/// Has a client of each session initialize, call once, and leave.
async fn call(namespace: &TestNamespace, names: &[String]) {
    let token = &namespace.token("alice").await;
    for_each("memory: sessions called", names, |name| async move {
        let mut client = McpClient::new(&namespace.name, name, "probe", token);
        client.initialize().await;
        assert_eq!(client.call("echo", json!({"message": name})).await, *name);
    })
    .await;
}

/// Ends all sessions of the namespace, and waits until they are gone.
async fn end_all(namespace: &TestNamespace) {
    let sessions = namespace.api::<AgentSession>();
    let deleted = sessions.delete_collection(&DeleteParams::default(), &ListParams::default()).await;
    drop(deleted.expect("sessions can be deleted"));
    eventually("all sessions are gone", BOUND, || async {
        let left = sessions.list_metadata(&ListParams::default().limit(1)).await.unwrap();
        left.items.is_empty().then_some(())
    })
    .await;
}

/// Does `work` for each name, some at once, and tells how far it is.
async fn for_each<'a, F: Future<Output = ()>>(
    what: &str,
    names: &'a [String],
    work: impl Fn(&'a String) -> F,
) {
    let mut done = 0;
    let mut working = stream::iter(names).map(work).buffer_unordered(AT_ONCE);
    while working.next().await.is_some() {
        done += 1;
        if done % 250 == 0 {
            progress(&format!("{what}: {done} of {}", names.len()));
        }
    }
}
