//! Calls whose connection breaks, that take too long, or whose upstream goes away: each ends in time, with an error that says
//! what is known, and none is sent twice.

use berth_api::McpServer;
use berth_e2e::{
    Books, McpClient, Probe, Process, TestNamespace, ends_and_leaves_nothing, eventually, figure,
    in_namespace, mcp_server, rounds, session, tool_call_with, wait_for_baseline,
};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::ops::Range;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const BOUND: Duration = Duration::from_mins(1);
const OUTCOME_UNKNOWN: i32 = -32051;
const TIMED_OUT: i32 = -32053;
/// A connection that breaks ends its call at once. Far below any timeout that could end it as well.
const AT_ONCE: Duration = Duration::from_secs(20);
/// An upstream that nothing can be heard of is given up after a minute, as one may be slow to read (`berth_net::socket::End`).
const SILENT_PEER: Duration = Duration::from_secs(75);

async fn client(namespace: &TestNamespace, token: &str) -> McpClient {
    let mut client = McpClient::new(&namespace.name, "s", "probe", token);
    client.initialize().await;
    client
}

/// The tool `effect`, struck by a fault.
fn struck(id: u32, fault: &Value) -> Value {
    tool_call_with(&json!(id), "effect", json!({}), json!({"probe.test/fault": fault}))
}

/// The error of a call, and how long it took.
async fn fails(client: &McpClient, call: &Value) -> (Value, Duration) {
    let begun = Instant::now();
    let answer = client.begin(call).await.messages().await.pop().expect("an answer");
    assert_eq!(answer["id"], call["id"], "{answer}");
    assert!(answer["error"].is_object(), "{answer}");
    (answer["error"].clone(), begun.elapsed())
}

fn is_unknown(error: &Value) -> bool {
    error["code"] == OUTCOME_UNKNOWN && error["message"].as_str().is_some_and(|text| text.contains("unknown"))
}

/// Must show 4 of the step.
#[tokio::test]
async fn a_call_that_breaks_is_not_replayed_and_its_error_says_that_nobody_knows() {
    in_namespace("effect", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        session(&namespace, "s", "alice", &["probe"]).await;
        let client = client(&namespace, &namespace.token("alice").await).await;
        let faults = [
            (json!({"close": true}), 0),
            (json!({"close": true, "after": true}), 1),
            (json!({"status": 500, "after": true}), 1),
            (json!({"status": 502}), 0),
            (json!({"status": 504, "after": true}), 1),
            (json!({"answer": {"stall": true, "breakAfterMs": 200}}), 1),
            (json!({"answer": {"sse": true, "breakAfterEvents": 0}}), 1),
            (json!({"answer": {"sse": true, "endAfterEvents": 0}}), 1),
        ];
        let (mut calls, mut effects) = (0, 0);
        for _ in 0..rounds(5, 50) {
            for (fault, effect) in &faults {
                calls += 1;
                let (error, took) = fails(&client, &struck(calls, fault)).await;
                assert!(is_unknown(&error), "{fault}: {error}");
                assert_eq!(error["data"]["server"], "probe", "{fault}: {error}");
                assert!(took < AT_ONCE, "{fault}: after {took:?}");
                effects += effect;
                let books = probe.books().await;
                assert_eq!(
                    (books.effects(), books.total("toolsCall")),
                    (effects, u64::from(calls)),
                    "{fault}: nothing was sent twice"
                );
                // The next call is served, over another connection where this one broke.
                calls += 1;
                assert_eq!(client.call("echo", json!({"message": "next"})).await, "next");
            }
        }
        let living = |books: &Books| books.sessions().iter().filter(|s| s["ended"].is_null()).count();
        probe.until("upstream sessions that were lost are ended", BOUND, |books| living(books) == 1).await;
        wait_for_baseline(&namespace, 1).await;
        figure("calls broken before or after their effect, none of them replayed", calls / 2);
    })
    .await;
}

/// How long a call may be silent, and how long it may take with progress, in seconds.
const REQUEST: u64 = 5;
const REQUEST_MAX: u64 = 15;

/// CASES.md 26. `call` ends with that error within `span`, in seconds, and is cancelled upstream.
async fn times_out(client: &McpClient, call: Value, span: Range<u64>) -> usize {
    let begun = Instant::now();
    let mut messages = client.begin(&call).await.messages().await;
    let (took, last) = (begun.elapsed(), messages.pop().expect("an answer"));
    assert_eq!(last["error"]["code"], TIMED_OUT, "{last}");
    let span = Duration::from_secs(span.start)..Duration::from_secs(span.end);
    assert!(span.contains(&took), "{last} after {took:?}, not {span:?}");
    assert!(messages.iter().all(|message| message["method"] == "notifications/progress"), "{messages:?}");
    messages.len()
}

#[tokio::test]
async fn a_call_may_be_silent_for_its_timeout_and_with_progress_go_on_to_the_greatest_one() {
    in_namespace("timeouts", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let [request, request_max] = [REQUEST, REQUEST_MAX].map(|seconds| format!("{seconds}s"));
        let timeouts = json!({"timeouts": {"connect": "5s", "request": request, "requestMax": request_max}});
        mcp_server(&namespace, "probe", &probe.url(), timeouts).await;
        session(&namespace, "s", "alice", &["probe"]).await;
        let client = &client(&namespace, &namespace.token("alice").await).await;
        let progress = |id: u32, steps: u32, interval: u32| {
            let arguments = json!({"steps": steps, "intervalMs": interval});
            tool_call_with(&json!(id), "progress", arguments, json!({"progressToken": id}))
        };
        let sleep = |id: u32, stream: bool| {
            tool_call_with(&json!(id), "sleep", json!({"ms": 60_000, "stream": stream}), json!({}))
        };
        let late = json!({"probe.test/fault": {"delayMs": 8_000, "after": true}});
        let late = tool_call_with(&json!(6), "echo", json!({"message": "late"}), late);
        let (plain, stream, extended, endless, _) = futures::join!(
            times_out(client, sleep(1, false), REQUEST..REQUEST_MAX),
            times_out(client, sleep(2, true), REQUEST..REQUEST_MAX),
            async { client.begin(&progress(3, 8, 1_000)).await.messages().await },
            times_out(client, progress(4, 100, 1_000), REQUEST_MAX..60),
            times_out(client, late, REQUEST..REQUEST_MAX),
        );
        assert_eq!((plain, stream), (0, 0));
        assert_eq!(extended.len(), 9, "eight times progress, then the result: {extended:?}");
        assert_eq!(extended[8]["result"]["content"][0]["text"], "8 steps");
        assert!(endless > 5, "progress goes on to the client: {endless}");

        // The late answer has come by now; the same id has another call.
        let again = client.call_as(&json!(6), "echo", json!({"message": "again"})).await;
        assert_eq!(again["result"]["content"][0]["text"], "again");
        let what = "each call whose time is over is cancelled upstream";
        // A session's counts change together, once a cancellation has been acted on.
        let of_session = |books: &Books, count: &str| books.sessions()[0][count].as_u64();
        let books = probe.until(what, BOUND, |books| of_session(books, "cancelled") == Some(4)).await;
        // The late one was over for the probe, which had only held back its answer.
        assert_eq!((of_session(&books, "interrupted"), books.total("initialize")), (Some(3), 1), "{books:?}");
        let server = namespace.api::<McpServer>().get("probe").await.unwrap();
        let ready = server.status.unwrap().conditions.into_iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!(ready.status, "True", "slow calls say nothing of the server: {ready:?}");
        ends_and_leaves_nothing(&namespace, "s").await;
    })
    .await;
}

/// A call that runs until it fails.
async fn runs(client: &McpClient, probe: &Probe) -> JoinHandle<(Value, Duration)> {
    let client = client.clone();
    let call = tool_call_with(&json!(1), "sleep", json!({"ms": 600_000}), json!({}));
    let running = tokio::spawn(async move { fails(&client, &call).await });
    let is_running = |books: &Books| books.sessions().iter().any(|s| s["inFlight"] == 1);
    probe.until("the call runs", BOUND, is_running).await;
    running
}

async fn delete_pod(namespace: &TestNamespace, params: &DeleteParams) {
    let pods = namespace.api::<Pod>();
    let found = pods.list(&ListParams::default().labels("app=probe")).await.unwrap();
    let pod = found.items.iter().find(|pod| pod.metadata.deletion_timestamp.is_none()).unwrap();
    pods.delete(&pod.name_any(), params).await.unwrap();
}

/// Calls until the new pod has served a call, and gives its books; whatever is answered before says why not. A container whose
/// pod was deleted by force can serve for a moment after its replacement is there.
async fn served_again(client: &McpClient, probe: &Probe) -> Books {
    eventually("the new pod serves", Duration::from_mins(1), || async {
        let answer = client.call_as(&json!(9), "echo", json!({"message": "on"})).await;
        let error = &answer["error"];
        if error.is_object() {
            assert!(is_unknown(error) || error["data"]["reason"] == "UpstreamUnreachable", "{answer}");
            return None;
        }
        assert_eq!(answer["result"]["content"][0]["text"], "on", "{answer}");
        Some(probe.books().await).filter(|books| books.total("toolsCall") > 0)
    })
    .await
}

/// CASES.md 29.
#[tokio::test]
async fn an_upstream_pod_that_is_deleted_costs_its_running_calls_and_nothing_else() {
    in_namespace("podgone", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({"timeouts": {"connect": "10s"}})).await;
        session(&namespace, "s", "alice", &["probe"]).await;
        let client = client(&namespace, &namespace.token("alice").await).await;
        for (during_a_call, params) in
            [(true, DeleteParams::default()), (false, DeleteParams::default().grace_period(0))]
        {
            let running = if during_a_call { Some(runs(&client, &probe).await) } else { None };
            delete_pod(&namespace, &params).await;
            if let Some(running) = running {
                let (error, took) = running.await.unwrap();
                assert!(is_unknown(&error), "{error}");
                assert!(took < BOUND, "after {took:?}");
            }
            let books = served_again(&client, &probe).await;
            assert_eq!(
                (books.total("initialize"), books.total("initializeWithSession")),
                (1, 0),
                "the new pod is a new upstream: {books:?}"
            );
        }
        wait_for_baseline(&namespace, 1).await;
    })
    .await;
}

/// CASES.md 29: the name has a new address, and what is at the old one gets no packet and says nothing.
#[tokio::test]
async fn an_upstream_that_moves_away_from_a_silent_address_costs_its_running_calls_and_nothing_else() {
    in_namespace("moved", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        // Without an address of its own the name has that of the pod.
        let spec = json!({"clusterIP": "None", "selector": {"app": "probe"}, "ports": [{"port": 8080}]});
        namespace.create::<Service>(json!({"metadata": {"name": "moves"}, "spec": spec})).await;
        let url = format!("http://moves.{}.svc:8080/mcp", namespace.name);
        mcp_server(&namespace, "probe", &url, json!({"timeouts": {"connect": "10s"}})).await;
        session(&namespace, "s", "alice", &["probe"]).await;
        let token = namespace.token("alice").await;
        let client = eventually("the name has an address", BOUND, || async {
            let mut client = McpClient::new(&namespace.name, "s", "probe", &token);
            let answer = client.try_initialize(&json!({})).await;
            let (served, reason) = (answer["result"].is_object(), &answer["error"]["data"]["reason"]);
            assert!(served || reason == "UpstreamUnreachable", "{answer}");
            served.then_some(client)
        })
        .await;
        let running = runs(&client, &probe).await;

        let pods = namespace.api::<Pod>();
        let old = pods.list(&ListParams::default().labels("app=probe")).await.unwrap().items.remove(0);
        let lost = Process::find(&old, "probe").expect("it runs on this machine").lose("tcp dport 8080");
        // Its Deployment lets go of a pod without the label, and makes another one.
        let unlabelled = json!({"metadata": {"labels": {"app": "silent"}}});
        pods.patch(&old.name_any(), &PatchParams::default(), &Patch::Merge(unlabelled)).await.unwrap();

        let (error, took) = running.await.unwrap();
        assert!(is_unknown(&error), "{error}");
        assert!(took < SILENT_PEER, "after {took:?}");
        figure("seconds until a call to an address that went silent failed", took.as_secs());
        let books = served_again(&client, &probe).await;
        assert_eq!((books.total("initialize"), books.total("initializeWithSession")), (1, 0), "{books:?}");
        // The old address is not tried any more.
        for _ in 0..3 {
            assert_eq!(client.call("echo", json!({"message": "on"})).await, "on");
        }
        wait_for_baseline(&namespace, 1).await;
        assert!(lost.count() > 0, "the old pod was silent");
    })
    .await;
}
