//! Who is let in, and that those who are not learn nothing.

use berth_e2e::{
    Answer, McpClient, Probe, TestNamespace, eventually, gateway_url, in_namespace, mcp_server, post,
    session, subject_of,
};
use http::StatusCode;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(1);

fn initialize() -> Value {
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "e2e", "version": "1"}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
}

async fn ask(namespace: &TestNamespace, session: &str, server: &str, token: Option<&str>) -> Answer {
    let url = format!("{}/{}/{session}/{server}/mcp", gateway_url(), namespace.name);
    let bearer = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<(&str, &str)> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
    post(&url, &headers, &initialize()).await
}

/// Status, headers and body.
type Visible = (StatusCode, Vec<(String, Vec<u8>)>, Vec<u8>);

/// Everything that a caller can see of an answer but its date.
fn visible(answer: &Answer) -> Visible {
    let headers = answer.headers.iter().filter(|(name, _)| name.as_str() != "date");
    let headers = headers.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
    (answer.status, headers, answer.body.to_vec())
}

#[tokio::test]
async fn strangers_are_refused_alike_and_the_upstream_sees_none_of_them() {
    in_namespace("gateway", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        session(&namespace, "hers", "alice", &["probe"]).await;
        let bob = namespace.token("bob").await;

        let none = ask(&namespace, "hers", "probe", None).await;
        assert_eq!(none.status, StatusCode::UNAUTHORIZED);
        assert!(none.headers["www-authenticate"].as_bytes().starts_with(b"Bearer"), "{none:?}");
        let bad = ask(&namespace, "hers", "probe", Some("not-a-token")).await;
        assert_eq!(bad.status, StatusCode::UNAUTHORIZED);
        assert!(bad.headers.contains_key("www-authenticate"), "{bad:?}");

        let foreign = ask(&namespace, "hers", "probe", Some(&bob)).await;
        let unknown = ask(&namespace, "nobodys", "probe", Some(&bob)).await;
        let alice = namespace.token("alice").await;
        let no_such_server = ask(&namespace, "hers", "other", Some(&alice)).await;
        assert_eq!(foreign.status, StatusCode::NOT_FOUND);
        assert_eq!(foreign.messages()[0]["error"]["code"], -32001, "{foreign:?}");
        assert_eq!(visible(&foreign), visible(&unknown));
        assert_eq!(visible(&foreign), visible(&no_such_server));

        assert_eq!(probe.books().await.connections(), 0, "no stranger reached the upstream");
        let mut hers = McpClient::new(&namespace.name, "hers", "probe", &alice);
        hers.initialize().await;
        assert_eq!(hers.call("echo", json!({"message": "mine"})).await, "mine");
    })
    .await;
}

#[tokio::test]
async fn a_token_for_another_audience_is_refused() {
    in_namespace("audience", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        session(&namespace, "s", "alice", &["probe"]).await;
        namespace.token("alice").await;
        let accounts = namespace.api::<k8s_openapi::api::core::v1::ServiceAccount>();
        let request = serde_json::from_value(json!({"spec": {"audiences": ["elsewhere"]}})).unwrap();
        let other = accounts.create_token_request("alice", &PostParams::default(), &request).await.unwrap();
        let answer = ask(&namespace, "s", "probe", Some(&other.status.unwrap().token.unwrap())).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    })
    .await;
}

/// Waits until the API server goes by what was granted just now.
async fn may_connect(namespace: &TestNamespace, account: &str, session: &str) {
    let attributes = json!({
        "group": "berth.dev", "resource": "agentsessions", "subresource": "connect", "verb": "create",
        "namespace": namespace.name, "name": session,
    });
    let spec = json!({"user": subject_of(namespace, account), "resourceAttributes": attributes});
    let review: SubjectAccessReview = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
    let reviews: Api<SubjectAccessReview> = Api::all(namespace.client.clone());
    eventually("the right is granted", BOUND, || async {
        let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
        answer.status?.allowed.then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_caller_with_the_right_to_connect_may_use_a_foreign_session() {
    in_namespace("connect", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        session(&namespace, "hers", "alice", &["probe"]).await;
        let bob = namespace.token("bob").await;
        let rule = json!({"apiGroups": ["berth.dev"], "resources": ["agentsessions/connect"], "resourceNames": ["hers"], "verbs": ["create"]});
        namespace
            .create::<k8s_openapi::api::rbac::v1::Role>(json!({"metadata": {"name": "connect"}, "rules": [rule]}))
            .await;
        namespace
            .create::<k8s_openapi::api::rbac::v1::RoleBinding>(json!({
                "metadata": {"name": "connect"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "connect"},
                "subjects": [{"kind": "ServiceAccount", "name": "bob", "namespace": namespace.name}],
            }))
            .await;
        may_connect(&namespace, "bob", "hers").await;
        let mut client = McpClient::new(&namespace.name, "hers", "probe", &bob);
        client.initialize().await;
        assert_eq!(client.call("echo", json!({"message": "for her"})).await, "for her");
    })
    .await;
}

#[tokio::test]
async fn an_ended_session_is_as_unknown_as_one_that_never_was() {
    in_namespace("ended", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let made = session(&namespace, "s", "alice", &["probe"]).await;
        let alice = namespace.token("alice").await;
        let mut client = McpClient::new(&namespace.name, "s", "probe", &alice);
        client.initialize().await;
        namespace.end(&made, BOUND).await;
        // A gateway hears of the end a moment later than who asks the API server.
        let ended = eventually("the session is not found", BOUND, || async {
            let answer = ask(&namespace, "s", "probe", Some(&alice)).await;
            assert!(!answer.status.is_success(), "{answer:?}");
            (answer.status == StatusCode::NOT_FOUND).then_some(answer)
        })
        .await;
        let unknown = ask(&namespace, "never", "probe", Some(&alice)).await;
        assert_eq!(visible(&ended), visible(&unknown));
    })
    .await;
}
