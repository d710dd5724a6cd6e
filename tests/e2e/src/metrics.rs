//! Metrics of Berth's pods, read through the API server's pod proxy.

use crate::{eventually, system_namespace};
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a pod that was only just made may take to answer, on a small machine.
const READY_BOUND: Duration = Duration::from_mins(2);

/// Samples of one or more pods, summed by their full name with labels.
#[derive(Debug, Default)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// The sum of all samples of one metric, whatever their labels; 0 when there are none.
    pub fn sum(&self, name: &str) -> f64 {
        self.sum_where(name, &[])
    }

    /// The sum of those in whose labels each of these texts is, as `code="2` for every code of success.
    pub fn sum_where(&self, name: &str, labels: &[&str]) -> f64 {
        let counts = |key: &str| is_of(key, name) && labels.iter().all(|label| key.contains(label));
        self.0.iter().filter(|(key, _)| counts(key)).map(|(_, value)| value).sum()
    }

    /// Whether any pod shows the metric.
    pub fn has(&self, name: &str) -> bool {
        self.0.keys().any(|key| is_of(key, name))
    }

    /// Metrics of one pod; none while it does not answer.
    pub async fn of_pod(client: &Client, pod: &Pod) -> Option<Self> {
        let mut metrics = Self::default();
        metrics.add(&scrape(client, pod).await?);
        Some(metrics)
    }

    /// Metrics of the API server itself.
    pub async fn of_api_server(client: &Client) -> Self {
        let request = Request::get("/metrics").body(Vec::new()).unwrap();
        let mut metrics = Self::default();
        metrics.add(&client.request_text(request).await.expect("the API server shows its metrics"));
        metrics
    }

    fn add(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some((key, value)) = line.rsplit_once(' ') {
                *self.0.entry(key.to_owned()).or_default() += value.parse::<f64>().unwrap_or(f64::NAN);
            }
        }
    }
}

/// Whether a sample is one of the metric of that name.
fn is_of(key: &str, name: &str) -> bool {
    key.strip_prefix(name).is_some_and(|labels| labels.is_empty() || labels.starts_with('{'))
}

/// Metrics of the pods that `labels` selects in `namespace`, summed. Pods that are going away are left out; one that has just
/// started is waited for.
pub async fn pod_metrics(client: &Client, namespace: &str, labels: &str) -> Metrics {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let of_them = ListParams::default().labels(labels);
    eventually("all pods of Berth show their metrics", READY_BOUND, || async {
        let listed = pods.list(&of_them).await.unwrap();
        let mut metrics = Metrics::default();
        for pod in listed.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            metrics.add(&scrape(client, pod).await?);
        }
        Some(metrics)
    })
    .await
}

/// What a pod shows; none while it does not answer.
async fn scrape(client: &Client, pod: &Pod) -> Option<String> {
    let (namespace, name) = (pod.namespace().expect("a pod is in a namespace"), pod.name_any());
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:8081/proxy/metrics");
    client.request_text(Request::get(path).body(Vec::new()).unwrap()).await.ok()
}

/// Metrics of one component (`operator`, `gateway`) of the installed chart.
pub async fn system_metrics(client: &Client, component: &str) -> Metrics {
    pod_metrics(client, &system_namespace(), &format!("app.kubernetes.io/component={component}")).await
}
