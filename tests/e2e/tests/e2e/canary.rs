//! Secrets, planted wherever one can be, are found in nothing that Berth writes (must show 7 of the step).

use berth_api::label::MANAGED_BY;
use berth_api::{AgentSession, McpServer};
use berth_e2e::{
    McpClient, Probe, TestNamespace, eventually, in_namespace, is_ready, kubectl, mcp_server, session,
    subject_of, system_namespace, tool_call, tool_call_with, wait_until_ready,
};
use http::Request;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, DeleteParams, ListParams, LogParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(1);
/// Kinds whose objects Berth makes or writes to, or that show what it makes.
const KINDS: &str = "bsrv,bses,pods,events,configmaps,services,endpointslices,serviceaccounts,leases,networkpolicies,deployments,\
                     replicasets";

/// The secrets of one run: logs still hold what earlier runs planted.
struct Secrets {
    shared: String,
    own: String,
    rotated: String,
    body: String,
}

impl Secrets {
    fn of(namespace: &TestNamespace) -> Self {
        let run = namespace.name.rsplit('-').next().unwrap();
        let secret = |what: &str| format!("canary-{what}-1f7a-{run}");
        Self {
            shared: secret("shared"),
            own: secret("own"),
            rotated: secret("rotated"),
            body: secret("body"),
        }
    }
}

/// Each way in which the upstream refuses, with a secret in what it says, and what it says besides.
fn refusals(Secrets { shared, own, body: said, .. }: &Secrets) -> Vec<Value> {
    let error = format!(r#"{{"jsonrpc":"2.0","id":{{id}},"error":{{"code":-32603,"message":"{said}"}}}}"#);
    let text = format!("<html>{said} Authorization: Bearer {shared} Bearer {own}</html>");
    let mut all = Vec::new();
    for (number, status) in [200, 400, 401, 404, 429, 500].into_iter().enumerate() {
        let (kind, body) = if number % 2 == 0 { ("text/html", &text) } else { ("application/json", &error) };
        let headers = json!({
            "content-type": kind, "retry-after": "0", "x-canary": said,
            "www-authenticate": format!("Bearer realm=\"{said}\", error_description=\"{shared}\""),
        });
        all.push(json!({"status": status, "headers": headers, "body": body}));
    }
    all.push(json!({"status": 200, "headers": {"content-type": "application/json"}, "body": error}));
    // The origin is told, as it says what to mend; the rest of the place is not.
    let elsewhere = format!("http://elsewhere.test/{said}?token={own}");
    all.push(json!({"status": 302, "headers": {"location": elsewhere}}));
    all.push(json!({"answer": {"before": [{"canary": said}], "breakAfterEvents": 1}}));
    all
}

async fn session_secret(namespace: &TestNamespace, token: &str) {
    let secret = json!({
        "metadata": {"name": "own", "labels": {"berth.dev/credential": "session"}}, "stringData": {"token": token},
    });
    let secrets = namespace.api::<Secret>();
    let _ = secrets.delete("own", &DeleteParams::default()).await;
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
}

/// A server with a shared credential, and one whose sessions have their own.
async fn servers(namespace: &TestNamespace, probe: &Probe, secrets: &Secrets) {
    probe.server_secret("upstream", &secrets.shared).await;
    session_secret(namespace, &secrets.own).await;
    let shared =
        json!({"auth": {"type": "Shared", "shared": {"secretKeyRef": {"name": "upstream", "key": "token"}}}});
    let own = json!({"auth": {"type": "Session", "session": {"header": "x-api-key", "scheme": ""}}});
    let url = probe.url();
    futures::join!(mcp_server(namespace, "shared", &url, shared), mcp_server(namespace, "own", &url, own));
}

/// One session of each.
async fn sessions(namespace: &TestNamespace) -> (AgentSession, AgentSession) {
    let own = async {
        let credential = json!({"secretKeyRef": {"name": "own", "key": "token"}});
        let servers = json!([{"name": "own", "credential": credential}]);
        let spec = json!({"subject": {"name": subject_of(namespace, "alice")}, "servers": servers});
        namespace.create::<AgentSession>(json!({"metadata": {"name": "s-own"}, "spec": spec})).await;
        wait_until_ready(namespace, "s-own", BOUND).await
    };
    futures::join!(session(namespace, "s-shared", "alice", &["shared"]), own)
}

/// Sessions that meet `fault` when they connect, and in a call; what the client is told is its own affair.
async fn meet(namespace: &TestNamespace, probe: &Probe, fault: &Value, token: &str) {
    let made = sessions(namespace).await;
    let client = |server: &str| McpClient::new(&namespace.name, &format!("s-{server}"), server, token);
    probe.set_faults(&json!({"initialize": fault})).await;
    for server in ["shared", "own"] {
        let answer = client(server).try_initialize(&json!({})).await;
        assert!(answer["error"].is_object(), "{fault}: {answer}");
    }
    probe.clear_faults().await;
    // Who was refused as Unauthorized is until the credential changes.
    if fault["status"] != 401 {
        for server in ["shared", "own"] {
            let client = eventually("it is connected", BOUND, || async {
                let mut client = client(server);
                client.try_initialize(&json!({})).await.get("result").map(|_| client)
            })
            .await;
            assert_eq!(client.call("echo", json!({"message": "on"})).await, "on");
            let meta = json!({"probe.test/fault": fault});
            client.begin(&tool_call_with(&json!(1), "echo", json!({}), meta)).await.messages().await;
        }
    }
    futures::join!(namespace.end(&made.0, BOUND), namespace.end(&made.1, BOUND));
}

/// The pods of Berth in a namespace, when each is Ready: whoever has not begun has no log.
async fn pods_of_berth(pods: &Api<Pod>) -> Vec<Pod> {
    eventually("each pod of Berth is Ready", BOUND, || async {
        let mut found = pods.list(&ListParams::default()).await.unwrap().items;
        // The probe is no part of Berth.
        let runs = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            !matches!(phase, Some("Succeeded" | "Failed"))
        };
        found.retain(|pod| {
            pod.metadata.deletion_timestamp.is_none()
                && runs(pod)
                && pod.labels().get("app").is_none_or(|app| app != "probe")
        });
        (!found.is_empty() && found.iter().all(is_ready)).then_some(found)
    })
    .await
}

/// Whatever Berth has written: a name for it, and the text. Each of them can be read, and says something.
async fn written(client: &Client, namespace: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let system = system_namespace();
    for within in [namespace, &system] {
        let pods: Api<Pod> = Api::namespaced(client.clone(), within);
        for pod in pods_of_berth(&pods).await {
            for container in &pod.spec.as_ref().unwrap().containers {
                let of = LogParams { container: Some(container.name.clone()), ..LogParams::default() };
                let log = pods.logs(&pod.name_any(), &of).await.unwrap();
                all.push((format!("log of {} in {}", container.name, pod.name_any()), log));
            }
            let path = format!("/api/v1/namespaces/{within}/pods/{}:8081/proxy/metrics", pod.name_any());
            let metrics = client.request_text(Request::get(path).body(Vec::new()).unwrap()).await.unwrap();
            all.push((format!("metrics of {}", pod.name_any()), metrics));
        }
        let printed = kubectl(&["get", KINDS, "-n", within, "-o", "yaml"], "").await;
        assert!(printed.ok, "{printed:?}");
        all.push((format!("objects of {within}"), printed.out));
        all.extend(secrets_of_berth(client, within).await);
    }
    for (name, text) in &all {
        assert!(!text.trim().is_empty(), "the {name} says nothing");
    }
    all
}

/// The Secrets that Berth made in a namespace, each value of their data as it is.
async fn secrets_of_berth(client: &Client, within: &str) -> Vec<(String, String)> {
    let made = ListParams::default().labels(&format!("{MANAGED_BY}=berth-operator"));
    let secrets = Api::<Secret>::namespaced(client.clone(), within).list(&made).await.unwrap();
    let mut all = Vec::new();
    for secret in secrets {
        let name = format!("Secret {}", secret.name_any());
        for (key, value) in secret.data.unwrap_or_default() {
            all.push((format!("{name}, {key}"), String::from_utf8_lossy(&value.0).into_owned()));
        }
        all.push((format!("{name}, its metadata"), serde_json::to_string(&secret.metadata).unwrap()));
    }
    all
}

/// How each name of what is searched begins: of every part of Berth its log, of every kind of Secret that it makes one.
const SEARCHED: [&str; 9] = [
    "log of operator in berth-operator",
    "log of gateway in berth-gateway",
    "log of sidecar in ",
    "metrics of berth-operator",
    "metrics of berth-gateway",
    "objects of berth-canary",
    "Secret berth-ca, ",
    "Secret berth-gateway-tls, ",
    "Secret shared-",
];

#[tokio::test]
async fn no_secret_is_in_logs_events_status_or_metrics() {
    in_namespace("canary", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let secrets = Secrets::of(&namespace);
        servers(&namespace, &probe, &secrets).await;
        let token = namespace.token("alice").await;
        for (number, fault) in refusals(&secrets).iter().enumerate() {
            meet(&namespace, &probe, fault, &token).await;
            if number == 3 {
                session_secret(&namespace, &secrets.rotated).await;
            }
        }
        let last = sessions(&namespace).await;
        // Callers with a secret in what they send: as a token that is not valid, and in a message that goes nowhere.
        for (name, server, token) in
            [("s-own", "own", secrets.body.as_str()), ("no-such", "own", token.as_str())]
        {
            let client = McpClient::new(&namespace.name, name, server, token);
            let refused = client.send(&tool_call(&json!(1), "echo", json!({"message": secrets.own}))).await;
            assert!(refused.status.is_client_error(), "{refused:?}");
        }

        let signature = token.rsplit('.').next().unwrap();
        let everything = written(&namespace.client, &namespace.name).await;
        let names: Vec<&String> = everything.iter().map(|(name, _)| name).collect();
        for prefix in SEARCHED {
            assert!(names.iter().any(|name| name.starts_with(prefix)), "no {prefix}: {names:?}");
        }
        // The sidecar of each pool has written of what it met here.
        let sidecars: Vec<_> =
            everything.iter().filter(|(name, _)| name.starts_with("log of sidecar in ")).collect();
        assert!(sidecars.len() >= 2, "{names:?}");
        for server in ["shared", "own"] {
            let of_it = format!("{}/s-{server}", namespace.name);
            let log = sidecars.iter().find(|(_, log)| log.contains(&of_it)).expect("a log names the session");
            assert!(log.1.contains("\"result\":\"Connected\""), "{server}: its log says that it connected");
        }
        let Secrets { shared, own, rotated, body } = &secrets;
        let (shared, own, rotated) = (shared.as_str(), own.as_str(), rotated.as_str());
        for secret in [shared, own, rotated, body.as_str(), signature] {
            for (name, text) in &everything {
                let found = text.lines().find(|line| line.contains(secret));
                assert_eq!(found, None, "{secret} is in the {name}");
            }
        }
        let servers = namespace.api::<McpServer>().list(&ListParams::default()).await.unwrap();
        assert_eq!(servers.items.len(), 2);
        drop(last);
        // The books have digests of what really was sent.
        let books = probe.books().await.0.to_string();
        assert!([shared, own, rotated, signature].iter().all(|secret| !books.contains(secret)));
        let hex = |text: &str| {
            Sha256::digest(text).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
        };
        assert!(books.contains(&hex(&format!("Bearer {shared}"))), "the credential was used");
        assert!(!books.contains(&hex(&format!("Bearer {token}"))), "the caller's bearer was not");
    })
    .await;
}
