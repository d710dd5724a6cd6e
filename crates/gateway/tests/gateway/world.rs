//! A gateway with everything around it.

use crate::client::{Answer, Client};
use crate::pki::Ca;
use crate::reviews::Reviews;
use crate::sidecar::Sidecar;
use berth_gateway::entry::Entry;
use berth_gateway::gateway::{Ending, Peers, Reviewers};
use berth_gateway::handle;
use berth_gateway::index::Index;
use berth_gateway::leader::stream::Placements;
use berth_gateway::leader::{Leader, wake::Waker};
use berth_gateway::metrics::Metrics;
use berth_gateway::{Gateway, Settings};
use berth_net::client::PeerClient;
use berth_net::serve::serve;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The server of every session here, and the name in its pods' certificates.
pub const SERVER_UID: &str = "server-uid";
/// Where the session `demo/s` is called.
pub const PATH: &str = "/demo/s/github/mcp";

pub struct World {
    pub address: SocketAddr,
    pub index: Arc<Index>,
    pub reviews: Arc<Reviews>,
    pub ending: Ending,
    pub ca: Ca,
    /// The first pod, at 127.0.0.1.
    pub sidecar: Sidecar,
    /// Nobody leads unless a test says so.
    pub leader: Leader,
    /// Ends with the world.
    _placements: DropGuard,
    registry: Registry,
}

/// What is awaited happens soon; a test that waits longer has failed.
pub async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// Bounds for tests: a wait that ends by them is short, one that must not end is long.
pub fn settings() -> Settings {
    Settings {
        placement_wait: Duration::from_secs(30),
        settle: Duration::from_millis(20),
        retry_pause: Duration::from_secs(30),
        ..Settings::default()
    }
}

impl World {
    pub async fn new() -> Self {
        Self::with(settings()).await
    }

    pub async fn with(settings: Settings) -> Self {
        let ca = Ca::new();
        let sidecar = Sidecar::start("127.0.0.1:0".parse().unwrap(), ca.sidecar(SERVER_UID)).await;
        let settings = Settings { sidecar_port: sidecar.address.port(), ..settings };
        let (index, reviews) = (Arc::new(Index::default()), Arc::new(Reviews::default()));
        index.end_list();
        let (metrics, ending, mut registry) = (Metrics::default(), Ending::default(), Registry::default());
        metrics.register(&mut registry);
        let reviewers = Reviewers { tokens: reviews.clone(), accesses: reviews.clone() };
        let (sidecars, leader) = (PeerClient::new(ca.gateway()), Leader::default());
        let placements =
            Placements { client: sidecars.clone(), index: index.clone(), metrics: metrics.clone() };
        let (followed, cancel) = (leader.clone(), CancellationToken::new());
        let guard = cancel.clone().drop_guard();
        tokio::spawn(async move { placements.follow(&followed, cancel).await });
        let peers = Peers { waker: Waker::new(sidecars.clone(), leader.clone()), sidecars };
        let gateway = Gateway::new(settings, index.clone(), reviewers, peers, metrics, ending.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, None, handle::App(Arc::new(gateway)), 1000, ending.begun.clone()));
        Self { address, index, reviews, ending, ca, sidecar, leader, _placements: guard, registry }
    }

    /// Another pod of the same server, at `ip` and the port that all sidecars have.
    pub fn pod_address(&self, ip: &str) -> SocketAddr {
        SocketAddr::new(ip.parse().unwrap(), self.sidecar.address.port())
    }

    /// `demo/s` of alice is placed in the first pod.
    pub fn place(&self) {
        self.place_at(self.sidecar.address.ip());
    }

    /// `demo/s` of alice is placed in the pod at `ip`.
    pub fn place_at(&self, ip: IpAddr) {
        let pod = json!({"name": "p", "uid": format!("pod-{ip}"), "address": ip, "serverUid": SERVER_UID});
        self.apply(&json!({"servers": [{"name": "github", "state": "Bound", "podRef": pod}]}), &json!({}));
    }

    /// `demo/s` of alice has that status, and that added to its metadata.
    pub fn apply(&self, status: &Value, metadata: &Value) {
        let mut session = json!({
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "AgentSession",
            "metadata": {"name": "s", "namespace": "demo", "uid": "session-uid"},
            "spec": {"subject": {"name": "alice"}, "servers": [{"name": "github"}]},
            "status": status,
        });
        session["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        self.index.apply("demo/s", Entry::of(&serde_json::from_value(session).unwrap()).unwrap());
    }

    /// The deletion of `demo/s` has begun.
    pub fn delete(&self) {
        let pod =
            json!({"name": "p", "uid": "pod", "address": self.sidecar.address.ip(), "serverUid": SERVER_UID});
        let status = json!({"servers": [{"name": "github", "state": "Bound", "podRef": pod}]});
        self.apply(&status, &json!({"deletionTimestamp": "2026-11-29T00:00:00Z"}));
    }

    pub async fn call(&self, request: &str) -> Answer {
        Client::send(self.address, request).await.read_all().await
    }

    /// The value of a metric, by its name and labels as they stand in the text.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.parse().ok()
    }

    /// Waits until a metric has that value.
    pub async fn metric_reaches(&self, name: &str, value: f64) {
        let reaches = async {
            while self.metric(name) != Some(value) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        soon(&format!("{name} is {value}"), reaches).await;
    }

    /// Waits until a metric has that value or a greater one.
    pub async fn metric_comes_to(&self, name: &str, value: f64) {
        let comes = async {
            while self.metric(name) < Some(value) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        soon(&format!("{name} comes to {value}"), comes).await;
    }

    /// Waits until nothing is held for any call.
    pub async fn baseline(&self) {
        self.metric_reaches("berth_gateway_requests_in_flight", 0.0).await;
        self.metric_reaches("berth_gateway_streams", 0.0).await;
        self.metric_reaches("berth_gateway_placement_waiting", 0.0).await;
    }
}
