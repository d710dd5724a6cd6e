//! An uninstall ends every session first and leaves nothing, and a namespace goes with a Berth of its own (CASES.md 30).

use crate::helm::{Values, charts, gateway_answers, helm};
use berth_api::{AgentSession, McpServer};
use berth_e2e::{
    POOL, Probe, TestNamespace, eventually, in_namespace, kubectl, mcp_server, system_namespace, used_session,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(2);

/// Names of everything in the cluster that Berth has made, but what people made for it.
async fn remains(client: &Client) -> Vec<String> {
    let ours = ListParams::default().labels("app.kubernetes.io/managed-by=berth-operator");
    let mut found = Vec::new();
    let pods = Api::<Pod>::all(client.clone()).list(&ListParams::default().labels(POOL)).await.unwrap();
    found.extend(pods.iter().map(|pod| format!("pod {}", pod.name_any())));
    let secrets = Api::<Secret>::all(client.clone()).list(&ours).await.unwrap();
    found.extend(secrets.iter().map(|secret| format!("secret {}", secret.name_any())));
    let policies = Api::<NetworkPolicy>::all(client.clone()).list(&ours).await.unwrap();
    found.extend(policies.iter().map(|policy| format!("network policy {}", policy.name_any())));
    let sessions = Api::<AgentSession>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    found.extend(sessions.iter().map(|session| format!("session {}", session.name_any())));
    found.extend(finalizers().await.into_iter().map(|(kind, name)| format!("finalizer of {kind} {name}")));
    let leases = Api::<Lease>::namespaced(client.clone(), &system_namespace());
    found.extend(
        leases.list(&ListParams::default()).await.unwrap().iter().map(|l| format!("lease {}", l.name_any())),
    );
    found
}

/// Kind and name of everything in the cluster that has a finalizer of Berth's, of the kinds that Berth makes or is told of by people.
async fn finalizers() -> BTreeSet<(String, String)> {
    let kinds = "agentsessions,mcpservers,pods,secrets,configmaps,networkpolicies,leases,events,namespaces";
    let printed = kubectl(&["get", kinds, "-A", "-o", "json"], "").await;
    assert!(printed.ok, "{printed:?}");
    let found: Value = serde_json::from_str(&printed.out).expect("kubectl prints JSON");
    let ours = |object: &&Value| {
        let finalizers = object["metadata"]["finalizers"].as_array();
        finalizers.is_some_and(|all| all.iter().any(|one| one.as_str().unwrap().starts_with("berth.dev/")))
    };
    let text = |value: &Value| value.as_str().expect("it has one").to_owned();
    let items = found["items"].as_array().expect("a list has items").iter().filter(ours);
    items.map(|object| (text(&object["kind"]), text(&object["metadata"]["name"]))).collect()
}

async fn three_sessions(namespace: &TestNamespace) -> Vec<AgentSession> {
    let token = namespace.token("alice").await;
    let mut sessions = Vec::new();
    for name in ["a", "b", "c"] {
        sessions.push(used_session(namespace, name, &token).await);
    }
    sessions
}

#[tokio::test]
async fn an_uninstall_ends_every_session_leaves_nothing_and_can_be_undone() {
    in_namespace("uninstall", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let sessions = three_sessions(&namespace).await;
        assert!(!remains(&namespace.client).await.is_empty(), "what is looked for can be found");
        let of_sessions = ["a", "b", "c"].map(|name| ("AgentSession".to_owned(), name.to_owned()));
        let of_sessions = BTreeSet::from(of_sessions);
        // Earlier tests do not wait for the end of what they delete.
        eventually("only sessions have a finalizer", BOUND, || async {
            (finalizers().await == of_sessions).then_some(())
        })
        .await;
        let values = Values::of_release().await;

        helm(&["uninstall", "berth", "-n", &system_namespace(), "--wait", "--timeout", "6m"]).await;
        assert_eq!(remains(&namespace.client).await, Vec::<String>::new());
        let books = probe.books().await;
        assert_eq!((books.total("delete"), books.total("deleteUnknown")), (3, 0), "{books:?}");
        for session in &sessions {
            let events = namespace.events_about(&session.uid().unwrap()).await;
            assert_eq!(events.iter().map(|e| e.1.as_str()).collect::<Vec<_>>(), ["Shutdown"], "{events:?}");
        }
        // What people made stays, and the next install takes it up.
        namespace.api::<McpServer>().get("probe").await.unwrap();
        values.install(&charts(), &[]).await;
        let token = namespace.token("alice").await;
        let again = used_session(&namespace, "again", &token).await;
        namespace.end(&again, BOUND).await;
    })
    .await;
}

#[tokio::test]
async fn a_namespace_goes_with_the_berth_and_the_sessions_in_it() {
    let values = Values::of_release().await;
    helm(&["uninstall", "berth", "-n", &system_namespace(), "--wait", "--timeout", "6m"]).await;
    in_namespace("own", |namespace| async move {
        let (chart, file) = (charts().join("berth"), values.path());
        let own = ["install", "own", chart.to_str().unwrap(), "-n", &namespace.name, "--values", &file];
        helm(&[&own[..], &["--wait", "--timeout", "3m"]].concat()).await;
        gateway_answers().await;
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({"timeouts": {"drain": "1s", "close": "2s"}}))
            .await;
        three_sessions(&namespace).await;

        let namespaces: Api<Namespace> = Api::all(namespace.client.clone());
        namespaces.delete(&namespace.name, &DeleteParams::default()).await.unwrap();
        eventually("the namespace is gone", BOUND, || async {
            namespaces.get_opt(&namespace.name).await.unwrap().is_none().then_some(())
        })
        .await;
        // Helm's record went with it, so what is not in a namespace is cleared by hand.
        let selector = "app.kubernetes.io/instance=own";
        let cleared = kubectl(&["delete", "clusterroles,clusterrolebindings", "-l", selector], "").await;
        assert!(cleared.ok, "{cleared:?}");
        values.install(&charts(), &[]).await;
    })
    .await;
}
