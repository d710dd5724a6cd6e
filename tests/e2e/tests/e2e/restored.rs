//! What the operator made and somebody deletes or changes: it is back at once, and nothing more is written.

use crate::quiet::nothing_is_written_for;
use berth_api::{AgentSession, McpServer};
use berth_e2e::{
    Metrics, POOL, Probe, TestNamespace, eventually, in_namespace, mcp_server, system_namespace, used_session,
};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::time::Duration;

/// How soon what went or changed is as it should be.
const BOUND: Duration = Duration::from_secs(30);

/// The name of the one object of that kind that the operator made for `server`.
async fn made_for<K>(namespace: &TestNamespace, server: &McpServer) -> String
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let of = format!(
        "app.kubernetes.io/managed-by=berth-operator,berth.dev/server-uid={}",
        server.uid().expect("it has a UID")
    );
    let made = namespace.api::<K>().list_metadata(&ListParams::default().labels(&of)).await.unwrap();
    assert_eq!(made.items.len(), 1, "{of}");
    made.items[0].name_any()
}

/// Deletes an object and waits until another of the same name is there: it as it was, and as it is.
async fn delete<K>(api: &Api<K>, name: &str) -> (K, K)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let before = api.get(name).await.unwrap();
    api.delete(name, &DeleteParams::default()).await.unwrap();
    let after = eventually(&format!("{} {name} is back", K::kind(&())), BOUND, || async {
        api.get_opt(name).await.unwrap().filter(|found| found.uid() != before.uid())
    })
    .await;
    (before, after)
}

/// Changes an object by `patch` and waits until what `part` shows of it is as before.
async fn change<K>(api: &Api<K>, name: &str, patch: Value, part: &str)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    let show = |object: &K| json!(object).pointer(part).cloned().expect("the object has that part");
    let before = show(&api.get(name).await.unwrap());
    let changed = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    assert_ne!(show(&changed), before);
    eventually(&format!("{} {name} is as before", K::kind(&())), BOUND, || async {
        (show(&api.get(name).await.unwrap()) == before).then_some(())
    })
    .await;
}

/// How often the API server has taken an applied Secret, a created one and an applied policy so far: what it refuses is rightly
/// sent again.
async fn made(client: &Client) -> [f64; 3] {
    let metrics = Metrics::of_api_server(client).await;
    [("APPLY", "secrets"), ("POST", "secrets"), ("APPLY", "networkpolicies")].map(|(verb, resource)| {
        let (verb, resource) = (format!("verb=\"{verb}\""), format!(",resource=\"{resource}\""));
        metrics.sum_where("apiserver_request_total", &["code=\"2", &verb, &resource])
    })
}

#[tokio::test]
async fn what_the_operator_made_is_back_at_once_when_it_was_deleted_or_changed() {
    in_namespace("restored", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        // A pod for each session: it needs the certificate.
        let pool = json!({"pool": {"warm": 0, "sessionsPerPod": 1}});
        let server = mcp_server(&namespace, "probe", &probe.url(), pool).await;
        let token = namespace.token("alice").await;
        let certificate = made_for::<Secret>(&namespace, &server).await;
        let policy = made_for::<NetworkPolicy>(&namespace, &server).await;
        let (secrets, policies) = (namespace.api::<Secret>(), namespace.api::<NetworkPolicy>());
        let system: Api<Secret> = Api::namespaced(namespace.client.clone(), &system_namespace());
        nothing_is_written_for(&namespace, Duration::from_secs(1)).await;
        let before = made(&namespace.client).await;

        delete(&secrets, &certificate).await;
        let (old, new) = delete(&policies, &policy).await;
        assert_eq!(new.spec, old.spec);
        delete(&system, "berth-gateway-tls").await;
        let (old, new) = delete(&system, "berth-ca").await;
        assert!(new.data == old.data && new.annotations() == old.annotations(), "it is the same CA");
        change(&secrets, &certificate, json!({"data": {"ca.crt": "eA=="}}), "/data/ca.crt").await;
        change(&policies, &policy, json!({"spec": {"ingress": [{}]}}), "/spec").await;
        let unlabelled = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
        change(&secrets, &certificate, unlabelled, "/metadata/labels").await;

        let opened = used_session(&namespace, "s", &token).await;
        assert_eq!(probe.books().await.total("initialize"), 1);
        let pods = namespace.api::<Pod>();
        let pod = pods.list(&ListParams::default().labels(POOL)).await.unwrap().items[0].name_any();
        for label in ["app.kubernetes.io/name", "app.kubernetes.io/managed-by", "berth.dev/revision"] {
            let changed = json!({"metadata": {"labels": {label: "another"}}});
            change(&pods, &pod, changed, "/metadata/labels").await;
        }
        let revision = server.status.and_then(|status| status.revision);
        eventually("the session is at the revision of its server", BOUND, || async {
            let status = namespace.api::<AgentSession>().get("s").await.unwrap().status.unwrap();
            (status.servers[0].revision == revision).then_some(())
        })
        .await;
        nothing_is_written_for(&namespace, Duration::from_secs(20)).await;
        let after = made(&namespace.client).await;
        let [applied, created, policed] = [0, 1, 2].map(|n| after[n] - before[n]);
        // The certificate went, was changed and lost its label; the gateway's went. The policy went and was changed.
        assert_eq!((applied, created, policed), (4.0, 1.0, 2.0), "each is written once");
        namespace.end(&opened, Duration::from_mins(1)).await;
    })
    .await;
}

#[tokio::test]
async fn a_certificate_that_somebody_made_immutable_is_made_anew_when_it_is_due() {
    in_namespace("immutable", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        // A pod for each session: it needs the certificate.
        let pool = json!({"pool": {"warm": 0, "sessionsPerPod": 1}});
        let server = mcp_server(&namespace, "probe", &probe.url(), pool).await;
        let token = namespace.token("alice").await;
        let (secrets, name) = (namespace.api::<Secret>(), made_for::<Secret>(&namespace, &server).await);
        let annotations = json!({"berth.dev/renew-after": "2020-01-01T00:00:00Z"});
        let due = json!({"immutable": true, "metadata": {"annotations": annotations}});
        let old = secrets.patch(&name, &PatchParams::default(), &Patch::Merge(due)).await.unwrap();
        let new = eventually("the certificate is made anew", BOUND, || async {
            secrets.get_opt(&name).await.unwrap().filter(|found| found.uid() != old.uid())
        })
        .await;
        let file =
            |secret: &Secret, file: &str| secret.data.as_ref().and_then(|data| data.get(file)).cloned();
        assert_ne!(file(&new, "tls.crt"), file(&old, "tls.crt"));
        assert_eq!((file(&new, "ca.crt"), new.immutable), (file(&old, "ca.crt"), None));
        let opened = used_session(&namespace, "s", &token).await;
        nothing_is_written_for(&namespace, Duration::from_secs(5)).await;
        namespace.end(&opened, Duration::from_mins(1)).await;
    })
    .await;
}
