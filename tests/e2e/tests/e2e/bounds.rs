//! Large messages, long lists and slow readers: what is within the limits comes as it is, and what is not harms nobody else.

use berth_e2e::{
    Answer, McpClient, POOL, Probe, Process, TestNamespace, ends_and_leaves_nothing, figure, gateway_url,
    in_namespace, mcp_server, session, sidecar, tool_call, tool_call_with,
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const MIB: usize = 1024 * 1024;
const TOO_LARGE: i32 = -32054;
const LIMIT_REACHED: i32 = -32055;
/// `limits.requestBytes` of a server that sets none.
const REQUEST_LIMIT: usize = 4 * MIB;
/// What a sidecar holds of messages at most, and how often each message counts.
const BUFFER: usize = 72 * MIB;
const COPIES: usize = 2;

async fn world(namespace: &TestNamespace, more: Value) -> (Probe, McpClient) {
    let probe = Probe::start(namespace).await;
    mcp_server(namespace, "probe", &probe.url(), more).await;
    session(namespace, "s", "alice", &["probe"]).await;
    let mut client = McpClient::new(&namespace.name, "s", "probe", &namespace.token("alice").await);
    client.initialize().await;
    (probe, client)
}

/// Names of all tools, page by page, and the number of pages.
async fn all_tools(client: &McpClient, pages: usize) -> (Vec<String>, Option<String>) {
    let (mut names, mut cursor) = (Vec::new(), None);
    for page in 0..pages {
        let params = cursor.as_ref().map_or(json!({}), |cursor| json!({"cursor": cursor}));
        let answer = client.request(&json!(page), "tools/list", &params).await;
        let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("tools, not {answer}"));
        names.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
        cursor = answer["result"]["nextCursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    (names, cursor)
}

/// CASES.md 20.
#[tokio::test]
async fn pages_of_tools_pass_as_the_upstream_makes_them() {
    in_namespace("pages", |namespace| async move {
        let (probe, client) = world(&namespace, json!({})).await;
        let expected = |count: usize| (0..count).map(|number| format!("filler-{number}")).collect::<Vec<_>>();
        let fillers =
            |count: usize, pages: &str| json!({"real": false, "filler": count, "page": 50, "pages": pages});
        for pages in ["good", "emptyLast"] {
            probe.tell("tools", &fillers(101, pages)).await;
            assert_eq!(all_tools(&client, 10).await, (expected(101), None), "{pages}");
        }
        // A client that follows a bad list for ever does so on its own: nothing is read ahead or gathered here.
        probe.tell("tools", &fillers(101, "repeat")).await;
        let (names, cursor) = all_tools(&client, 10).await;
        assert_eq!((names.len(), cursor.as_deref()), (500, Some("again")));
        probe.tell("tools", &fillers(0, "endless")).await;
        assert_eq!(all_tools(&client, 10).await, (expected(500), Some("from-500".to_owned())));

        let before = probe.books().await.total("toolsList");
        probe.tell("tools", &json!({"real": false, "filler": 5_000, "fillerBytes": 2_000})).await;
        let (names, cursor) = all_tools(&client, 1).await;
        assert!(names == expected(5_000) && cursor.is_none(), "10 MB in one page: {} tools", names.len());
        assert_eq!(probe.books().await.total("toolsList") - before, 1);
    })
    .await;
}

/// The tool `big`, plain or as an event.
fn big(id: u32, bytes: usize, stream: bool) -> Value {
    tool_call(&json!(id), "big", json!({"bytes": bytes, "stream": stream}))
}

/// Whether the answer is the whole text.
fn is_whole(answer: &Value, bytes: usize) -> bool {
    let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
    text.len() == bytes && text.bytes().all(|byte| byte == b'x')
}

async fn answered(client: &McpClient, call: &Value) -> Value {
    let answer: Answer = client.send(call).await;
    assert_eq!(answer.status, 200);
    answer.answer_to(&call["id"])
}

/// The whole answer to a request that announces so many bytes. None of them is sent, so that the connection cannot break before the
/// answer is read.
async fn announced(namespace: &TestNamespace, bytes: usize) -> String {
    let url = format!("{}/{}/s/probe/mcp", gateway_url(), namespace.name);
    let (authority, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let token = namespace.token("alice").await;
    let head = format!(
        "POST /{path} HTTP/1.1\r\nhost: {authority}\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\naccept: application/json, text/event-stream\r\n\
         connection: close\r\ncontent-length: {bytes}\r\n\r\n"
    );
    let mut stream = TcpStream::connect(authority).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    tokio::time::timeout(Duration::from_secs(30), read).await.expect("it is refused at once").unwrap();
    answer
}

/// CASES.md 21.
#[tokio::test]
async fn large_messages_come_whole_up_to_the_limit_and_beyond_it_only_their_call_fails() {
    in_namespace("sizes", |namespace| async move {
        let (probe, client) = world(&namespace, json!({})).await;
        for bytes in [65_535, 65_536, 65_537, MIB + 1, 8 * MIB] {
            for stream in [false, true] {
                let answer = answered(&client, &big(1, bytes, stream)).await;
                assert!(is_whole(&answer, bytes), "{bytes} bytes, as an event: {stream}");
            }
        }
        let process = sidecar(&namespace).await;
        let sleeping = tool_call(&json!(3), "sleep", json!({"ms": 3_000}));
        let others = async {
            let answer = answered(&client, &sleeping).await;
            assert_eq!(answer["result"]["content"][0]["text"], "slept 3000 ms", "{answer}");
        };
        let too_large = async {
            for stream in [false, true] {
                for bytes in [16 * MIB + 1, 64 * MIB] {
                    let answer = answered(&client, &big(2, bytes, stream)).await;
                    let error = &answer["error"];
                    assert_eq!(error["code"], TOO_LARGE, "{bytes} bytes, as an event: {stream}: {error}");
                    let message = error["message"].as_str().unwrap();
                    assert!(message.contains(&(16 * MIB).to_string()), "the limit is named: {message}");
                }
            }
        };
        futures::join!(others, too_large);
        for (count, bytes, passes) in [(90, 16, true), (101, 16, false), (60, 2_000, false)] {
            let answer = json!({"fillHeaders": {"count": count, "bytes": bytes}});
            let fault = json!({"probe.test/fault": {"answer": answer}});
            let call = tool_call_with(&json!(5), "echo", json!({"message": "head"}), fault);
            let answer = answered(&client, &call).await;
            let error = &answer["error"];
            assert_eq!(
                answer["result"]["content"][0]["text"] == "head",
                passes,
                "{count} of {bytes}: {error}"
            );
            assert_eq!(error["code"] == TOO_LARGE, !passes, "{count} of {bytes}: {error}");
        }
        for megabytes in [3, 10] {
            let text = "y".repeat(megabytes * MIB);
            let call = tool_call(&json!(4), "echo", json!({"message": text}));
            match client.try_send(&call).await {
                Ok(answer) if megabytes == 3 => {
                    assert!(answer.answer_to(&json!(4))["result"]["content"][0]["text"] == text.as_str());
                }
                // The answer may come before the request is sent, and the connection go with it.
                Ok(answer) => assert_eq!(answer.status, 413),
                Err(error) => assert!(megabytes == 10, "{error}"),
            }
        }
        let refused = announced(&namespace, REQUEST_LIMIT + 1).await;
        assert!(refused.starts_with("HTTP/1.1 413 "), "{refused}");
        for part in [TOO_LARGE.to_string(), format!("larger than {REQUEST_LIMIT} bytes")] {
            assert!(refused.contains(&part), "{part} is told: {refused}");
        }
        assert_eq!(client.call("echo", json!({"message": "on"})).await, "on");
        assert_eq!(probe.books().await.total("initialize"), 1, "the session lives on");
        assert_eq!(sidecar(&namespace).await, process, "so does the sidecar");
        ends_and_leaves_nothing(&namespace, "s").await;
    })
    .await;
}

/// Memory limits of the containers of the namespace's sidecars.
async fn memory_limits(namespace: &TestNamespace) -> Vec<String> {
    let pods = namespace.api::<Pod>().list(&ListParams::default().labels(POOL)).await.unwrap();
    let containers = pods.items.into_iter().filter_map(|pod| pod.spec).flat_map(|spec| spec.containers);
    containers.map(|container| container.resources.unwrap().limits.unwrap()["memory"].0.clone()).collect()
}

/// The most memory that the process has had in use.
fn peak_kib(process: &Process) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// CASES.md 21.
#[tokio::test]
async fn twenty_large_answers_at_once_come_whole_or_are_refused_and_no_process_dies() {
    in_namespace("twenty", |namespace| async move {
        // The smallest sidecar that there is: room for a session is a mebibyte.
        let (_probe, client) = world(&namespace, json!({"pool": {"sessionsPerPod": 1, "maxPods": 1}})).await;
        assert_eq!(memory_limits(&namespace).await, ["161Mi"]);
        let process = sidecar(&namespace).await;
        let calls: Vec<Value> = (0..20).map(|id| big(id, 8 * MIB, id % 2 == 0)).collect();
        let answers = join_all(calls.iter().map(|call| answered(&client, call))).await;
        let whole = answers.iter().filter(|answer| is_whole(answer, 8 * MIB)).count();
        let refused = answers.iter().filter(|answer| answer["error"]["code"] == LIMIT_REACHED).count();
        assert_eq!(whole + refused, 20, "{:?}", answers.iter().map(|a| &a["error"]).collect::<Vec<_>>());
        // One is refused when the others fill the memory, which takes so many; those that are there when the last one is refused
        // come whole.
        let least = BUFFER / (COPIES * 8 * MIB);
        assert!(whole >= least, "there is room for {least}, and {whole} came");
        assert_eq!(sidecar(&namespace).await, process, "the sidecar lives");
        // Whoever was refused can ask again.
        assert!(is_whole(&answered(&client, &big(1, 8 * MIB, false)).await, 8 * MIB));
        figure("answers of 8 MiB at once that came whole, of 20", whole);
        let peak = peak_kib(&process);
        figure("most memory of the sidecar meanwhile, of 164864 KiB", peak);
        assert!(peak < 144 * 1024, "what was refused leaves room: {peak} KiB of 164864");
        ends_and_leaves_nothing(&namespace, "s").await;
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_stalls_itself_and_nobody_else() {
    in_namespace("slow", |namespace| async move {
        let (_probe, client) = world(&namespace, json!({})).await;
        let process = sidecar(&namespace).await;
        let before = process.resident_kib();
        // 15 MB of progress, which fit into no buffer on the way.
        let steps = 100_000;
        let call =
            tool_call_with(&json!(1), "progress", json!({"steps": steps}), json!({"progressToken": 1}));
        let mut unread = Vec::new();
        for _ in 0..4 {
            unread.push(client.begin(&call).await);
        }
        let begun = Instant::now();
        let mut most = 0;
        for number in 0..100 {
            assert_eq!(client.call("echo", json!({"message": "on"})).await, "on");
            most = most.max(memory_above(&process, before));
            assert!(begun.elapsed() < Duration::from_mins(1), "{number} calls took {:?}", begun.elapsed());
        }
        assert!(most < 16 * 1024, "what waits for slow readers is bounded: {most} KiB more");
        figure("memory of the sidecar while 60 MB wait for four slow readers, KiB", most);
        // Who reads at last gets all of it.
        let mut last = unread.pop().unwrap();
        for step in 1..=steps {
            let message = last.next().await.expect("progress goes on");
            assert_eq!(message["params"]["progress"], step, "{message}");
        }
        assert_eq!(last.messages().await.pop().unwrap()["id"], 1);
        drop(unread);
        ends_and_leaves_nothing(&namespace, "s").await;
    })
    .await;
}

fn memory_above(process: &Process, before: u64) -> u64 {
    process.resident_kib().saturating_sub(before)
}
