//! Answers, progress and its order, between clients that call everything by the same names.

use berth_e2e::{
    Dice, McpClient, Probe, TestNamespace, figure, in_namespace, mcp_server, rounds, session, tool_call_with,
};
use futures::future::join_all;
use serde_json::{Value, json};

const SESSIONS: u32 = 20;
/// Clients of each session, and calls of each client at once: no more than a session runs at once.
const CLIENTS: u32 = 2;
const AT_ONCE: u32 = 4;

/// One client, and who it is.
#[derive(Clone)]
struct Caller {
    client: McpClient,
    /// Its upstream session.
    upstream: String,
    name: String,
}

async fn caller(namespace: &TestNamespace, session: &str, number: u32, token: &str) -> Caller {
    let mut client = McpClient::new(&namespace.name, session, "probe", token).keeping_connections();
    client.initialize().await;
    let told = client.call_as(&json!("who"), "whoami", json!({})).await;
    let upstream = told["result"]["structuredContent"]["sessionId"].as_str().unwrap().to_owned();
    Caller { client, upstream, name: format!("{session}/{number}") }
}

impl Caller {
    /// Calls one after the other. Every lane of that number, of every client, uses the same ids and tokens.
    async fn call_on(self, lane: u32, calls: u32, mut dice: Dice) {
        for number in 0..calls {
            let id = match lane % 2 {
                0 => json!(lane * 1_000_000 + number),
                _ => json!(format!("{lane}-{number}")),
            };
            match dice.below(8) {
                0 => self.has_progress(&id, lane, dice.below(9) + 2).await,
                1 => self.is_itself(&id).await,
                _ => self.is_echoed(&id, &format!("{} {lane} {number}", self.name)).await,
            }
        }
    }

    async fn is_echoed(&self, id: &Value, text: &str) {
        let answer = self.client.call_as(id, "echo", json!({"message": text})).await;
        assert_eq!(answer["result"]["content"][0]["text"], text, "misrouted: {answer}");
    }

    async fn is_itself(&self, id: &Value) {
        let answer = self.client.call_as(id, "whoami", json!({})).await;
        assert_eq!(answer["result"]["structuredContent"]["sessionId"], self.upstream, "misrouted: {answer}");
    }

    async fn has_progress(&self, id: &Value, lane: u32, steps: u64) {
        let token = json!(lane);
        let call = tool_call_with(id, "progress", json!({"steps": steps}), json!({"progressToken": token}));
        let messages = self.client.send(&call).await.messages();
        assert_progress(&messages, id, &token, steps);
    }
}

/// Every progress of a call, in its order, then its result and nothing else.
fn assert_progress(messages: &[Value], id: &Value, token: &Value, steps: u64) {
    let (last, progress) = messages.split_last().expect("an answer");
    assert_eq!(progress.len() as u64, steps, "progress of {id}, then {last}");
    for (message, step) in progress.iter().zip(1_u64..) {
        let params = &message["params"];
        assert_eq!(message["method"], "notifications/progress");
        assert_eq!(
            (&params["progressToken"], &params["progress"], &params["total"]),
            (token, &json!(step), &json!(steps))
        );
    }
    assert_eq!(
        (&last["id"], &last["result"]["content"][0]["text"]),
        (id, &json!(format!("{steps} steps"))),
        "{last}"
    );
}

/// Must show 3 of the step.
#[tokio::test]
async fn calls_of_twenty_sessions_that_share_ids_and_tokens_get_their_own_answers() {
    in_namespace("misrouted", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let tokens = [namespace.token("alice").await, namespace.token("bob").await];
        let (of, tokens) = (&namespace, &tokens);
        let callers = join_all((0..SESSIONS).map(|number| async move {
            let (name, who) = (format!("s{number}"), number as usize % 2);
            session(of, &name, ["alice", "bob"][who], &["probe"]).await;
            join_all((0..CLIENTS).map(|client| caller(of, &name, client, &tokens[who]))).await
        }))
        .await;

        let calls = rounds(10_000, 100_000).div_ceil(SESSIONS * CLIENTS * AT_ONCE);
        let before = probe.books().await.total("toolsCall");
        let mut lanes = Vec::new();
        for (number, caller) in (0..).zip(callers.into_iter().flatten()) {
            for lane in 0..AT_ONCE {
                let dice = Dice::new(number * AT_ONCE + lane);
                lanes.push(tokio::spawn(caller.clone().call_on(lane, calls, dice)));
            }
        }
        for lane in lanes {
            lane.await.unwrap();
        }
        let made = u64::from(calls * SESSIONS * CLIENTS * AT_ONCE);
        let books = probe.books().await;
        assert_eq!(books.total("toolsCall") - before, made, "each reached the upstream once");
        assert_eq!(books.total("initialize"), u64::from(SESSIONS));
        figure("interleaved calls of 20 sessions with equal ids and tokens, 0 misrouted", made);
    })
    .await;
}

/// Must show 3 of the step.
#[tokio::test]
async fn a_burst_of_progress_on_ten_calls_comes_whole_and_in_order_before_each_result() {
    in_namespace("burst", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        session(&namespace, "s", "alice", &["probe"]).await;
        let token = namespace.token("alice").await;
        let mut clients = Vec::new();
        for _ in 0..2 {
            let mut client = McpClient::new(&namespace.name, "s", "probe", &token);
            client.initialize().await;
            clients.push(client);
        }
        let calls = clients.iter().flat_map(|client| (0..5).map(move |number| (client, number)));
        let calls = calls.map(|(client, number)| async move {
            // The numbers of both clients are the same.
            let (id, token) = (json!(number), json!(format!("t{number}")));
            let meta = json!({"progressToken": token});
            let call = tool_call_with(&id, "progress", json!({"steps": 2_000}), meta);
            let answer = client.begin(&call).await;
            assert_progress(&answer.messages().await, &id, &token, 2_000);
        });
        assert_eq!(join_all(calls).await.len(), 10);
        figure("progress notifications on each of 10 calls at once, in order, none lost", 2_000);
    })
    .await;
}
