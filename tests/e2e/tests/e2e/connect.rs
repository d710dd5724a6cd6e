//! Connects of which nothing comes in time: who waits, who goes on, and what is left (CASES.md 8).

use berth_api::AgentSession;
use berth_e2e::{
    Books, Dice, McpClient, POOL, Probe, TestNamespace, eventually, figure, in_namespace, initialize,
    mcp_server, pod_metrics, rounds, session, wait_for_baseline,
};
use futures::future::join_all;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(30);
/// The server whose requests the faults strike.
const SLOW: &str = "slow";

/// A way in which `initialize` comes to nothing within a second.
struct Hang {
    what: &'static str,
    /// Scheme, port and path of the server.
    at: (&'static str, u16, &'static str),
    faults: &'static str,
    /// Where the attempt stands then, as the error says.
    step: &'static str,
    /// The upstream opens a session whose id comes in time for a DELETE.
    is_told: bool,
}

const MAIN: (&str, u16, &str) = ("http", 8080, "/slow");
const PLAIN: (&str, u16, &str) = ("http", 8081, "");

const HANGS: [Hang; 8] = [
    Hang {
        what: "the connection is accepted and nothing is read",
        at: PLAIN,
        faults: r#"{"accept:plain": {"hang": true}}"#,
        step: "initialize",
        is_told: false,
    },
    Hang {
        what: "one byte a second comes, the head first",
        at: PLAIN,
        faults: r#"{"accept:plain": {"dripMs": 1000}}"#,
        step: "initialize",
        is_told: false,
    },
    Hang {
        what: "the TLS handshake is not answered",
        at: ("https", 8447, ""),
        faults: "{}",
        step: "TLS",
        is_told: false,
    },
    Hang {
        what: "no head comes",
        at: MAIN,
        faults: r#"{"initialize": {"hang": true, "path": "/mcp/slow"}}"#,
        step: "initialize",
        is_told: false,
    },
    Hang {
        what: "the head comes and no body",
        at: MAIN,
        faults: r#"{"initialize": {"answer": {"stall": true}, "path": "/mcp/slow"}}"#,
        step: "initialize",
        is_told: true,
    },
    Hang {
        what: "the body comes by the byte",
        at: MAIN,
        faults: r#"{"initialize": {"answer": {"dripMs": 1000}, "path": "/mcp/slow"}}"#,
        step: "initialize",
        is_told: true,
    },
    Hang {
        what: "notifications/initialized is not answered",
        at: MAIN,
        faults: r#"{"notifications/initialized": {"hang": true, "path": "/mcp/slow"}}"#,
        step: "notifications/initialized",
        is_told: true,
    },
    Hang {
        what: "success comes late",
        at: MAIN,
        faults: r#"{"initialize": {"delayMs": 2000, "after": true, "path": "/mcp/slow"}}"#,
        step: "initialize",
        is_told: true,
    },
];

impl Hang {
    fn url(&self, probe: &Probe) -> String {
        let (scheme, port, path) = self.at;
        probe.url_at(scheme, port) + path
    }

    /// Name of the `McpServer` for its URL.
    fn server(&self) -> &'static str {
        match self.at.1 {
            8081 => "plain",
            8447 => "silent",
            _ => SLOW,
        }
    }

    /// How often attempts reached the server.
    fn reached(&self, books: &Books) -> u64 {
        match self.server() {
            SLOW => books.requests("initialize").iter().filter(|entry| entry["path"] == "/mcp/slow").count()
                as u64,
            port => books.0["connections"]["ports"][port]["accepted"].as_u64().unwrap_or(0),
        }
    }

    /// Sets its faults, or takes them away.
    async fn strike(&self, probe: &Probe, on: bool) {
        let mut faults: Value = serde_json::from_str(self.faults).unwrap();
        if !on {
            faults.as_object_mut().unwrap().values_mut().for_each(|fault| *fault = Value::Null);
        }
        probe.set_faults(&faults).await;
    }

    /// A client of `session` gets the error in time, while the session's other server answers. Gives how long nothing is tried.
    async fn is_bounded(&self, namespace: &TestNamespace, session: &str, token: &str) -> Duration {
        let mut other = McpClient::new(&namespace.name, session, "other", token);
        other.initialize().await;
        let mut slow = McpClient::new(&namespace.name, session, self.server(), token);
        let begun = Instant::now();
        let capabilities = json!({});
        let mut failing = std::pin::pin!(slow.try_initialize(&capabilities));
        let mut answered = 0;
        let answer = loop {
            tokio::select! {
                answer = &mut failing => break answer,
                echo = other.call("echo", json!({"message": "on"})) => assert_eq!(echo, "on"),
            }
            answered += 1;
        };
        let took = begun.elapsed();
        let (what, error) = (self.what, &answer["error"]);
        assert_eq!(error["code"], -32050, "{what}: {answer}");
        assert_eq!(
            error["data"]["reason"], "InitializeTimeout",
            "{what}: within timeouts.connect nothing else is known: {answer}"
        );
        assert_eq!(error["data"]["server"], self.server(), "{what}: {answer}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&format!("\"{}\", {}:", self.server(), self.step)), "{what}: {message}");
        let bound = Duration::from_secs(1)..Duration::from_secs(2);
        assert!(bound.contains(&took), "{what}: the error came after {took:?}");
        assert!(answered > 10, "{what}: the other server answered {answered} calls meanwhile");
        let pause = error["data"]["retryAfterMillis"].as_u64();
        Duration::from_millis(pause.unwrap_or_else(|| panic!("{what}: when to try again is told: {answer}")))
    }

    /// A session that is deleted in the middle of the attempt is gone in time.
    async fn holds_no_end(&self, namespace: &TestNamespace, probe: &Probe, session: &str, token: &str) {
        let client = McpClient::new(&namespace.name, session, self.server(), token);
        let before = self.reached(&probe.books().await);
        let waiting = tokio::spawn(async move { client.try_send(&initialize(&json!({}))).await });
        probe.until("the attempt is under way", BOUND, |books| self.reached(books) > before).await;
        let made = namespace.api::<AgentSession>().get(session).await.unwrap();
        // drain + close + 10 s
        namespace.end(&made, Duration::from_secs(1 + 2 + 10)).await;
        let answer = waiting.await.unwrap();
        assert!(answer.as_ref().map_or(true, |a| !a.headers.contains_key("mcp-session-id")), "{answer:?}");
    }

    /// Every session that the server opened is ended again.
    async fn is_cleaned_up(&self, probe: &Probe) {
        let what = format!("{}: what was opened is closed again", self.what);
        probe
            .until(&what, BOUND, |books| {
                let opened: Vec<Value> = books
                    .requests("initialize")
                    .into_iter()
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

/// One server for each URL of [`HANGS`], that gives up after a second, and one that works.
async fn servers(namespace: &TestNamespace, probe: &Probe) {
    // One pod of each, so that no other one comes or goes meanwhile.
    let pool = json!({"sessionsPerPod": 200});
    let timeouts = json!({"timeouts": {"connect": "1s", "drain": "1s", "close": "2s"}, "pool": pool});
    let of = |at: usize| {
        let hang: &Hang = &HANGS[at];
        let (name, url, timeouts) = (hang.server(), hang.url(probe), timeouts.clone());
        async move { mcp_server(namespace, name, &url, timeouts).await }
    };
    let other = probe.url();
    let other = mcp_server(namespace, "other", &other, json!({"timeouts": {"drain": "1s", "close": "2s"}}));
    futures::join!(of(0), of(2), of(3), other);
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
        let delay = Duration::from_secs(u64::from(rounds(5, 20)));
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
    for (number, hang) in HANGS.iter().filter(|hang| hang.server() == server).enumerate() {
        let (caught, ended) = (format!("{server}-caught-{number}"), format!("{server}-ended-{number}"));
        let both = [server, "other"];
        let (made, _) = futures::join!(
            session(namespace, &caught, "alice", &both),
            session(namespace, &ended, "alice", &both)
        );
        hang.strike(probe, true).await;
        let pause = hang.is_bounded(namespace, &caught, token).await;
        // Until then no attempt is made.
        tokio::time::sleep(pause).await;
        hang.holds_no_end(namespace, probe, &ended, token).await;
        if hang.is_told {
            hang.is_cleaned_up(probe).await;
        }
        hang.strike(probe, false).await;
        if server != "silent" {
            heal(namespace, &format!("{server}-well-{number}"), server, token).await;
        }
        namespace.end(&made, BOUND).await;
    }
}

/// Must show 2 of the step.
#[tokio::test]
async fn an_upstream_that_hangs_anywhere_costs_its_bound_and_holds_up_neither_servers_nor_ends() {
    in_namespace("hang", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        servers(&namespace, &probe).await;
        let token = namespace.token("alice").await;
        let of = |server| Box::pin(in_turn(&namespace, &probe, &token, server));
        futures::join!(of("plain"), of("silent"), of(SLOW));
        wait_for_baseline(&namespace, 0).await;
    })
    .await;
}

/// Attempts that ended so.
async fn timed_out(namespace: &TestNamespace) -> f64 {
    let metrics = pod_metrics(&namespace.client, &namespace.name, POOL).await;
    metrics.sum("berth_sidecar_connects_total{result=\"InitializeTimeout\"}")
}

/// Must show 2 of the step: a hundred at a time, until there are so many.
#[tokio::test]
async fn attempts_that_failed_leave_no_socket_and_no_entry() {
    in_namespace("failed", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        servers(&namespace, &probe).await;
        let token = namespace.token("alice").await;
        let (at_once, wanted) = (rounds(50, 100), f64::from(rounds(50, 1_000)));
        let names: Vec<String> = (0..at_once).map(|n| format!("s{n}")).collect();
        let all = [SLOW, "plain", "silent"];
        join_all(names.iter().map(|name| session(&namespace, name, "alice", &all))).await;
        let before = descriptors(&namespace).await;
        let mut healed = 0;
        // Without those that only a shorter bound tells from these.
        for hang in [&HANGS[0], &HANGS[1], &HANGS[2], &HANGS[3], &HANGS[4]] {
            let begun = timed_out(&namespace).await;
            let mut round = 0;
            loop {
                hang.strike(&probe, true).await;
                let calls = names.iter().map(|name| {
                    let mut client = McpClient::new(&namespace.name, name, hang.server(), &token);
                    async move { client.try_initialize(&json!({})).await }
                });
                for answer in join_all(calls).await {
                    assert_eq!(
                        answer["error"]["data"]["reason"], "InitializeTimeout",
                        "{}: {answer}",
                        hang.what
                    );
                }
                let failed = timed_out(&namespace).await - begun;
                round += 1;
                assert!(round <= 30, "{}: {failed} attempts in {round} rounds", hang.what);
                hang.strike(&probe, false).await;
                // The silent port is never well: its sessions go on with what backoff lets through.
                if hang.server() == "silent" || failed >= wanted {
                    figure(&format!("attempts that timed out, and left nothing: {}", hang.what), failed);
                    break;
                }
                healed += 1;
                heal(&namespace, &format!("well-{healed}"), hang.server(), &token).await;
            }
            healed += 1;
            if hang.server() != "silent" {
                heal(&namespace, &format!("well-{healed}"), hang.server(), &token).await;
            }
        }
        nothing_is_open(&namespace, f64::from(at_once * 3)).await;
        eventually("as many descriptors are open as before", Duration::from_mins(1), || async {
            let now = descriptors(&namespace).await;
            (now <= before).then_some(())
        })
        .await;
    })
    .await;
}

/// Descriptors of all sidecars of the namespace.
async fn descriptors(namespace: &TestNamespace) -> usize {
    berth_e2e::sidecars(namespace).await.iter().map(berth_e2e::Process::descriptors).sum()
}

async fn nothing_is_open(namespace: &TestNamespace, sessions: f64) {
    eventually("gauges of the sidecars are at their baseline", BOUND, || async {
        let metrics = pod_metrics(&namespace.client, &namespace.name, POOL).await;
        let sum = |gauge: &str| metrics.sum(&format!("berth_sidecar_{gauge}"));
        (sum("sessions") == sessions
            && ["connections", "scopes", "requests_in_flight", "client_streams", "upstream_streams"]
                .iter()
                .all(|gauge| sum(gauge) == 0.0))
        .then_some(())
    })
    .await;
}
