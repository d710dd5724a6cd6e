//! Distinct sessions never share an upstream session, whoever their subjects are and whatever credential is sent.

use berth_e2e::{McpClient, Probe, TestNamespace, in_namespace, mcp_server, session};
use serde_json::json;
use std::collections::BTreeSet;

/// Sessions of two subjects, two of them of one subject.
const SESSIONS: [(&str, &str); 3] = [("a1", "alice"), ("a2", "alice"), ("b1", "bob")];

async fn clients(namespace: &TestNamespace) -> Vec<McpClient> {
    let mut clients = Vec::new();
    for (name, account) in SESSIONS {
        session(namespace, name, account, &["probe"]).await;
        let mut client = McpClient::new(&namespace.name, name, "probe", &namespace.token(account).await);
        client.initialize().await;
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

#[tokio::test]
async fn sessions_of_two_subjects_and_of_one_have_upstream_sessions_of_their_own() {
    in_namespace("isolation", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let clients = clients(&namespace).await;
        each_has_an_upstream_session_of_its_own(&probe, &clients).await;
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
