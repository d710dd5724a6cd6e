//! What Berth's own gauges and its processes say when nothing is left over.

use crate::{
    Metrics, POOL, Process, TestNamespace, eventually, figure, pod_metrics, system_metrics, system_namespace,
};
use berth_api::AgentSession;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};
use std::time::{Duration, Instant};

/// How long gauges may take to settle.
const BOUND: Duration = Duration::from_mins(1);
/// How long processes are looked at for what they hold when idle: longer than anything that is kept for a next use.
const IDLE: Duration = Duration::from_secs(40);
/// How long they may take to become idle: an operator asks for watches of less than five minutes, and with each goes the buffer that
/// a burst of events made large.
const IDLE_BOUND: Duration = Duration::from_mins(6);
/// How often they are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Waits until the gauges of the namespace's sidecars count `living` sessions, each with its connection and one scope, and
/// nothing else; those of gateway and operator count nothing in flight and the sessions that exist.
pub async fn wait_for_baseline(namespace: &TestNamespace, living: usize) {
    let living = number(living);
    eventually("gauges of sidecar, gateway and operator are at their baseline", BOUND, || async {
        let sidecar = pod_metrics(&namespace.client, &namespace.name, POOL).await;
        let gateway = system_metrics(&namespace.client, "gateway").await;
        let operator = system_metrics(&namespace.client, "operator").await;
        let all: Api<AgentSession> = Api::all(namespace.client.clone());
        let existing = number(all.list(&ListParams::default()).await.unwrap().items.len());
        let held = ["sessions", "connections", "scopes"].map(|gauge| format!("berth_sidecar_{gauge}"));
        let quiet = ["berth_gateway_requests_in_flight", "berth_gateway_streams"];
        // Pods that are just going are left out, and with all of them the gauges.
        let shown =
            held.iter().all(|gauge| sidecar.has(gauge)) && quiet.iter().all(|gauge| gateway.has(gauge));
        let settled = shown
            && held.iter().all(|gauge| sidecar.sum(gauge) == living)
            && sidecar.sum("berth_sidecar_requests_in_flight") == 0.0
            && quiet.iter().all(|gauge| gateway.sum(gauge) == 0.0)
            && operator.sum("berth_operator_sessions") == existing;
        settled.then_some(())
    })
    .await;
}

/// Waits until the sidecars of the namespace count so many sessions, and of these neither a connection nor a client, a request or a
/// stream.
pub async fn nothing_is_open(namespace: &TestNamespace, sessions: usize) {
    let sessions = number(sessions);
    eventually("the sessions of the sidecars have nothing open", BOUND, || async {
        let metrics = pod_metrics(&namespace.client, &namespace.name, POOL).await;
        let sum = |gauge: &str| metrics.sum(&format!("berth_sidecar_{gauge}"));
        (sum("sessions") == sessions
            && ["connections", "scopes", "requests_in_flight", "client_streams", "upstream_streams"]
                .iter()
                .all(|gauge| sum(gauge) == 0.0))
        .then_some(())
    })
    .await;
}

/// Ends a session, after which the gauges count nothing.
pub async fn ends_and_leaves_nothing(namespace: &TestNamespace, session: &str) {
    let made = namespace.api::<AgentSession>().get(session).await.unwrap();
    namespace.end(&made, Duration::from_mins(1)).await;
    wait_for_baseline(namespace, 0).await;
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("a count of tests is small"))
}

/// What a process holds.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    /// Tasks of its runtime.
    pub tasks: f64,
    /// Bytes of its heap that are in use.
    pub allocated: f64,
    /// Files and sockets that it has open.
    pub descriptors: usize,
    /// Its memory, in KiB, with what the allocator keeps.
    pub resident_kib: u64,
}

/// A process of Berth that serves.
pub struct Serving {
    /// `sidecar`, `gateway` or `operator`.
    pub what: &'static str,
    pod: Pod,
    process: Process,
    client: Client,
}

impl Serving {
    /// What it holds now.
    pub async fn footprint(&self) -> Footprint {
        let answers = || Metrics::of_pod(&self.client, &self.pod);
        let metrics = eventually(&format!("the {} shows its metrics", self.what), BOUND, answers).await;
        let gauge = |name: &str| {
            assert!(metrics.has(name), "{metrics:?}");
            metrics.sum(name)
        };
        Footprint {
            tasks: gauge("berth_runtime_tasks"),
            allocated: gauge("berth_allocated_bytes"),
            descriptors: self.process.descriptors(),
            resident_kib: self.process.resident_kib(),
        }
    }

    /// The least of each that it holds while nobody uses it: whoever looks at it, as the kubelet does, adds to it for a moment.
    async fn idle(&self) -> Footprint {
        let (begun, mut least) = (Instant::now(), self.footprint().await);
        while begun.elapsed() < IDLE {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = self.footprint().await;
            least = Footprint {
                tasks: least.tasks.min(now.tasks),
                allocated: least.allocated.min(now.allocated),
                descriptors: least.descriptors.min(now.descriptors),
                resident_kib: least.resident_kib.min(now.resident_kib),
            };
        }
        least
    }
}

/// Processes, and what each held when it was idle.
pub struct Idle(Vec<(Serving, Footprint)>);

impl Idle {
    /// What each process holds now. None of them has died.
    pub async fn now(&self) -> Vec<(&'static str, Footprint)> {
        join_all(self.0.iter().map(async |(serving, _)| (serving.what, serving.footprint().await))).await
    }

    /// Waits until each holds no more tasks and descriptors than then, and of its heap no more than then, 2 % of that, and `more`
    /// bytes.
    pub async fn is_back(&self, more: f64) {
        for (serving, before) in &self.0 {
            let what = serving.what;
            let is_back = |now: &Footprint| {
                now.tasks <= before.tasks
                    && now.descriptors <= before.descriptors
                    && now.allocated <= before.allocated * 1.02 + more
            };
            let (begun, mut now) = (Instant::now(), serving.footprint().await);
            while !is_back(&now) {
                assert!(
                    begun.elapsed() < IDLE_BOUND,
                    "the {what} held {before:?} when idle, and holds {now:?}"
                );
                tokio::time::sleep(LOOK_EVERY).await;
                now = serving.footprint().await;
            }
            figure(&format!("the {what} when idle"), format_args!("{before:?}, then {now:?}"));
        }
    }
}

impl TestNamespace {
    /// The sidecars of this namespace, the gateways and the operators, and what they hold when idle.
    pub async fn idle(&self) -> Idle {
        let system = system_namespace();
        let components = [
            ("sidecar", &self.name, POOL),
            ("gateway", &system, "app.kubernetes.io/component=gateway"),
            ("operator", &system, "app.kubernetes.io/component=operator"),
        ];
        let mut serving = Vec::new();
        for (what, namespace, labels) in components {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            let found = pods.list(&ListParams::default().labels(labels)).await.unwrap();
            let before = serving.len();
            serving.extend(found.into_iter().filter_map(|pod| {
                let process = Process::find(&pod, &format!("berth-{what}"))?;
                Some(Serving { what, pod, process, client: self.client.clone() })
            }));
            assert!(serving.len() > before, "a {what} runs on this machine");
        }
        let idle = join_all(serving.iter().map(Serving::idle)).await;
        Idle(serving.into_iter().zip(idle).collect())
    }
}
