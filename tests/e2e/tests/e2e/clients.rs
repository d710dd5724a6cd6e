//! The official clients through the gateway, in front of the real reference servers; and the end of a token.

use berth_api::{AgentSession, McpServer};
use berth_e2e::{
    McpClient, Probe, TestNamespace, eventually, gateway_url, in_namespace, mcp_server, session,
    start_reference, subject_of,
};
use futures::future::join_all;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, LogParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::process::Command;

const BOUND: Duration = Duration::from_mins(2);

/// The clients, by the end of the name of the variable that holds their command.
const CLIENTS: [&str; 5] = ["PYTHON_V1", "PYTHON_V2", "TYPESCRIPT_V1", "TYPESCRIPT_V2", "INSPECTOR"];

/// A reference server: how it runs, one call with its answer, and what it logs of its sessions.
struct Reference {
    name: &'static str,
    manifest: &'static str,
    port: u16,
    tool: &'static str,
    arguments: &'static str,
    answer: &'static str,
    opened: &'static str,
    closed: &'static str,
}

const EVERYTHING: Reference = Reference {
    name: "everything",
    manifest: include_str!("../../../servers/everything/everything.yaml"),
    port: 3001,
    tool: "get-sum",
    arguments: r#"{"a": 19, "b": 23}"#,
    answer: "The sum of 19 and 23 is 42.",
    opened: "Session initialized with ID: ",
    closed: "Received session termination request for session ",
};

const TIME: Reference = Reference {
    name: "time",
    manifest: include_str!("../../../servers/time/time.yaml"),
    port: 3002,
    tool: "convert_time",
    // Neither place has summer time.
    arguments: r#"{"source_timezone": "Asia/Tokyo", "time": "09:30", "target_timezone": "Asia/Kolkata"}"#,
    answer: r#""time_difference": "-3.5h""#,
    opened: "Created new transport with session ID: ",
    closed: "Terminating session: ",
};

impl Reference {
    /// Starts it, with a long `timeouts.connect`: after an attempt that was given up another one opens another session.
    async fn start(&self, namespace: &TestNamespace) {
        start_reference(namespace, self.name, self.manifest, self.port).await;
        let servers = namespace.api::<McpServer>();
        let patient = Patch::Merge(json!({"spec": {"timeouts": {"connect": "2m"}}}));
        let patient = servers.patch(self.name, &PatchParams::default(), &patient).await.unwrap();
        eventually("the operator knows the timeout", BOUND, || async {
            let status = servers.get(self.name).await.unwrap().status?;
            (status.observed_generation == patient.metadata.generation).then_some(())
        })
        .await;
    }

    /// How many lines of its log hold each of `opened` and `closed`.
    async fn sessions(&self, namespace: &TestNamespace) -> (usize, usize) {
        let pods = namespace.api::<Pod>();
        let of_it = ListParams::default().labels(&format!("app={}", self.name));
        let pod = pods.list(&of_it).await.unwrap().items[0].name_any();
        let log = pods.logs(&pod, &LogParams::default()).await.unwrap();
        let count = |text| log.lines().filter(|line| line.contains(text)).count();
        (count(self.opened), count(self.closed))
    }

    /// A client lists its tools through `session`, among them the one that it then calls.
    async fn called_by(&self, client: &str, namespace: &TestNamespace, session: &str, token: &str) {
        let ran = run(client, &url_of(namespace, session, self.name), token, self.tool, self.arguments).await;
        assert!(ran.ok, "{client} and {}: {ran:?}", self.name);
        let said: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let tools = said.iter().find_map(|line| line["tools"].as_array()).expect("it lists tools");
        assert!(tools.contains(&json!(self.tool)), "{client} and {}: {tools:?}", self.name);
        let text = said.iter().find_map(|line| line["result"]["content"][0]["text"].as_str());
        assert!(text.is_some_and(|text| text.contains(self.answer)), "{client} and {}: {text:?}", self.name);
    }
}

fn url_of(namespace: &TestNamespace, session: &str, server: &str) -> String {
    format!("{}/{}/{session}/{server}/mcp", gateway_url(), namespace.name)
}

/// What a client's run printed.
#[derive(Debug)]
struct Ran {
    ok: bool,
    out: String,
    err: String,
}

async fn run(client: &str, url: &str, token: &str, tool: &str, arguments: &str) -> Ran {
    let variable = format!("BERTH_CLIENT_{client}");
    let command =
        std::env::var(&variable).unwrap_or_else(|_| panic!("{variable} names the command of the client"));
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().expect("a command"))
        .args(words)
        .args([url, token, tool, arguments])
        .output()
        .await
        .expect("the client runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { ok: output.status.success(), out: text(&output.stdout), err: text(&output.stderr) }
}

/// Waits until a server has opened so many sessions, and closed so many.
async fn sessions_are(namespace: &TestNamespace, server: &Reference, opened: usize, closed: usize) {
    let what = format!("{} opened {opened} sessions and closed {closed}", server.name);
    eventually(&what, BOUND, || async {
        let seen = server.sessions(namespace).await;
        assert!(seen.0 <= opened && seen.1 <= closed, "{what}, not {seen:?}");
        (seen == (opened, closed)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn each_official_client_calls_both_reference_servers_through_a_session_of_its_own() {
    in_namespace("clients", |namespace| async move {
        let namespace = &namespace;
        futures::join!(EVERYTHING.start(namespace), TIME.start(namespace));
        let token = &namespace.token("alice").await;
        let used = stream::iter(CLIENTS).map(|client| async move {
            let name = client.to_lowercase().replace('_', "-");
            let made = session(namespace, &name, "alice", &["everything", "time"]).await;
            futures::join!(
                EVERYTHING.called_by(client, namespace, &name, token),
                TIME.called_by(client, namespace, &name, token),
            );
            made
        });
        // Each starts two processes, and a small machine starts few at once.
        let sessions: Vec<AgentSession> = used.buffered(2).collect().await;
        for server in [&EVERYTHING, &TIME] {
            sessions_are(namespace, server, CLIENTS.len(), 0).await;
        }
        join_all(sessions.iter().map(|session| namespace.end(session, BOUND))).await;
        for server in [&EVERYTHING, &TIME] {
            sessions_are(namespace, server, CLIENTS.len(), CLIENTS.len()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_official_clients_use_one_session_at_the_same_time_over_one_upstream_session() {
    in_namespace("shared-by", |namespace| async move {
        let namespace = &namespace;
        EVERYTHING.start(namespace).await;
        let made = session(namespace, "s", "alice", &["everything"]).await;
        let token = &namespace.token("alice").await;
        join_all(CLIENTS.iter().map(|client| EVERYTHING.called_by(client, namespace, "s", token))).await;
        // The clients have ended their sessions, each its own; the one that they shared goes on.
        sessions_are(namespace, &EVERYTHING, 1, 0).await;
        EVERYTHING.called_by("PYTHON_V2", namespace, "s", token).await;
        namespace.end(&made, BOUND).await;
        sessions_are(namespace, &EVERYTHING, 1, 1).await;
    })
    .await;
}

/// How long a token works on once it is revoked: the gateway's memory of 60 s, and the way there.
const REVOKED_BOUND: Duration = Duration::from_secs(65);

/// So many calls that no replica of the gateway is left out, as long as there are few.
const CALLS: usize = 16;

/// The statuses of some calls at the same time: each replica of the gateway remembers for itself.
async fn statuses(client: &McpClient) -> Vec<u16> {
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "count", "arguments": {}}});
    let answers = join_all((0..CALLS).map(|_| client.send(&call))).await;
    answers.iter().map(|answer| answer.status.as_u16()).collect()
}

/// A client with a bad token fails, and its user can tell why.
async fn is_refused(client: &str, url: &str, token: &str) {
    let ran = run(client, url, token, "count", "{}").await;
    let told = ran.err.contains("HTTP 401") || ran.err.contains("auth_required");
    assert!(!ran.ok && told, "{client}: {ran:?}");
}

#[tokio::test]
async fn a_revoked_token_stops_working_in_time_and_only_that_one() {
    in_namespace("revoked", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let (hers, his) = (namespace.token("alice").await, namespace.token("bob").await);
        let mut clients = Vec::new();
        for (name, account, token) in [("hers", "alice", &hers), ("his", "bob", &his)] {
            session(&namespace, name, account, &["probe"]).await;
            let mut client = McpClient::new(&namespace.name, name, "probe", token);
            client.initialize().await;
            assert_eq!(statuses(&client).await, [200; CALLS]);
            clients.push(client);
        }

        namespace.api::<ServiceAccount>().delete("alice", &DeleteParams::default()).await.unwrap();
        let deleted = Instant::now();
        let mut look = tokio::time::interval(Duration::from_millis(500));
        loop {
            look.tick().await;
            let asked = deleted.elapsed();
            let seen = statuses(&clients[0]).await;
            assert_eq!(statuses(&clients[1]).await, [200; CALLS], "the other account goes on");
            if seen == [401; CALLS] {
                break;
            }
            assert!(seen.iter().all(|status| [200, 401].contains(status)), "{seen:?}");
            assert!(asked < REVOKED_BOUND, "still accepted when asked {asked:?} after");
        }
        eprintln!("the token was refused {:?} after its account was deleted", deleted.elapsed());

        let url = url_of(&namespace, "hers", "probe");
        join_all(CLIENTS.iter().map(|client| is_refused(client, &url, &hers))).await;

        // The session is not the token: it still serves its subject.
        assert_eq!(
            namespace.api::<AgentSession>().get("hers").await.unwrap().spec.subject.name,
            subject_of(&namespace, "alice")
        );
        let mut again = McpClient::new(&namespace.name, "hers", "probe", &namespace.token("alice").await);
        again.initialize().await;
        assert_eq!(statuses(&again).await, [200; CALLS]);
        assert_eq!(statuses(&clients[0]).await, [401; CALLS], "the old token stays refused");
        let fresh = namespace.token("bob").await;
        let mut his = McpClient::new(&namespace.name, "his", "probe", &fresh);
        his.initialize().await;
        assert_eq!(statuses(&his).await, [200; CALLS]);
    })
    .await;
}
