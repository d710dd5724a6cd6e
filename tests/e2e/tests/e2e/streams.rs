//! What the server says besides answers: its own stream and how often it is asked for, comments while nothing is said, questions
//! to clients, and news for them.

use crate::quiet::earlier_namespaces_are_gone;
use berth_e2e::{
    Cutter, McpClient, Probe, TestNamespace, ends_and_leaves_nothing, eventually, figure, in_namespace,
    mcp_server, rounds, session, tool_call, wait_for_baseline,
};
use futures::{StreamExt, stream};
use http::StatusCode;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_mins(1);
/// What was cut is noticed at once. Far below any timeout that could end a call as well.
const AT_ONCE: Duration = Duration::from_secs(10);
/// A question that is passed on as it comes is there sooner, on a machine that is busy too; how soon is a matter of benchmarks.
const PROMPT: Duration = Duration::from_secs(1);
/// How soon a client knows a changed list.
const NEW_LIST: Duration = Duration::from_secs(2);

async fn client(namespace: &TestNamespace, server: &str, token: &str, capabilities: &Value) -> McpClient {
    let mut client = McpClient::new(&namespace.name, "s", server, token);
    client.initialize_with(capabilities).await;
    client
}

/// A probe with a server for it, and the session `s` of alice.
async fn world(namespace: &TestNamespace) -> (Probe, String) {
    let probe = Probe::start(namespace).await;
    mcp_server(namespace, "probe", &probe.url(), json!({})).await;
    session(namespace, "s", "alice", &["probe"]).await;
    (probe, namespace.token("alice").await)
}

/// GETs that the upstream has got at a path.
async fn gets(probe: &Probe, path: &str) -> usize {
    probe.books().await.requests("GET").iter().filter(|entry| entry["path"] == path).count()
}

/// CASES.md 9.
#[tokio::test]
async fn an_upstream_without_a_stream_is_asked_once_and_one_that_flaps_seldom() {
    in_namespace("gets", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let (namespace, probe) = (&namespace, &probe);
        let names = ["refuses", "text", "empty", "flaps"];
        let servers = names.map(|name| async move {
            mcp_server(namespace, name, &format!("{}/{name}", probe.url()), json!({})).await
        });
        futures::future::join_all(servers).await;
        session(namespace, "s", "alice", &names).await;
        let token = namespace.token("alice").await;
        // The more specific key is asked first, so that one kind of request can have two faults.
        let answer = |kind: &str| json!({"status": 200, "headers": {"content-type": kind}});
        let (mut text, mut empty) = (answer("text/plain"), answer("text/event-stream"));
        text["path"] = json!("/mcp/text");
        empty["path"] = json!("/mcp/empty");
        probe.set_faults(&json!({"get": {"status": 405, "path": "/mcp/refuses"}, "GET": text})).await;
        for name in ["refuses", "text"] {
            let client = client(namespace, name, &token, &json!({})).await;
            for _ in 0..5 {
                let answer = client.listen().await;
                assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{name}: there is no stream");
            }
            assert_eq!(client.call("echo", json!({"message": name})).await, name);
            assert_eq!(gets(probe, &format!("/mcp/{name}")).await, 1, "{name}: never asked again");
        }

        let flaps = json!({"answer": {"endAfterMs": 1_000}, "path": "/mcp/flaps"});
        probe.set_faults(&json!({"get": empty, "GET": flaps})).await;
        let span = Duration::from_secs(u64::from(rounds(12, 600)));
        let begun = Instant::now();
        let (empty, flaps) = (
            client(namespace, "empty", &token, &json!({})).await,
            client(namespace, "flaps", &token, &json!({})).await,
        );
        while begun.elapsed() < span {
            // Clients that come and go change nothing.
            for client in [&empty, &flaps] {
                let stream = client.listen().await;
                assert_eq!(stream.status, StatusCode::OK, "the client's stream outlives the upstream's");
                assert_eq!(client.call("echo", json!({"message": "on"})).await, "on");
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        // Pauses of at least 0.5, 1, 2, 4, 8 s and so on up to half a minute; never more than 20 in ten minutes.
        let most = rounds(6, 20) as usize;
        for name in ["empty", "flaps"] {
            let asked = gets(probe, &format!("/mcp/{name}")).await;
            assert!((2..=most).contains(&asked), "{name}: asked {asked} times in {span:?}");
            figure(&format!("GETs in {} s, upstream that {name}", span.as_secs()), asked);
        }
    })
    .await;
}

/// CASES.md 22.
#[tokio::test]
async fn what_is_silent_for_long_is_kept_open_by_comments() {
    in_namespace("keepalive", |namespace| async move {
        let (probe, token) = world(&namespace).await;
        let silence = Duration::from_secs(20);
        let (cutter, idle) = (Cutter::open(silence).await, Cutter::open(Duration::from_secs(1)).await);
        let mut client = McpClient::new(&namespace.name, "s", "probe", &token).by_way_of(&cutter.url());
        client.initialize().await;
        let sleeps = rounds(26, 90) * 1_000;
        let slept = |id: u32, stream: bool| {
            let client = &client;
            async move {
                let call = tool_call(&json!(id), "sleep", json!({"ms": sleeps, "stream": stream}));
                let mut answer = client.begin(&call).await;
                let last = answer.next().await.expect("the result comes");
                assert_eq!(last["result"]["content"][0]["text"], format!("slept {sleeps} ms"), "{last}");
                assert!(answer.comments > 0, "comments came while nothing else did");
            }
        };
        let mut listening = client.listen().await;
        assert_eq!(listening.status, StatusCode::OK);
        let heard = async {
            let news = json!({"jsonrpc": "2.0", "method": "vendor/news"});
            slept(3, true).await;
            probe.tell("push", &json!({"message": news})).await;
            assert_eq!(listening.next().await, Some(news));
            assert!(listening.comments > 0);
        };
        // That it cuts at all shows on a way where nobody says anything.
        let cut = async {
            let mut way =
                tokio::net::TcpStream::connect(idle.url().trim_start_matches("http://")).await.unwrap();
            let read = tokio::io::AsyncReadExt::read(&mut way, &mut [0]).await;
            assert!(matches!(read, Ok(0) | Err(_)));
            eventually("the cut is counted", BOUND, || async { (idle.cuts() == 1).then_some(()) }).await;
        };
        futures::join!(slept(1, false), slept(2, true), heard, cut);
        assert_eq!(cutter.cuts(), 0);
    })
    .await;
}

/// CASES.md 22, second run.
#[tokio::test]
async fn a_silent_upstream_that_is_cut_fails_its_call_and_no_other() {
    in_namespace("cut", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let silence = Duration::from_secs(u64::from(rounds(4, 20)));
        let upstream = SocketAddr::new(probe.address().await, 8080);
        let cutter = Cutter::before(&namespace.client, upstream, silence).await;
        mcp_server(&namespace, "probe", &format!("{}/mcp", cutter.url()), json!({})).await;
        session(&namespace, "s", "alice", &["probe"]).await;
        let client = client(&namespace, "probe", &namespace.token("alice").await, &json!({})).await;
        // As plain JSON nothing comes for all the time; of a stream there is the head.
        for (number, stream) in (1..).zip([false, true]) {
            let (before, cuts) = (probe.books().await.total("toolsCall"), cutter.cuts());
            let begun = Instant::now();
            let call = tool_call(&json!(number), "sleep", json!({"ms": 90_000, "stream": stream}));
            let last = client.begin(&call).await.messages().await.pop().expect("an answer");
            let took = begun.elapsed();
            let error = &last["error"];
            assert_eq!((&last["id"], &error["code"]), (&json!(number), &json!(-32051)), "{last}");
            assert!(error["message"].as_str().unwrap().contains("unknown"), "{last}");
            assert!(took < silence + AT_ONCE, "stream {stream}: after {took:?}");
            assert!(cutter.cuts() > cuts, "it was cut");
            assert_eq!(probe.books().await.total("toolsCall") - before, 1, "nothing was sent again");
            assert_eq!(client.call("echo", json!({"message": "next"})).await, "next");
            assert_eq!(probe.books().await.total("toolsCall") - before, 2);
        }
        // A way that is silent would be cut again, and its connection is part of the baseline.
        let speaks = stream::repeat(()).for_each(|()| async {
            assert_eq!(client.call("echo", json!({"message": "on"})).await, "on");
            tokio::time::sleep(silence / 4).await;
        });
        tokio::select! {
            () = speaks => {}
            () = wait_for_baseline(&namespace, 1) => {}
        }
        ends_and_leaves_nothing(&namespace, "s").await;
    })
    .await;
}

/// A client whose call asks it something, in a kind, that is answered with `content`. How long the question took from the call on.
async fn is_asked(client: &McpClient, kind: &str, method: &str, content: &str) -> Duration {
    let begun = Instant::now();
    let mut call =
        client.begin(&tool_call(&json!("same"), "ask", json!({"kind": kind, "message": content}))).await;
    let question = tokio::time::timeout(BOUND, call.next()).await.expect("it is asked while the call runs");
    let (question, took) = (question.expect("a question"), begun.elapsed());
    assert_eq!(question["method"], method, "{question}");
    assert!(question["params"].to_string().contains(content), "its own question: {question}");
    let result = json!({"action": "accept", "content": {"name": content}});
    let told = client.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result})).await;
    assert_eq!(told.status, StatusCode::ACCEPTED);
    let last = call.messages().await.pop().expect("a result");
    assert_eq!(last["result"]["structuredContent"]["answer"], result, "its own answer: {last}");
    took
}

/// CASES.md 23.
#[tokio::test]
async fn questions_of_calls_reach_the_client_that_calls_and_its_answer_that_call_alone() {
    in_namespace("asked", |namespace| async move {
        let (probe, token) = world(&namespace).await;
        session(&namespace, "his", "bob", &["probe"]).await;
        let able = json!({"elicitation": {}, "sampling": {}});
        let (one, two) = (
            client(&namespace, "probe", &token, &able).await,
            client(&namespace, "probe", &token, &able).await,
        );
        let mut his = McpClient::new(&namespace.name, "his", "probe", &namespace.token("bob").await);
        his.initialize_with(&able).await;
        earlier_namespaces_are_gone(&namespace).await;
        let mut took = Vec::new();
        // The ids of questions are the same in every upstream session.
        for round in 0..rounds(5, 50) {
            let text = |who: &str| format!("{who} {round}");
            let (first, second, third) = (text("one"), text("two"), text("his"));
            let (first, second, third) = futures::join!(
                is_asked(&one, "elicitation", "elicitation/create", &first),
                is_asked(&two, "sampling", "sampling/createMessage", &second),
                is_asked(&his, "elicitation", "elicitation/create", &third),
            );
            took.extend([first, second, third]);
        }
        took.sort();
        let (median, slowest) = (took[took.len() / 2], took[took.len() - 1]);
        assert!(median < PROMPT, "a question waits for nothing: {took:?}");
        figure("milliseconds from a call to its question at the client, median and slowest", {
            format!("{} and {}", median.as_millis(), slowest.as_millis())
        });
        // One who did not say that it can be asked.
        let bare = client(&namespace, "probe", &token, &json!({})).await;
        for (kind, method) in [("elicitation", "elicitation"), ("sampling", "sampling")] {
            let begun = Instant::now();
            let call = tool_call(&json!(1), "ask", json!({"kind": kind, "force": true}));
            let mut messages = bare.begin(&call).await.messages().await;
            let error = messages.pop().expect("an answer")["result"]["structuredContent"]["error"].clone();
            assert_eq!(error["code"], -32601, "{error}");
            assert!(error["message"].as_str().unwrap().contains(method), "{error}");
            assert!(messages.is_empty() && begun.elapsed() < BOUND, "at once, and unasked");
        }
        // One who leaves while asked.
        let before = probe.books().await.replies().len();
        let mut call = one.begin(&tool_call(&json!(2), "ask", json!({}))).await;
        assert_eq!(call.next().await.unwrap()["method"], "elicitation/create");
        drop(call);
        let books = probe.until("the server is told", BOUND, |books| books.replies().len() > before).await;
        assert_eq!(books.replies()[before]["error"]["code"], -32600, "{:?}", books.replies()[before]);
        wait_for_baseline_of_two(&namespace).await;
    })
    .await;
}

/// Calls are over, and nothing is asked any more.
async fn wait_for_baseline_of_two(namespace: &TestNamespace) {
    eventually("no call runs", BOUND, || async {
        let metrics = berth_e2e::pod_metrics(&namespace.client, &namespace.name, berth_e2e::POOL).await;
        (metrics.sum("berth_sidecar_requests_in_flight") == 0.0
            && metrics.sum("berth_sidecar_sessions") == 2.0)
            .then_some(())
    })
    .await;
}

/// CASES.md 23: outside of any call.
#[tokio::test]
async fn questions_outside_of_calls_reach_one_client_that_listens() {
    in_namespace("asked-outside", |namespace| async move {
        let (probe, token) = world(&namespace).await;
        let able = client(&namespace, "probe", &token, &json!({"elicitation": {}})).await;
        let bare = client(&namespace, "probe", &token, &json!({})).await;
        let (mut asked, mut other) = (able.listen().await, bare.listen().await);
        probe
            .until("the upstream's stream is open", BOUND, |books| books.sessions()[0]["streams"] == 1)
            .await;
        probe.tell("ask", &json!({"message": "who?"})).await;
        let question = asked.next().await.unwrap();
        assert_eq!(question["params"]["message"], "who?", "{question}");
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}});
        for _ in 0..2 {
            assert_eq!(able.send(&answer).await.status, StatusCode::ACCEPTED);
        }
        probe.until("the answer came", BOUND, |books| books.total("response") > 0).await;
        // What comes next on the streams shows that nothing else did.
        let news = json!({"jsonrpc": "2.0", "method": "vendor/news"});
        probe.tell("push", &json!({"message": news})).await;
        assert_eq!((asked.next().await, other.next().await), (Some(news.clone()), Some(news)));
        let replies = probe.books().await.replies();
        assert_eq!(replies.len(), 1, "an answer goes up once: {replies:?}");
        assert_eq!(replies[0]["result"]["action"], "decline");
        drop((asked, other));
        wait_for_baseline_of_streams(&namespace).await;
    })
    .await;
}

async fn wait_for_baseline_of_streams(namespace: &TestNamespace) {
    // The upstream's stream is kept for 30 s after the last client's.
    eventually("no stream is open", Duration::from_secs(30) + BOUND, || async {
        let metrics = berth_e2e::pod_metrics(&namespace.client, &namespace.name, berth_e2e::POOL).await;
        let sum = |gauge: &str| metrics.sum(&format!("berth_sidecar_{gauge}"));
        (sum("client_streams") == 0.0 && sum("upstream_streams") == 0.0).then_some(())
    })
    .await;
}

async fn tools(client: &McpClient) -> Vec<String> {
    let answer = client.request(&json!("list"), "tools/list", &json!({})).await;
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("tools, not {answer}"));
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

/// CASES.md 24.
#[tokio::test]
async fn clients_hear_of_a_changed_list_and_a_storm_of_such_news_does_no_harm() {
    in_namespace("changed", |namespace| async move {
        let (probe, token) = world(&namespace).await;
        let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
        // Before the client is even ready.
        probe.set_faults(&json!({"initialize": {"answer": {"before": [changed]}}})).await;
        let one = client(&namespace, "probe", &token, &json!({})).await;
        probe.clear_faults().await;
        let two = client(&namespace, "probe", &token, &json!({})).await;
        assert!(tools(&one).await.contains(&"echo".to_owned()));
        let mut streams = [one.listen().await, two.listen().await];
        probe
            .until("the upstream's stream is open", BOUND, |books| books.sessions()[0]["streams"] == 1)
            .await;

        earlier_namespaces_are_gone(&namespace).await;
        let tool = json!({"name": "fresh", "inputSchema": {"type": "object"}});
        probe.tell("tools", &json!({"add": [tool], "remove": ["echo"]})).await;
        let begun = Instant::now();
        probe.tell("notify", &json!({"kind": "tools"})).await;
        for (client, stream) in [&one, &two].into_iter().zip(&mut streams) {
            assert_eq!(stream.next().await.as_ref(), Some(&changed));
            let now = tools(client).await;
            assert!(now.contains(&"fresh".to_owned()) && !now.contains(&"echo".to_owned()), "{now:?}");
        }
        let until_seen = begun.elapsed();
        assert!(until_seen < NEW_LIST, "both clients see the new list after {until_seen:?}");
        figure("milliseconds until two clients saw a changed list of tools", until_seen.as_millis());
        for client in [&one, &two] {
            assert_eq!(client.call("fresh", json!({})).await, "called fresh");
            let gone = client.call_as(&json!(1), "echo", json!({"message": "x"})).await;
            let made_up = client.call_as(&json!(1), "never-was", json!({})).await;
            assert_eq!(gone, made_up, "a tool that is gone is as unknown as one that never was");
        }

        // While the list is being read, a thousand times.
        let listed = probe.books().await.total("toolsList");
        probe.set_faults(&json!({"tools/list": {"delayMs": 1_000}})).await;
        let storm = json!({"kind": "tools", "count": 1_000});
        let begun = Instant::now();
        let (now, _) = futures::join!(tools(&one), probe.tell("notify", &storm));
        assert!(now.contains(&"fresh".to_owned()));
        let mut last = changed.clone();
        last["params"] = json!({"_meta": {"probe.test/last": true}});
        probe.tell("push", &json!({"message": last})).await;
        // One at once, one for each second that the storm took to come, the last; and one for news of before.
        let most = 4 + begun.elapsed().as_secs();
        // As a client may that reads the list again whenever it hears of a change.
        let mut reads = 1;
        for (client, stream) in [&one, &two].into_iter().zip(&mut streams) {
            let (mut heard, mut message) = (0, Value::Null);
            while message != last {
                message = stream.next().await.expect("the stream goes on");
                assert!(message == changed || message == last, "{message}");
                heard += 1;
                assert!(tools(client).await.contains(&"fresh".to_owned()));
            }
            assert!(heard <= most, "{heard} of 1,001 came, where {most} may");
            reads += heard;
        }
        assert_eq!(probe.books().await.total("toolsList") - listed, reads, "nobody read it but the clients");
        drop(streams);
        ends_and_leaves_nothing(&namespace, "s").await;
    })
    .await;
}
