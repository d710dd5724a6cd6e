//! Connects of which nothing comes in time: who waits, who goes on, and what is left (CASES.md 8).

mod hang;

use berth_api::{AgentSession, BindingState, BindingStatus};
use berth_e2e::{
    Books, Dice, McpClient, POOL, Probe, TestNamespace, eventually, figure, in_namespace, initialize,
    mcp_server, nothing_is_open, pod_metrics, rounds, session, wait_for_baseline,
};
use futures::future::join_all;
use futures::{StreamExt, stream};
use hang::{CONNECT, Cause, GOOD, HANGS, Hang, PLAIN, SLOW, Server, Struck, servers};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(30);

impl Struck<'_> {
    /// A client of `session` gets the error in time, while the session's other servers answer and one of them is connected to.
    async fn is_bounded(&self, namespace: &TestNamespace, session: &str, token: &str) {
        let Hang { what, at, step, .. } = self.hang;
        let mut others = OTHERS.map(|name| McpClient::new(&namespace.name, session, name, token));
        let (fresh, known) = others.split_last_mut().unwrap();
        join_all(known.iter_mut().map(McpClient::initialize)).await;
        let mut slow = McpClient::new(&namespace.name, session, at.name, token);
        let begun = Instant::now();
        let capabilities = json!({});
        let mut failing = std::pin::pin!(slow.try_initialize(&capabilities));
        tokio::select! {
            biased;
            answer = &mut failing => panic!("{what}: the connect of another server is held up: {answer}"),
            _ = fresh.initialize() => {}
        }
        let mut answered = 0;
        let answer = loop {
            tokio::select! {
                answer = &mut failing => break answer,
                echoes = join_all(others.iter().map(|other| other.call("echo", json!({"message": "on"})))) => {
                    assert_eq!(echoes, ["on"; OTHERS.len()]);
                    // Steadily, and not as fast as they can: time is measured beside them.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            answered += 1;
        };
        let took = begun.elapsed();
        let error = &answer["error"];
        assert_eq!(error["code"], -32050, "{what}: {answer}");
        assert_eq!(
            error["data"]["reason"], "InitializeTimeout",
            "{what}: within timeouts.connect nothing else is known: {answer}"
        );
        assert_eq!(error["data"]["server"], at.name, "{what}: {answer}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&format!("\"{}\", {step}:", at.name)), "{what}: {message}");
        let bound = CONNECT..CONNECT + Duration::from_secs(1);
        assert!(bound.contains(&took), "{what}: the error came after {took:?}");
        assert!(answered > 2, "{what}: each of the other servers answered {answered} calls meanwhile");
        assert!(error["data"]["retryAfterMillis"].is_u64(), "{what}: when to try again is told: {answer}");
    }

    /// The status of `session` says which of its servers is in trouble, and that it is of use nevertheless.
    async fn is_told(&self, namespace: &TestNamespace, session: &str) {
        let Hang { what, at, step, .. } = self.hang;
        let says_so = |server: &BindingStatus| {
            if server.name != at.name {
                return server.state == BindingState::Bound && server.reason.is_none();
            }
            server.state == BindingState::Degraded
                && server.reason.as_deref() == Some("InitializeTimeout")
                && server.last_error.as_deref().is_some_and(|text| text.contains(step))
        };
        eventually(&format!("{what}: the status says so"), BOUND, || async {
            let status = namespace.api::<AgentSession>().get(session).await.unwrap().status.unwrap();
            let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready")?;
            let is_degraded = ready.status == "True" && ready.reason == "Degraded";
            (is_degraded && status.servers.iter().all(says_so)).then_some(())
        })
        .await;
    }

    /// Of many sessions that come when it is known to hang at most one tries and waits; the others are told at once. Gives how
    /// long nothing is tried.
    async fn is_paid_for_once(&self, namespace: &TestNamespace, names: &[String], token: &str) -> Duration {
        let Hang { what, at, cause, .. } = self.hang;
        let (before, ended) = (self.reached().await, timed_out(namespace, &at.label(namespace).await).await);
        let calls = names.iter().map(|name| async move {
            let begun = Instant::now();
            let mut client = McpClient::new(&namespace.name, name, at.name, token);
            (client.try_initialize(&json!({})).await, begun.elapsed())
        });
        let answers = join_all(calls).await;
        for (answer, _) in &answers {
            assert_eq!(answer["error"]["data"]["reason"], "InitializeTimeout", "{what}: {answer}");
        }
        let tried = timed_out(namespace, &at.label(namespace).await).await - ended;
        assert!(tried <= 1.0, "{what}: {tried} of {} tried", names.len());
        // All calls were made before the first attempt began: who waits for one waits for all of its time.
        let waited = answers.iter().filter(|(_, took)| *took >= CONNECT).count();
        assert!(waited <= 1, "{what}: {waited} of {} waited", names.len());
        // Of packets that are lost more than one may belong to an attempt.
        if matches!(cause, Cause::Faults(_)) {
            let asked = self.reached().await - before;
            assert!(asked <= 1, "{what}: {asked} of {} asked", names.len());
        }
        let pauses = answers.iter().map(|(answer, _)| answer["error"]["data"]["retryAfterMillis"].as_u64());
        Duration::from_millis(pauses.max().flatten().expect("when to try again is told"))
    }

    /// A session that is deleted in the middle of the attempt is gone in time.
    async fn holds_no_end(&self, namespace: &TestNamespace, session: &str, token: &str) {
        let client = McpClient::new(&namespace.name, session, self.hang.at.name, token);
        let before = self.reached().await;
        let waiting = tokio::spawn(async move { client.try_send(&initialize(&json!({}))).await });
        eventually("the attempt is under way", BOUND, || async {
            (self.reached().await > before).then_some(())
        })
        .await;
        let made = namespace.api::<AgentSession>().get(session).await.unwrap();
        // drain + close + 10 s
        namespace.end(&made, Duration::from_secs(1 + 4 + 10)).await;
        let answer = waiting.await.unwrap();
        assert!(answer.as_ref().map_or(true, |a| !a.headers.contains_key("mcp-session-id")), "{answer:?}");
    }

    /// Every session that the server has opened since it hangs, each of them in vain, is ended again.
    async fn is_cleaned_up(&self) {
        let what = format!("{}: what was opened is closed again", self.hang.what);
        self.probe
            .until(&what, BOUND, |books| {
                let opened: Vec<Value> = books
                    .requests("initialize")
                    .into_iter()
                    .filter(|entry| entry["seq"].as_u64() > Some(self.since))
                    .filter(|entry| entry["path"] == "/mcp/slow" && !entry["minted"].is_null())
                    .map(|entry| entry["minted"].clone())
                    .collect();
                let ended =
                    |id: &Value| books.sessions().iter().any(|s| s["id"] == *id && s["ended"] == "DELETE");
                !opened.is_empty() && opened.iter().all(ended)
            })
            .await;
    }
}

/// Servers that work, beside those of [`HANGS`].
const OTHERS: [&str; 5] = ["fast-0", "fast-1", "fast-2", "fast-3", "fast-4"];

async fn others(namespace: &TestNamespace, probe: &Probe) {
    let url = probe.url();
    let times = json!({"timeouts": {"drain": "1s", "close": "2s"}});
    join_all(OTHERS.iter().map(|name| mcp_server(namespace, name, &url, times.clone()))).await;
}

/// Connects a session of its own, which tells the others that the server is well again, and ends it.
async fn heal(namespace: &TestNamespace, name: &str, server: &str, token: &str) {
    let made = session(namespace, name, "alice", &[server]).await;
    eventually(&format!("{server} is connected to again"), BOUND, || async {
        let mut client = McpClient::new(&namespace.name, name, server, token);
        client.try_initialize(&json!({})).await.get("result").map(|_| ())
    })
    .await;
    namespace.end(&made, BOUND).await;
}

/// Must show 1 of the step.
#[tokio::test]
async fn a_burst_of_first_calls_of_which_all_but_one_are_cancelled_connects_once() {
    in_namespace("burst", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        session(&namespace, "s", "alice", &["probe"]).await;
        let token = namespace.token("alice").await;
        let many = rounds(100, 1_000);
        let delay = Duration::from_secs(20);
        let delay_ms = u64::try_from(delay.as_millis()).unwrap();
        probe.set_faults(&json!({"initialize": {"delayMs": delay_ms}})).await;

        let mut dice = Dice::new(1);
        let survivor = 1 + dice.below(u64::from(many) - 1);
        let client = || McpClient::new(&namespace.name, "s", "probe", &token);
        let begun = Instant::now();
        let call =
            |caller: McpClient| tokio::spawn(async move { caller.try_send(&initialize(&json!({}))).await });
        let first = call(client());
        probe.until("the first is at the upstream", BOUND, |books| books.total("initialize") == 1).await;
        let mut surviving = client();
        let others: Vec<_> =
            (1..u64::from(many)).filter(|n| *n != survivor).map(|_| call(client())).collect();
        let served = tokio::spawn(async move { (surviving.try_initialize(&json!({})).await, surviving) });
        eventually("all of them wait", delay, || async {
            let metrics = pod_metrics(&namespace.client, &namespace.name, POOL).await;
            (metrics.sum("berth_sidecar_requests_in_flight") == f64::from(many)).then_some(())
        })
        .await;
        let span = delay.saturating_sub(begun.elapsed()).mul_f64(0.7);
        let span_ms = u64::try_from(span.as_millis()).unwrap();
        let leaving = std::iter::once(first).chain(others).map(|caller| {
            let moment = Duration::from_millis(dice.below(span_ms));
            async move {
                tokio::time::sleep(moment).await;
                caller.abort();
                caller.await.err().is_some_and(|error| error.is_cancelled())
            }
        });
        let cancelled = join_all(leaving).await;
        assert!(cancelled.iter().all(|cancelled| *cancelled), "nobody was answered before they left");
        assert_eq!(cancelled.len(), many as usize - 1);

        let (answer, surviving) = served.await.unwrap();
        assert_eq!(answer["result"]["serverInfo"]["name"], "probe", "{answer}");
        assert_eq!(surviving.call("echo", json!({"message": "alone"})).await, "alone");
        let books = probe.books().await;
        assert_eq!((books.total("initialize"), books.sessions().len(), books.connections()), (1, 1, 1));
        wait_for_baseline(&namespace, 1).await;
        figure("first calls at once on one session, all but one cancelled, that made 1 connect", many);
    })
    .await;
}

/// Each way in which `server` hangs.
async fn in_turn(namespace: &TestNamespace, probe: &Probe, token: &str, server: &str) {
    let many: Vec<String> = (0..10).map(|number| format!("{server}-many-{number}")).collect();
    let only = [server];
    let made = join_all(many.iter().map(|name| session(namespace, name, "alice", &only))).await;
    for (number, hang) in HANGS.iter().filter(|hang| hang.at.name == server).enumerate() {
        let (caught, ended) = (format!("{server}-caught-{number}"), format!("{server}-ended-{number}"));
        let all = [&[server][..], &OTHERS].concat();
        let (made, _) = futures::join!(
            session(namespace, &caught, "alice", &all),
            session(namespace, &ended, "alice", &all)
        );
        let struck = hang.strike(namespace, probe).await;
        struck.is_bounded(namespace, &caught, token).await;
        let pause = struck.is_paid_for_once(namespace, &many, token).await;
        // Until then no attempt is made.
        futures::join!(tokio::time::sleep(pause), struck.is_told(namespace, &caught));
        struck.holds_no_end(namespace, &ended, token).await;
        if hang.is_told {
            struck.is_cleaned_up().await;
        }
        struck.relieve().await;
        heal(namespace, &format!("{server}-well-{number}"), server, token).await;
        namespace.end(&made, BOUND).await;
    }
    join_all(made.iter().map(|made| namespace.end(made, BOUND))).await;
}

/// The upstream answers long after the bounds of a connect and of an end: what it opened is ended nevertheless, and if `is_deleted`
/// also though our session is over by then.
async fn comes_late(namespace: &TestNamespace, probe: &Probe, token: &str, is_deleted: bool) {
    let name = if is_deleted { "late-deleted" } else { "late" };
    let more = json!({"timeouts": {"connect": "5s"}, "pool": {"sessionsPerPod": 200}});
    mcp_server(namespace, name, &format!("{}/{name}", probe.url()), more).await;
    let made = session(namespace, name, "alice", &[name]).await;
    let mut message = initialize(&json!({}));
    message["params"]["_meta"] = json!({"probe.test/fault": {"delayMs": 20_000, "after": true}});
    let client = McpClient::new(&namespace.name, name, name, token);
    let answer = client.begin(&message).await.messages().await.pop().expect("an answer");
    assert_eq!(answer["error"]["data"]["reason"], "InitializeTimeout", "{answer}");
    let opened = |books: &Books| {
        let entries = books.requests("initialize");
        let path = format!("/mcp/{name}");
        entries.into_iter().find(|entry| entry["path"] == path).map(|entry| entry["minted"].clone())
    };
    let id = opened(&probe.books().await).expect("the upstream has got it");
    assert!(id.is_string(), "it opened a session: {id}");
    let is_ended = |books: &Books| books.sessions().iter().any(|s| s["id"] == id && s["ended"] == "DELETE");
    if is_deleted {
        namespace.end(&made, BOUND).await;
    }
    assert!(!is_ended(&probe.books().await), "it has not answered yet");
    probe.until("what came late is ended", BOUND, is_ended).await;
    if !is_deleted {
        namespace.end(&made, BOUND).await;
    }
}

/// Must show 2 of the step.
#[tokio::test]
async fn an_upstream_that_hangs_anywhere_costs_its_bound_and_holds_up_neither_servers_nor_ends() {
    in_namespace("hang", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        futures::join!(servers(&namespace, &probe, CONNECT), others(&namespace, &probe));
        let token = namespace.token("alice").await;
        let of = |server: &'static Server| Box::pin(in_turn(&namespace, &probe, &token, server.name));
        let late = |is_deleted| Box::pin(comes_late(&namespace, &probe, &token, is_deleted));
        futures::join!(of(&PLAIN), of(&GOOD), of(&SLOW), late(false), late(true));
        wait_for_baseline(&namespace, 0).await;
    })
    .await;
}

/// Sessions that connect at once.
const AT_ONCE: u32 = 100;

/// Attempts of the pods with that label that ended so.
async fn timed_out(namespace: &TestNamespace, label: &str) -> f64 {
    let metrics = pod_metrics(&namespace.client, &namespace.name, label).await;
    metrics.sum("berth_sidecar_connects_total{result=\"InitializeTimeout\"}")
}

/// Lets all of `sessions` connect at once, each to fail, until so many attempts have; gives how many it were.
async fn fail(
    namespace: &TestNamespace,
    probe: &Probe,
    hang: &Hang,
    sessions: &[String],
    wanted: f64,
) -> f64 {
    // One token does not last as long as the test.
    let token = namespace.token("alice").await;
    let begun = timed_out(namespace, POOL).await;
    for round in 0..30 {
        let struck = hang.strike(namespace, probe).await;
        let calls = sessions.iter().map(|name| {
            let mut client = McpClient::new(&namespace.name, name, hang.at.name, &token);
            async move { client.try_initialize(&json!({})).await }
        });
        for answer in join_all(calls).await {
            assert_eq!(answer["error"]["data"]["reason"], "InitializeTimeout", "{}: {answer}", hang.what);
        }
        struck.relieve().await;
        heal(namespace, &format!("{}-well-{round}", hang.at.name), hang.at.name, &token).await;
        let failed = timed_out(namespace, POOL).await - begun;
        if failed >= wanted {
            return failed;
        }
    }
    panic!("{}: fewer than {wanted} attempts", hang.what);
}

/// Must show 2 of the step: a hundred at a time, until there are so many.
#[tokio::test]
async fn attempts_that_failed_leave_no_task_no_socket_and_no_entry() {
    in_namespace("failed", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        servers(&namespace, &probe, Duration::from_secs(1)).await;
        let names: Vec<String> = (0..AT_ONCE).map(|n| format!("s{n}")).collect();
        let all = [PLAIN.name, GOOD.name, SLOW.name];
        let made = join_all(names.iter().map(|name| session(&namespace, name, "alice", &all))).await;
        let token = namespace.token("alice").await;
        for server in all {
            heal(&namespace, &format!("{server}-first"), server, &token).await;
        }
        let idle = namespace.idle().await;
        for hang in &HANGS {
            let failed = fail(&namespace, &probe, hang, &names, f64::from(rounds(100, 1_000))).await;
            // A late answer is waited for up to 30 s; of many attempts a session lets so many wait, then it makes no more.
            if rounds(0, 1) == 1 {
                nothing_is_open(&namespace, AT_ONCE as usize * 3).await;
            }
            figure(&format!("attempts that timed out, and left nothing: {}", hang.what), failed);
        }
        nothing_is_open(&namespace, AT_ONCE as usize * 3).await;
        // Each session remembers its last error: 4 KiB for each session are ample, and next to nothing for each attempt.
        idle.is_back(f64::from(AT_ONCE * 3 * 4096)).await;
        // The end of so many is no load for the tests that come next.
        let ends = stream::iter(&made).map(|made| namespace.end(made, Duration::from_mins(2)));
        ends.buffer_unordered(20).collect::<Vec<()>>().await;
        wait_for_baseline(&namespace, 0).await;
    })
    .await;
}
