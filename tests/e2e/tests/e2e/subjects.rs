//! Subjects of any shape: exact bytes, never mixed, never a name or label (CASES.md 36).

use berth_api::AgentSession;
use berth_e2e::{
    McpClient, POOL, Probe, TestNamespace, gateway_url, in_namespace, mcp_server, post, token_of_user,
    wait_until_ready,
};
use futures::future::join_all;
use http::StatusCode;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{ListParams, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(1);

/// Names of people that no Kubernetes name or label could be.
fn names() -> Vec<String> {
    let email = format!("{}@{}.example.test", "u".repeat(64), "d".repeat(254 - 64 - 1 - 13));
    assert_eq!(email.len(), 254);
    let long = "名".repeat(341) + "x";
    assert_eq!(long.len(), 1024);
    let nfc = "\u{e9}@example.test".to_owned();
    let nfd = "e\u{301}@example.test".to_owned();
    let others = ["日本@example.test", r"CORP\u1", "u1+tag@example.test", "-x-", "CORP\\U1", " padded "];
    let by_length = [63, 64].map(|length| "a".repeat(length));
    others.into_iter().map(str::to_owned).chain([email, long, nfc, nfd]).chain(by_length).collect()
}

async fn claim(namespace: &TestNamespace, session: &str, subject: &str) -> Result<AgentSession, kube::Error> {
    let spec = json!({"subject": {"name": subject}, "servers": [{"name": "probe"}]});
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "AgentSession", "metadata": {"name": session}, "spec": spec,
    });
    namespace.api().create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await
}

/// The HTTP status with which a session's URL answers the `initialize` of a user.
async fn answer(namespace: &TestNamespace, session: &str, user: &str) -> StatusCode {
    let url = format!("{}/{}/{session}/probe/mcp", gateway_url(), namespace.name);
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "e2e", "version": "1"}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    post(&url, &[("authorization", &format!("Bearer {}", token_of_user(user)))], &body).await.status
}

#[tokio::test]
async fn people_of_any_name_have_sessions_of_their_own_and_nobody_elses() {
    in_namespace("subjects", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let names = names();
        let mut upstream = BTreeSet::new();
        for (n, name) in names.iter().enumerate() {
            let session = format!("s{n}");
            let made =
                claim(&namespace, &session, name).await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
            assert_eq!(made.spec.subject.name, *name, "exact bytes");
            wait_until_ready(&namespace, &session, BOUND).await;
            let mut client = McpClient::new(&namespace.name, &session, "probe", &token_of_user(name));
            client.initialize().await;
            let whoami = client.call_as(&json!(1), "whoami", json!({})).await;
            upstream.insert(whoami["result"]["structuredContent"]["sessionId"].as_str().unwrap().to_owned());
        }
        assert_eq!(upstream.len(), names.len(), "an upstream session each");
        // Everybody at everybody's door.
        for n in 0..names.len() {
            let session = format!("s{n}");
            let answers = join_all(names.iter().map(|name| answer(&namespace, &session, name))).await;
            let let_in: Vec<usize> =
                (0..names.len()).filter(|other| answers[*other] == StatusCode::OK).collect();
            assert_eq!(let_in, [n], "{:?}: {answers:?}", names[n]);
            assert!(
                answers
                    .iter()
                    .enumerate()
                    .all(|(other, status)| other == n || *status == StatusCode::NOT_FOUND)
            );
        }
        assert_eq!(probe.books().await.total("initialize"), names.len() as u64);
        nothing_is_named_after(&namespace, &names).await;
    })
    .await;
}

async fn nothing_is_named_after(namespace: &TestNamespace, names: &[String]) {
    let mut texts = Vec::new();
    let mut add = |meta: &kube::api::ObjectMeta| {
        texts.extend(meta.name.clone());
        texts.extend(meta.labels.iter().flatten().map(|(key, value)| format!("{key}={value}")));
    };
    for pod in namespace.api::<Pod>().list(&ListParams::default().labels(POOL)).await.unwrap() {
        add(pod.meta());
    }
    for secret in namespace.api::<Secret>().list(&ListParams::default()).await.unwrap() {
        add(secret.meta());
    }
    for session in namespace.api::<AgentSession>().list(&ListParams::default()).await.unwrap() {
        add(session.meta());
    }
    assert!(texts.len() > names.len(), "{texts:?}");
    let mixed = texts.iter().find(|text| names.iter().any(|name| text.contains(name.as_str())));
    assert_eq!(mixed, None);
}

#[tokio::test]
async fn the_longest_names_of_all_objects_work_together_and_longer_subjects_are_refused() {
    // With the five letters that the API server adds, 63: as long as a namespace can be.
    let topic = "n".repeat(63 - 5 - "berth--".len());
    in_namespace(&topic, |namespace| async move {
        assert_eq!(namespace.name.len(), 63);
        let probe = Probe::start(&namespace).await;
        let server = "s".repeat(63);
        mcp_server(&namespace, &server, &probe.url(), json!({})).await;
        // A DNS subdomain of 253 characters.
        let session = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
        assert_eq!(session.len(), 253);
        let subject = "日本@example.test";
        let spec = json!({"subject": {"name": subject}, "servers": [{"name": server}]});
        namespace.create::<AgentSession>(json!({"metadata": {"name": session}, "spec": spec})).await;
        let made = wait_until_ready(&namespace, &session, BOUND).await;
        let mut client = McpClient::new(&namespace.name, &session, &server, &token_of_user(subject));
        client.initialize().await;
        assert_eq!(client.call("echo", json!({"message": "long"})).await, "long");
        namespace.end(&made, BOUND).await;
        assert_eq!(namespace.events_about(&made.uid().unwrap()).await.len(), 1);

        for (subject, limit) in [("名".repeat(342), "1024"), (String::new(), "subject.name")] {
            let error = claim(&namespace, "refused", &subject).await.unwrap_err().to_string();
            assert!(error.contains("spec.subject.name") && error.contains(limit), "{error}");
        }
    })
    .await;
}
