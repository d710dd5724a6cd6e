//! The probe as an upstream in a test's namespace, and its books.

use crate::{TestNamespace, eventually};
use http::Request;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{ListParams, PostParams};
use serde_json::Value;
use std::time::Duration;

/// The manifest of `tests/servers/probe`.
const MANIFEST: &str = include_str!("../../servers/probe/probe.yaml");

/// A probe that runs in a namespace.
pub struct Probe {
    namespace: TestNamespace,
}

/// What the probe really saw.
#[derive(Debug)]
pub struct Books(pub Value);

impl Books {
    /// A count of the `totals`, 0 when it never happened.
    pub fn total(&self, name: &str) -> u64 {
        self.0["totals"][name].as_u64().unwrap_or(0)
    }

    /// Connections that were ever accepted for MCP.
    pub fn connections(&self) -> u64 {
        self.0["connections"]["mcpAccepted"].as_u64().expect("the books count connections")
    }

    /// Upstream sessions, in the order of their initialize.
    pub fn sessions(&self) -> Vec<Value> {
        self.0["sessions"].as_array().expect("the books list sessions").clone()
    }

    /// What arrived, oldest first; none of it is left out.
    pub fn journal(&self) -> Vec<Value> {
        assert_eq!(self.0["dropped"], 0, "the journal holds all");
        self.0["journal"].as_array().expect("the books have a journal").clone()
    }

    /// Requests of a method, as in the journal.
    pub fn requests(&self, method: &str) -> Vec<Value> {
        self.journal().into_iter().filter(|entry| entry["method"] == method).collect()
    }

    /// Runs of the tool `effect`.
    pub fn effects(&self) -> u64 {
        self.0["effects"].as_u64().expect("the books count effects")
    }

    /// What clients answered to requests of the server.
    pub fn replies(&self) -> Vec<Value> {
        self.0["replies"].as_array().expect("the books list replies").clone()
    }
}

impl Probe {
    /// Starts a probe and waits until it answers.
    pub async fn start(namespace: &TestNamespace) -> Self {
        let image = std::env::var("BERTH_IMAGE_PROBE").expect("BERTH_IMAGE_PROBE names the probe's image");
        for document in MANIFEST.replace("IMAGE_PROBE", &image).split("\n---") {
            let object: Value = serde_saphyr::from_str(document).expect("the probe's manifest is YAML");
            match object["kind"].as_str() {
                Some("Deployment") => drop(namespace.create::<Deployment>(object).await),
                Some("Service") => drop(namespace.create::<Service>(object).await),
                other => panic!("the probe's manifest holds {other:?}"),
            }
        }
        eventually("the probe is ready", Duration::from_mins(1), || async {
            let probe = namespace.api::<Deployment>().get("probe").await.unwrap();
            (probe.status?.ready_replicas? == 1).then_some(())
        })
        .await;
        Self { namespace: namespace.clone() }
    }

    /// URL of its MCP endpoint inside the cluster.
    pub fn url(&self) -> String {
        format!("http://probe.{}.svc:8080/mcp", self.namespace.name)
    }

    /// Reads the books.
    pub async fn books(&self) -> Books {
        let request = Request::get(self.path("books").await).body(Vec::new()).unwrap();
        Books(self.namespace.client.request(request).await.expect("the probe answers for its books"))
    }

    /// URL of the MCP endpoint at another of its ports: 8081 `plain`, 8443 `good`, 8447 `silent`.
    pub fn url_at(&self, scheme: &str, port: u16) -> String {
        format!("{scheme}://probe.{}.svc:{port}/mcp", self.namespace.name)
    }

    /// Sets faults, as `{"delete": {"hang": true}}`.
    pub async fn set_faults(&self, faults: &Value) {
        self.tell("faults", faults).await;
    }

    /// Takes all faults away.
    pub async fn clear_faults(&self) {
        let request = Request::delete(self.path("faults").await).body(Vec::new()).unwrap();
        self.namespace.client.request_text(request).await.expect("the probe forgets faults");
    }

    /// Makes an admin call, such as `sessions/lose`; gives what it answers.
    pub async fn tell(&self, call: &str, body: &Value) -> Value {
        let request = Request::post(self.path(call).await).header("content-type", "application/json");
        let request = request.body(serde_json::to_vec(body).unwrap()).unwrap();
        let answer = self.namespace.client.request_text(request).await.expect("the probe does as it is told");
        if answer.is_empty() { Value::Null } else { serde_json::from_str(&answer).expect("it answers JSON") }
    }

    /// Waits until the books are so.
    pub async fn until(&self, what: &str, bound: Duration, is_so: impl Fn(&Books) -> bool) -> Books {
        eventually(what, bound, || async { Some(self.books().await).filter(|books| is_so(books)) }).await
    }

    /// Path of an admin call through the API server's proxy to the probe's pod.
    async fn path(&self, call: &str) -> String {
        let pods =
            self.namespace.api::<Pod>().list(&ListParams::default().labels("app=probe")).await.unwrap();
        let mut living = pods.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let pod = living.next().and_then(|pod| pod.metadata.name.clone()).expect("the probe has a pod");
        format!("/api/v1/namespaces/{}/pods/{pod}:8080/proxy/{call}", self.namespace.name)
    }

    /// Creates a Secret with one key `token`, labelled for use by an McpServer.
    pub async fn server_secret(&self, name: &str, token: &str) {
        let secret = serde_json::json!({
            "metadata": {"name": name, "labels": {"berth.dev/credential": "server"}},
            "stringData": {"token": token},
        });
        let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(secret).unwrap();
        self.namespace.api().create(&PostParams::default(), &secret).await.unwrap();
    }
}
