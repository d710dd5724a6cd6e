//! The probe as an upstream in a test's namespace, and its books.

use crate::inside::until_reached;
use crate::{TestNamespace, eventually, is_ready, kill};
use http::Request;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::{ListParams, PostParams};
use serde_json::Value;
use std::net::IpAddr;
use std::time::Duration;

/// The manifest of `tests/servers/probe`.
const MANIFEST: &str = include_str!("../../servers/probe/probe.yaml");

const READY: Duration = Duration::from_mins(2);

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
        eventually("the probe is ready", READY, || async {
            let probe = namespace.api::<Deployment>().get("probe").await.unwrap();
            (probe.status?.ready_replicas? == 1).then_some(())
        })
        .await;
        Box::pin(until_reached(namespace, "probe", 8080)).await;
        Self { namespace: namespace.clone() }
    }

    /// Kills its process and waits until another one serves in the same pod: whatever was in its memory is gone, books and faults too.
    pub async fn restart(&self) {
        let (pods, name) = (self.namespace.api::<Pod>(), self.pod().await);
        let restarts = |pod: &Pod| Some(pod.status.as_ref()?.container_statuses.as_ref()?[0].restart_count);
        let before = pods.get(&name).await.unwrap();
        kill(&before, "probe");
        eventually("the probe runs again", READY, || async {
            let pod = pods.get(&name).await.unwrap();
            (restarts(&pod) > restarts(&before) && is_ready(&pod)).then_some(())
        })
        .await;
        Box::pin(until_reached(&self.namespace, "probe", 8080)).await;
    }

    /// URL of its MCP endpoint inside the cluster.
    pub fn url(&self) -> String {
        format!("http://probe.{}.svc:8080/mcp", self.namespace.name)
    }

    /// PEM of the CA of its TLS ports.
    pub async fn ca(&self) -> String {
        let request = Request::get(self.path("tls/ca").await).body(Vec::new()).unwrap();
        self.namespace.client.request_text(request).await.expect("the probe shows its CA")
    }

    /// Has it make another CA, and certificates by that for connections from now on; PEM of the new one.
    pub async fn rotate_ca(&self) -> String {
        let request = Request::post(self.path("tls/rotate").await).body(Vec::new()).unwrap();
        self.namespace.client.request_text(request).await.expect("the probe makes another CA")
    }

    /// Address of its pod.
    pub async fn address(&self) -> IpAddr {
        let pod = self.namespace.api::<Pod>().get(&self.pod().await).await.unwrap();
        let address =
            pod.status.and_then(|status| status.pod_ip).expect("a pod that is Ready has an address");
        address.parse().unwrap()
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
        format!("/api/v1/namespaces/{}/pods/{}:8080/proxy/{call}", self.namespace.name, self.pod().await)
    }

    /// Name of its pod; waits for a Ready one.
    async fn pod(&self) -> String {
        let of_it = ListParams::default().labels("app=probe");
        eventually("the probe has a Ready pod", READY, || async {
            let pods = self.namespace.api::<Pod>().list(&of_it).await.unwrap();
            pods.iter().find(|pod| is_ready(pod)).map(ResourceExt::name_any)
        })
        .await
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
