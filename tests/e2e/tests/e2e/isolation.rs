//! Distinct sessions never share an upstream session, whoever their subjects are and whatever credential is sent, and what
//! happens to one of them concerns no other (CASES.md 12).

use berth_e2e::{Books, Live, McpClient, Probe, TestNamespace, in_namespace, mcp_server, session, tool_call};
use http::StatusCode;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(1);

/// Sessions of two subjects, two of them of one subject.
const SESSIONS: [(&str, &str); 3] = [("a1", "alice"), ("a2", "alice"), ("b1", "bob")];

async fn clients(namespace: &TestNamespace) -> Vec<McpClient> {
    let mut clients = Vec::new();
    for (name, account) in SESSIONS {
        session(namespace, name, account, &["probe"]).await;
        let mut client = McpClient::new(&namespace.name, name, "probe", &namespace.token(account).await);
        client.initialize_with(&json!({"elicitation": {}})).await;
        clients.push(client);
    }
    clients
}

async fn each_has_an_upstream_session_of_its_own(probe: &Probe, clients: &[McpClient]) {
    clients[0].call("remember", json!({"value": "of a1"})).await;
    for other in &clients[1..] {
        assert!(!other.call("recall", json!({})).await.contains("of a1"), "state of a1 shows elsewhere");
    }
    assert!(clients[0].call("recall", json!({})).await.contains("of a1"));
    let books = probe.books().await;
    let ids: BTreeSet<String> =
        books.sessions().iter().map(|s| s["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!((ids.len(), books.total("initialize")), (3, 3), "{books:?}");
}

/// A call under way that goes on until its question is answered. Its id is the same for all.
async fn begins(client: &McpClient) -> (Live, Value) {
    let mut call = client.begin(&tool_call(&json!("same"), "ask", json!({"kind": "elicitation"}))).await;
    let question = call.next().await.expect("a question");
    assert_eq!(question["method"], "elicitation/create", "{question}");
    (call, question)
}

/// Id of the upstream session.
async fn upstream_of(client: &McpClient) -> String {
    let told = client.call_as(&json!("who"), "whoami", json!({})).await;
    told["result"]["structuredContent"]["sessionId"].as_str().expect("it has one").to_owned()
}

/// The calls of a1 are cancelled and its upstream session is lost; calls of the others that run all the while end well, and what
/// their upstream sessions hold is there.
async fn trouble_of_one_leaves_the_others_alone(probe: &Probe, clients: &[McpClient]) {
    let (troubled, others) = clients.split_first().unwrap();
    let mut running = Vec::new();
    for (number, other) in others.iter().enumerate() {
        let value = format!("of the other {number}");
        other.call("remember", json!({"value": value})).await;
        running.push((other, value, upstream_of(other).await, begins(other).await));
    }
    let upstream = upstream_of(troubled).await;
    // Told by a message. Whether its call still ran by then does not matter: it ends with its connection too.
    let cancelled_in = |books: &Books| {
        let told = |s: &&Value| s["cancelled"] != 0;
        books
            .sessions()
            .iter()
            .filter(told)
            .map(|s| (s["id"].clone(), s["cancelled"].clone()))
            .collect::<Vec<_>>()
    };

    let (cancelled, _) = begins(troubled).await;
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "same"}});
    assert_eq!(troubled.send(&cancel).await.status, StatusCode::ACCEPTED);
    let last = cancelled.messages().await.pop().expect("an answer");
    assert_eq!(last["error"]["code"], -32052, "{last}");
    probe
        .until("its call is cancelled, no other", BOUND, |books| {
            cancelled_in(books) == [(json!(upstream), json!(1))]
        })
        .await;

    let (broken, _) = begins(troubled).await;
    assert_eq!(probe.tell("sessions/lose", &json!({"session": upstream})).await["lost"], 1);
    let last = broken.messages().await.pop().expect("an answer");
    assert!(last["error"].is_object(), "{last}");
    assert_ne!(upstream_of(troubled).await, upstream, "it goes on with an upstream session of its own");
    assert!(!troubled.call("recall", json!({})).await.contains("of a1"), "what the lost one held is gone");

    for (other, value, upstream, (call, question)) in running {
        let result = json!({"action": "accept", "content": {"name": value}});
        let told = other.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result})).await;
        assert_eq!(told.status, StatusCode::ACCEPTED);
        let last = call.messages().await.pop().expect("a result");
        assert_eq!(last["result"]["structuredContent"]["answer"], result, "{last}");
        assert!(other.call("recall", json!({})).await.contains(&value));
        assert_eq!(upstream_of(other).await, upstream);
    }
    assert_eq!(probe.books().await.total("initialize"), 4, "nobody else was connected anew");
}

#[tokio::test]
async fn sessions_of_two_subjects_and_of_one_have_upstream_sessions_of_their_own() {
    in_namespace("isolation", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let clients = clients(&namespace).await;
        each_has_an_upstream_session_of_its_own(&probe, &clients).await;
        trouble_of_one_leaves_the_others_alone(&probe, &clients).await;
        for upstream in probe.books().await.sessions() {
            assert_eq!(
                upstream["authorizationSha256s"],
                json!(["none"]),
                "no bearer of a caller goes up: {upstream}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_shared_credential_shares_no_upstream_session_and_no_bearer_of_a_caller_goes_up() {
    in_namespace("shared", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        probe.server_secret("upstream", "canary-credential").await;
        let auth = json!({"auth": {"type": "Shared", "shared": {"secretKeyRef": {"name": "upstream", "key": "token"}}}});
        mcp_server(&namespace, "probe", &probe.url(), auth).await;
        let clients = clients(&namespace).await;
        each_has_an_upstream_session_of_its_own(&probe, &clients).await;
        trouble_of_one_leaves_the_others_alone(&probe, &clients).await;

        let hash = sha256_hex("Bearer canary-credential");
        let seen = probe.books().await;
        for upstream in seen.sessions() {
            // At initialize and at every later request.
            assert_eq!(upstream["authorizationSha256s"], json!([hash]), "{upstream}");
        }
        assert!(!seen.0.to_string().contains("canary-credential"));
    })
    .await;
}

fn sha256_hex(text: &str) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}
