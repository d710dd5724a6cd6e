//! Metrics of Berth's pods, read through the API server's pod proxy.

use crate::{eventually, system_namespace};
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a pod may take to answer.
const BOUND: Duration = Duration::from_secs(30);

/// Samples of one or more pods, summed by their full name with labels.
#[derive(Debug, Default)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// The sum of all samples of one metric, whatever their labels; 0 when there are none.
    pub fn sum(&self, name: &str) -> f64 {
        let of_name = |key: &&String| key.as_str() == name || key.starts_with(&format!("{name}{{"));
        self.0.keys().filter(of_name).filter_map(|key| self.0.get(key)).sum()
    }

    /// Whether any pod shows the metric.
    pub fn has(&self, name: &str) -> bool {
        self.0.keys().any(|key| key == name || key.starts_with(&format!("{name}{{")))
    }

    /// Metrics of one pod; none while it does not answer.
    pub async fn of_pod(client: &Client, pod: &Pod) -> Option<Self> {
        let mut metrics = Self::default();
        metrics.add(&scrape(client, pod).await?);
        Some(metrics)
    }

    fn add(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some((key, value)) = line.rsplit_once(' ') {
                *self.0.entry(key.to_owned()).or_default() += value.parse::<f64>().unwrap_or(f64::NAN);
            }
        }
    }
}

/// Metrics of the pods that `labels` selects in `namespace`, summed. Pods that are going away are left out; one that has just
/// started is waited for.
pub async fn pod_metrics(client: &Client, namespace: &str, labels: &str) -> Metrics {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let of_them = ListParams::default().labels(labels);
    eventually("all pods of Berth show their metrics", BOUND, || async {
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
