//! What may not change once it is stored, and what defaults fill in.

use berth_api::{AgentSession, McpServer};
use berth_e2e::in_namespace;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

/// Merge-patches the session `s` and gives the message of the refusal, if any.
async fn patch(namespace: &berth_e2e::TestNamespace, change: Value) -> Option<String> {
    let sessions = namespace.api::<AgentSession>();
    match sessions.patch("s", &PatchParams::default(), &Patch::Merge(json!({"spec": change}))).await {
        Ok(_) => None,
        Err(kube::Error::Api(status)) => Some(status.message.clone()),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn subject_is_immutable_and_end_is_write_once() {
    in_namespace("immutable", |namespace| async move {
        // The namespace has no such server, so the operator, if one runs, has nothing to do but to say so. The finalizer keeps
        // the object in being when an operator acts on `end`.
        let spec = json!({"subject": {"name": "alice"}, "servers": [{"name": "absent"}]});
        let metadata = json!({"name": "s", "finalizers": ["berth.dev/test"]});
        namespace.create::<AgentSession>(json!({"metadata": metadata, "spec": spec})).await;

        let other =
            patch(&namespace, json!({"subject": {"name": "bob"}})).await.expect("another subject is refused");
        assert!(other.contains("subject is immutable"), "{other}");
        assert_eq!(patch(&namespace, json!({"bindTimeout": "1m"})).await, None, "other fields may change");
        assert_eq!(
            patch(&namespace, json!({"end": {"reason": "Completed"}})).await,
            None,
            "end may be set once"
        );
        let changed =
            patch(&namespace, json!({"end": {"reason": "Stopped"}})).await.expect("another end is refused");
        assert!(changed.contains("end is write-once"), "{changed}");
        let removed = patch(&namespace, json!({"end": null})).await.expect("removing the end is refused");
        assert!(removed.contains("end is write-once"), "{removed}");

        let none: Vec<String> = Vec::new();
        let release = Patch::Merge(json!({"metadata": {"finalizers": none}}));
        namespace.api::<AgentSession>().patch("s", &PatchParams::default(), &release).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_bare_server_is_stored_with_every_default() {
    in_namespace("defaults", |namespace| async move {
        let spec = json!({"transport": {"type": "Http", "http": {"url": "http://a.test/mcp"}}});
        let server = namespace.create::<McpServer>(json!({"metadata": {"name": "s"}, "spec": spec})).await;
        let stored = serde_json::to_value(&server.spec).unwrap();
        let timeouts =
            json!({"connect": "30s", "request": "5m", "requestMax": "30m", "drain": "30s", "close": "5s"});
        assert_eq!(stored["timeouts"], timeouts);
        assert_eq!(stored["auth"], json!({"type": "None"}));
        assert_eq!(stored["pool"], json!({"warm": 1, "maxPods": 20}));
    })
    .await;
}

#[tokio::test]
async fn a_server_for_sessions_own_credentials_is_stored_with_header_and_scheme() {
    in_namespace("defaults", |namespace| async move {
        let transport = json!({"type": "Http", "http": {"url": "http://a.test/mcp"}});
        let spec = json!({"transport": transport, "auth": {"type": "Session", "session": {}}});
        let server = namespace.create::<McpServer>(json!({"metadata": {"name": "s"}, "spec": spec})).await;
        let stored = serde_json::to_value(&server.spec).unwrap();
        let session = json!({"header": "Authorization", "scheme": "Bearer"});
        assert_eq!(stored["auth"], json!({"type": "Session", "session": session}));
    })
    .await;
}

#[tokio::test]
async fn the_credential_of_a_session_may_change_and_its_subject_may_not_change_its_spelling() {
    in_namespace("credential", |namespace| async move {
        let own = |name: &str| json!([{"name": "absent", "credential": {"secretKeyRef": {"name": name, "key": "k"}}}]);
        let spec = json!({"subject": {"name": "caf\u{e9}"}, "servers": own("first")});
        namespace.create::<AgentSession>(json!({"metadata": {"name": "s"}, "spec": spec})).await;
        assert_eq!(patch(&namespace, json!({"servers": own("second")})).await, None);
        assert_eq!(patch(&namespace, json!({"servers": [{"name": "absent"}]})).await, None);
        let respelled = patch(&namespace, json!({"subject": {"name": "cafe\u{301}"}})).await;
        let respelled = respelled.expect("another spelling is another subject");
        assert!(respelled.contains("subject is immutable"), "{respelled}");
    })
    .await;
}
