//! Pods of the bench: the bare pair and the client of all ways.

use bench_pair::load::{Answer, Post, Ran, Run};
use bench_pair::tls;
use berth_e2e::{TestNamespace, eventually, system_namespace};
use http::Request;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

/// Port of every pod here, of the gateway and of the probe.
pub const PORT: u16 = 8080;
/// How long a pod may take to be ready.
const READY_BOUND: Duration = Duration::from_mins(1);
/// Where the pair finds its certificate.
const TLS_DIR: &str = "/etc/pair";

/// The two processes that Berth is compared with.
pub struct Pair {
    /// Plain HTTP in, mutual TLS out.
    pub front: Pod,
    /// Mutual TLS in, plain HTTP out.
    pub back: Pod,
}

impl Pair {
    /// Starts the pair before `upstream`.
    pub async fn start(namespace: &TestNamespace, upstream: SocketAddr) -> Self {
        namespace.create::<Secret>(json!({"metadata": {"name": "pair"}, "stringData": certificates()})).await;
        let part = |part: &str, to: SocketAddr| {
            json!([part, "--to", to.to_string(), "--tls", TLS_DIR, "--port", PORT.to_string()])
        };
        let back = start(namespace, "back", part("back", upstream)).await;
        let front = start(namespace, "front", part("front", address_of(&back))).await;
        Self { front, back }
    }
}

/// The client, which runs in a pod as the other parts do: so each way is one hop inside of the cluster's network, and no
/// forwarder of the test cluster's lies on any.
pub struct Load {
    namespace: TestNamespace,
    name: String,
}

impl Load {
    /// Starts the client.
    pub async fn start(namespace: &TestNamespace) -> Self {
        let pod = start(namespace, "load", json!(["load", "--port", PORT.to_string()])).await;
        Self { namespace: namespace.clone(), name: pod.name_any() }
    }

    /// Sends one POST.
    pub async fn once(&self, post: &Post) -> Answer {
        self.tell("once", post).await
    }

    /// Sends the same POST for a while.
    pub async fn run(&self, run: &Run) -> Ran {
        self.tell("run", run).await
    }

    /// Through the API server's proxy, which is idle while the client sends.
    async fn tell<T: DeserializeOwned>(&self, path: &str, what: &impl Serialize) -> T {
        let path =
            format!("/api/v1/namespaces/{}/pods/{}:{PORT}/proxy/{path}", self.namespace.name, self.name);
        let request = Request::post(path).body(serde_json::to_vec(what).unwrap()).unwrap();
        let told = self.namespace.client.request(request).await;
        told.unwrap_or_else(|error| panic!("the client sends, and is answered as it expects: {error}"))
    }
}

/// Where a pod listens.
pub fn address_of(pod: &Pod) -> SocketAddr {
    let ip = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref());
    SocketAddr::new(ip.expect("a running pod has an address").parse().expect("it is one"), PORT)
}

/// The only pod with those labels.
pub async fn only_pod(client: &kube::Client, namespace: &str, labels: &str) -> Pod {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    eventually(&format!("one pod, and no other, is {labels} in {namespace}"), READY_BOUND, || async {
        let listed = pods.list(&ListParams::default().labels(labels)).await.unwrap();
        <[Pod; 1]>::try_from(listed.items).ok().map(|[pod]| pod)
    })
    .await
}

/// The gateway; hack/bench.sh installs one replica of it.
pub async fn gateway(client: &kube::Client) -> Pod {
    only_pod(client, &system_namespace(), "app.kubernetes.io/component=gateway").await
}

async fn start(namespace: &TestNamespace, name: &str, arguments: Value) -> Pod {
    let image =
        std::env::var("BERTH_IMAGE_BENCH").expect("BERTH_IMAGE_BENCH names the image of the bare pair");
    let mut container = json!({
        "name": name, "image": image, "command": ["/bench-pair"], "args": arguments,
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "512Mi"}},
        "startupProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1, "failureThreshold": 30},
        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]}},
    });
    let mut spec = json!({
        "automountServiceAccountToken": false, "enableServiceLinks": false, "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"}},
    });
    if name != "load" {
        container["volumeMounts"] = json!([{"name": "tls", "mountPath": TLS_DIR, "readOnly": true}]);
        spec["volumes"] = json!([{"name": "tls", "secret": {"secretName": "pair"}}]);
    }
    spec["containers"] = json!([container]);
    namespace.create::<Pod>(json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": spec})).await;
    eventually(&format!("pod {name} is ready"), READY_BOUND, || async {
        let pod = namespace.api::<Pod>().get(name).await.unwrap();
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let ready =
            conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        ready.then_some(pod)
    })
    .await
}

/// A CA and a certificate that both of the pair use, as the keys of a Secret.
fn certificates() -> Value {
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new([tls::NAME.to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
    json!({"tls.crt": leaf.pem(), "tls.key": key.serialize_pem(), "ca.crt": ca.pem()})
}
