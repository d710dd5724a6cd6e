//! A namespace of its own for each test.

use k8s_openapi::api::core::v1::{Event, Namespace, Pod, ServiceAccount};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;

/// How long tokens are valid: longer than any test.
const TOKEN_SECONDS: u32 = 3600;

/// A namespace that enforces Pod Security `restricted`, and a client to its cluster.
#[derive(Clone)]
pub struct TestNamespace {
    /// An ordinary administrator's client.
    pub client: Client,
    /// The namespace's name.
    pub name: String,
}

/// The namespace that Berth itself is installed in.
pub fn system_namespace() -> String {
    std::env::var("BERTH_SYSTEM_NAMESPACE").unwrap_or_else(|_| "berth-system".to_owned())
}

/// Runs `test` in a fresh namespace, which is deleted afterwards; if the test fails, says first what is in it.
pub async fn in_namespace<F: Future<Output = ()>>(topic: &str, test: impl FnOnce(TestNamespace) -> F) {
    let client =
        Client::try_default().await.expect("KUBECONFIG names a cluster; `make test-e2e` brings one up");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let wanted = json!({
        "metadata": {
            "generateName": format!("berth-{topic}-"),
            "labels": {"berth.dev/test": topic, "pod-security.kubernetes.io/enforce": "restricted"},
        }
    });
    let made =
        namespaces.create(&PostParams::default(), &serde_json::from_value(wanted).unwrap()).await.unwrap();
    let namespace = TestNamespace { client, name: made.name_any() };
    let outcome = AssertUnwindSafe(test(namespace.clone())).catch_unwind().await;
    if let Err(panic) = outcome {
        namespace.tell().await;
        if std::env::var_os("BERTH_KEEP").is_none() {
            namespace.delete().await;
        }
        std::panic::resume_unwind(panic);
    }
    namespace.delete().await;
}

impl TestNamespace {
    /// An API of this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Creates an object from JSON.
    pub async fn create<K>(&self, object: serde_json::Value) -> K
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
        K::DynamicType: Default,
    {
        let object: K = serde_json::from_value(object).expect("the object is of its kind");
        self.api::<K>()
            .create(&PostParams::default(), &object)
            .await
            .expect("the API server takes the object")
    }

    /// Makes a ServiceAccount and a token of it for the audience `berth`.
    pub async fn token(&self, account: &str) -> String {
        let api = self.api::<ServiceAccount>();
        let wanted = json!({"metadata": {"name": account}});
        match api.create(&PostParams::default(), &serde_json::from_value(wanted).unwrap()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => panic!("{error}"),
        }
        let request = json!({"spec": {"audiences": ["berth"], "expirationSeconds": TOKEN_SECONDS}});
        let request = serde_json::from_value(request).unwrap();
        let answer = api.create_token_request(account, &PostParams::default(), &request).await.unwrap();
        answer.status.and_then(|status| status.token).expect("a token request is answered")
    }

    /// The events about one object, as (type, reason, note).
    pub async fn events_about(&self, uid: &str) -> Vec<(String, String, String)> {
        let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        let events = self.api::<Event>().list(&about).await.unwrap();
        let read = |e: Event| {
            (e.type_.unwrap_or_default(), e.reason.unwrap_or_default(), e.message.unwrap_or_default())
        };
        events.into_iter().map(read).collect()
    }

    /// Asks for the deletion and goes on: the namespace's end is no part of most tests, and takes longer than they do.
    async fn delete(&self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        match namespaces.delete(&self.name, &DeleteParams::default()).await {
            Ok(_) => {}
            // The test deleted it itself.
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => panic!("a test's namespace can be deleted: {error}"),
        }
    }

    /// Prints pods and events of a failed test.
    async fn tell(&self) {
        eprintln!("--- namespace {} of the failed test", self.name);
        for pod in self.api::<Pod>().list(&ListParams::default()).await.into_iter().flatten() {
            eprintln!("pod {}: {}", pod.name_any(), serde_json::to_string(&pod.status).unwrap_or_default());
        }
        for event in self.api::<Event>().list(&ListParams::default()).await.into_iter().flatten() {
            eprintln!("event {} {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default());
        }
        for session in
            self.api::<berth_api::AgentSession>().list(&ListParams::default()).await.into_iter().flatten()
        {
            eprintln!(
                "session {}: {}",
                session.name_any(),
                serde_json::to_string(&session.status).unwrap_or_default()
            );
        }
        for server in
            self.api::<berth_api::McpServer>().list(&ListParams::default()).await.into_iter().flatten()
        {
            eprintln!(
                "server {}: {}",
                server.name_any(),
                serde_json::to_string(&server.status).unwrap_or_default()
            );
        }
    }
}
