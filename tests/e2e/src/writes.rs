//! What was written to the API server, whoever wrote it.

use http::Request;
use kube::Client;
use std::collections::BTreeMap;

/// Groups and resources that Berth writes, its Lease left out. Of pods only what is no status: that is the kubelet's.
const OURS: [(&str, &str); 6] = [
    ("berth.dev", "agentsessions"),
    ("berth.dev", "mcpservers"),
    ("", "pods"),
    ("", "secrets"),
    ("events.k8s.io", "events"),
    ("networking.k8s.io", "networkpolicies"),
];
/// Verbs that write.
const VERBS: [&str; 5] = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];

/// Writing requests so far, by verb and resource, as the API server counts them.
pub async fn api_writes(client: &Client) -> BTreeMap<String, f64> {
    let mut writes = BTreeMap::new();
    for sample in requests(client).await {
        let of_kubelet = sample.of("resource") == "pods" && !sample.of("subresource").is_empty();
        let ours = OURS.contains(&(sample.of("group"), sample.of("resource")));
        if ours && VERBS.contains(&sample.of("verb")) && !of_kubelet {
            *writes.entry(format!("{} {}", sample.of("verb"), sample.of("resource"))).or_default() +=
                sample.count;
        }
    }
    writes
}

/// Creations of those resources that the API server has forbidden so far.
pub async fn forbidden_creates(client: &Client, resources: &[&str]) -> f64 {
    let all = requests(client).await;
    let creates =
        |sample: &&Sample| ["POST", "APPLY"].contains(&sample.of("verb")) && sample.of("code") == "403";
    all.iter().filter(creates).filter(|s| resources.contains(&s.of("resource"))).map(|s| s.count).sum()
}

/// Requests of one kind.
struct Sample {
    labels: String,
    count: f64,
}

impl Sample {
    fn of(&self, label: &str) -> &str {
        let rest = self.labels.split(&format!(",{label}=\"")).nth(1).unwrap_or_default();
        rest.split('"').next().unwrap_or_default()
    }
}

async fn requests(client: &Client) -> Vec<Sample> {
    let request = Request::get("/metrics").body(Vec::new()).unwrap();
    let text = client.request_text(request).await.expect("the API server shows its metrics");
    let sample = |line: &str| {
        let (labels, count) = line.strip_prefix("apiserver_request_total{")?.rsplit_once("} ")?;
        // A comma before each, so that `resource` is not found in `subresource`.
        Some(Sample { labels: format!(",{labels}"), count: count.parse().expect("a count is a number") })
    };
    text.lines().filter_map(sample).collect()
}
