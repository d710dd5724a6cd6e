//! What Berth's own gauges say when nothing is left over.

use crate::{POOL, TestNamespace, eventually, pod_metrics, system_metrics};
use berth_api::AgentSession;
use kube::api::{Api, ListParams};
use std::time::Duration;

/// How long gauges may take to settle.
const BOUND: Duration = Duration::from_secs(20);

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
        assert!(held.iter().all(|gauge| sidecar.has(gauge)), "{sidecar:?}");
        assert!(quiet.iter().all(|gauge| gateway.has(gauge)), "{gateway:?}");
        let settled = held.iter().all(|gauge| sidecar.sum(gauge) == living)
            && sidecar.sum("berth_sidecar_requests_in_flight") == 0.0
            && quiet.iter().all(|gauge| gateway.sum(gauge) == 0.0)
            && operator.sum("berth_operator_sessions") == existing;
        settled.then_some(())
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
