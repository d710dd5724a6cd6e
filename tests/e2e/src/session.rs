//! Servers and sessions, as a user would apply them.

use crate::{McpClient, Process, TestNamespace, eventually};
use berth_api::{AgentSession, McpServer};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a binding or a first pod may take on a small machine.
const READY_BOUND: Duration = Duration::from_mins(2);

/// The subject of a ServiceAccount of this namespace.
pub fn subject_of(namespace: &TestNamespace, account: &str) -> String {
    format!("system:serviceaccount:{}:{account}", namespace.name)
}

/// Creates an McpServer for `url`, with `more` merged over its spec, and waits until it is Ready.
pub async fn mcp_server(namespace: &TestNamespace, name: &str, url: &str, more: Value) -> McpServer {
    let mut spec = json!({"transport": {"type": "Http", "http": {"url": url}}});
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    namespace.create::<McpServer>(json!({"metadata": {"name": name}, "spec": spec})).await;
    eventually(&format!("server {name} is Ready"), READY_BOUND, || async {
        let server = namespace.api::<McpServer>().get(name).await.unwrap();
        says_ready(server.status.as_ref().map(|s| s.conditions.as_slice())).then_some(server)
    })
    .await
}

/// Creates a session of `account` on `servers` and waits until it is Ready.
pub async fn session(namespace: &TestNamespace, name: &str, account: &str, servers: &[&str]) -> AgentSession {
    let servers: Vec<Value> = servers.iter().map(|server| json!({"name": server})).collect();
    let spec = json!({"subject": {"name": subject_of(namespace, account)}, "servers": servers});
    namespace.create::<AgentSession>(json!({"metadata": {"name": name}, "spec": spec})).await;
    wait_until_ready(namespace, name, READY_BOUND).await
}

/// Waits until a session is Ready.
pub async fn wait_until_ready(namespace: &TestNamespace, name: &str, bound: Duration) -> AgentSession {
    eventually(&format!("session {name} is Ready"), bound, || async {
        let session = namespace.api::<AgentSession>().get(name).await.unwrap();
        says_ready(session.status.as_ref().map(|s| s.conditions.as_slice())).then_some(session)
    })
    .await
}

/// A session of `alice` on the server `probe` that has made one call.
pub async fn used_session(namespace: &TestNamespace, name: &str, token: &str) -> AgentSession {
    let made = session(namespace, name, "alice", &["probe"]).await;
    let mut client = McpClient::new(&namespace.name, name, "probe", token);
    client.initialize().await;
    assert_eq!(client.call("echo", json!({"message": name})).await, name);
    made
}

/// Labels of the pods of every pool.
pub const POOL: &str = "berth.dev/role=pool";

/// The processes of a namespace's sidecars.
pub async fn sidecars(namespace: &TestNamespace) -> Vec<Process> {
    let pods = namespace.api::<Pod>().list(&ListParams::default().labels(POOL)).await.unwrap();
    pods.iter().filter_map(|pod| Process::find(pod, "berth-sidecar")).collect()
}

/// The process of the only sidecar of a namespace.
pub async fn sidecar(namespace: &TestNamespace) -> Process {
    match sidecars(namespace).await.as_slice() {
        [one] => one.clone(),
        other => panic!("one sidecar runs on this machine, not {other:?}"),
    }
}

fn says_ready(conditions: Option<&[Condition]>) -> bool {
    conditions.unwrap_or_default().iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

impl TestNamespace {
    /// Deletes a session and waits until it is gone.
    pub async fn end(&self, session: &AgentSession, bound: Duration) {
        let sessions = self.api::<AgentSession>();
        sessions
            .delete(&session.name_any(), &DeleteParams::default())
            .await
            .expect("a session can be deleted");
        self.gone(session, bound).await;
    }

    /// Waits until a session is gone.
    pub async fn gone(&self, session: &AgentSession, bound: Duration) {
        let sessions = self.api::<AgentSession>();
        eventually("the session is gone", bound, || async {
            let found = sessions.get_opt(&session.name_any()).await.unwrap();
            found.is_none_or(|found| found.uid() != session.uid()).then_some(())
        })
        .await;
    }
}
