//! Secrets, planted wherever one can be, are found in nothing that Berth writes (must show 7 of the step).

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use berth_api::label::MANAGED_BY;
use berth_api::{AgentSession, McpServer};
use berth_e2e::{
    Books, McpClient, Probe, TestNamespace, eventually, in_namespace, is_ready, kubectl, mcp_server, session,
    subject_of, system_namespace, tool_call, tool_call_with, wait_until_ready,
};
use futures::future::join_all;
use http::Request;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, DeleteParams, ListParams, LogParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(1);
/// Kinds whose objects Berth makes or writes to, or that show what it makes.
const KINDS: &str = "bsrv,bses,pods,events,configmaps,services,endpointslices,serviceaccounts,leases,networkpolicies,deployments,\
                     replicasets";

const SERVERS: [&str; 2] = ["shared", "own"];

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
    let [of_shared, of_own] = SERVERS.map(|server| format!("{}/{server}", probe.url()));
    futures::join!(
        mcp_server(namespace, "shared", &of_shared, shared),
        mcp_server(namespace, "own", &of_own, own)
    );
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

/// What the upstream can be asked for, as faults and books name it.
const STEPS: [&str; 5] = ["initialize", "notifications/initialized", "tools/call", "GET", "DELETE"];

/// How often it was asked for that on behalf of `server`, and gave a fault.
fn struck(books: &Books, step: &str, server: &str) -> usize {
    let path = format!("/mcp/{server}");
    let is_struck = |entry: &&Value| entry["path"] == path.as_str() && !entry["fault"].is_null();
    books.requests(step).iter().filter(is_struck).count()
}

/// The sessions of one run.
struct Sessions<'a> {
    namespace: &'a TestNamespace,
    probe: &'a Probe,
    token: &'a str,
}

impl Sessions<'_> {
    fn client(&self, server: &str) -> McpClient {
        McpClient::new(&self.namespace.name, &format!("s-{server}"), server, self.token)
    }

    /// New ones that meet `fault` in each step; what the client is told is its own affair. Gives what objects said meanwhile.
    async fn meet(&self, fault: &Value) -> Vec<(String, String)> {
        let made = sessions(self.namespace).await;
        let mut said = self.connect(fault, "initialize").await;
        // Who was refused as Unauthorized is until the credential changes.
        if fault["status"] != 401 {
            said.extend(self.connect(fault, "notifications/initialized").await);
            self.probe.set_faults(&json!({"get": fault, "delete": fault})).await;
            join_all(SERVERS.map(|server| self.call_and_listen(fault, server))).await;
        }
        futures::join!(self.namespace.end(&made.0, BOUND), self.namespace.end(&made.1, BOUND));
        self.probe.clear_faults().await;
        said
    }

    /// Connects where the upstream has a fault in that step, and gives what the objects say once they tell of it.
    async fn connect(&self, fault: &Value, step: &str) -> Vec<(String, String)> {
        self.probe.set_faults(&json!({step: fault})).await;
        join_all(SERVERS.map(|server| self.fail(fault, step, server))).await;
        self.probe.set_faults(&json!({step: null})).await;
        let print = async |arguments: &[&str]| {
            let printed = kubectl(&[arguments, &["-n", &self.namespace.name]].concat(), "").await;
            assert!(printed.ok, "{printed:?}");
            (format!("{} after {step}, {fault}", arguments[0]), printed.out)
        };
        let said = futures::join!(print(&["get", KINDS, "-o", "yaml"]), print(&["describe", "bsrv,bses"]));
        vec![said.0, said.1]
    }

    /// Connects to `server`, which has a fault in that step, until it is met there and told of.
    async fn fail(&self, fault: &Value, step: &str, server: &str) {
        let before = struck(&self.probe.books().await, step, server);
        let answer = eventually("the upstream is asked", BOUND, || async {
            let answer = self.client(server).try_initialize(&json!({})).await;
            (struck(&self.probe.books().await, step, server) > before).then_some(answer)
        })
        .await;
        // There is nothing to read in the answer to a notification, and so only its status matters.
        let is_read = step == "initialize" || fault["status"].as_u64() >= Some(300);
        assert_eq!(answer["error"].is_object(), is_read, "{step}, {fault}: {answer}");
        if is_read {
            self.is_told(server, step, answer["error"]["data"]["reason"].as_str()).await;
        }
    }

    /// Waits until the status of the session tells why that step failed; it gives the same reason as the client got, if that is not
    /// told the upstream's own error.
    async fn is_told(&self, server: &str, step: &str, reason: Option<&str>) {
        eventually(&format!("the status tells of {reason:?} in {step}"), BOUND, || async {
            let session = self.namespace.api::<AgentSession>().get(&format!("s-{server}")).await.unwrap();
            let told = session.status?.servers.into_iter().next()?;
            let is_same = reason.is_none_or(|reason| told.reason.as_deref() == Some(reason));
            (told.reason.is_some() && is_same && told.last_error?.contains(step)).then_some(())
        })
        .await;
    }

    /// A client that works once it is connected.
    async fn connected(&self, server: &str) -> McpClient {
        eventually("it is connected", BOUND, || async {
            let mut client = self.client(server);
            client.try_initialize(&json!({})).await.get("result")?;
            let answer = client.call_as(&json!(1), "echo", json!({"message": "on"})).await;
            (answer["result"]["content"][0]["text"] == "on").then_some(client)
        })
        .await
    }

    /// Meets the fault in a call and in the stream of the upstream's own messages, and leaves a connection, to be ended.
    async fn call_and_listen(&self, fault: &Value, server: &str) {
        let meta = json!({"probe.test/fault": fault});
        let call = tool_call_with(&json!(1), "echo", json!({}), meta);
        self.connected(server).await.begin(&call).await.messages().await;
        let client = self.connected(server).await;
        let before = struck(&self.probe.books().await, "GET", server);
        let listening = client.listen().await;
        self.probe
            .until("the stream is asked for", BOUND, |books| struck(books, "GET", server) > before)
            .await;
        drop(listening);
        self.connected(server).await;
    }
}

/// Each fault was met in each step: its names in the books.
fn all_were_met(books: &Books) {
    for step in STEPS {
        let met: BTreeSet<String> = books
            .requests(step)
            .iter()
            .filter_map(|entry| Some(entry["fault"].as_str()?.to_owned()))
            .collect();
        for status in [200, 302, 400, 404, 429, 500] {
            assert!(met.contains(&format!("status {status}")), "{status} in {step}: {met:?}");
        }
        assert!(met.contains("answer"), "{step}: {met:?}");
    }
}

/// A secret as it is, and as it stands in the base64 of any text around it, in both alphabets.
fn forms(secret: &str) -> Vec<String> {
    let mut forms = vec![secret.to_owned()];
    for before in 0..3 {
        let text = [&vec![0; before], secret.as_bytes()].concat();
        let encoded = STANDARD_NO_PAD.encode(&text);
        // The characters all of whose bits are the secret's.
        let own = &encoded[(8 * before).div_ceil(6)..8 * text.len() / 6];
        forms.push(own.to_owned());
        forms.push(own.replace('+', "-").replace('/', "_"));
    }
    forms.dedup();
    forms
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
        let with_faults = Sessions { namespace: &namespace, probe: &probe, token: &token };
        let mut everything = Vec::new();
        for (number, fault) in refusals(&secrets).iter().enumerate() {
            everything.extend(with_faults.meet(fault).await);
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
        everything.extend(written(&namespace.client, &namespace.name).await);
        let names: Vec<&String> = everything.iter().map(|(name, _)| name).collect();
        for prefix in SEARCHED {
            assert!(names.iter().any(|name| name.starts_with(prefix)), "no {prefix}: {names:?}");
        }
        // The sidecar of each pool has written of what it met here.
        let sidecars: Vec<_> =
            everything.iter().filter(|(name, _)| name.starts_with("log of sidecar in ")).collect();
        assert!(sidecars.len() >= 2, "{names:?}");
        for server in SERVERS {
            let of_it = format!("{}/s-{server}", namespace.name);
            let log = sidecars.iter().find(|(_, log)| log.contains(&of_it)).expect("a log names the session");
            assert!(log.1.contains("\"result\":\"Connected\""), "{server}: its log says that it connected");
        }
        let Secrets { shared, own, rotated, body } = &secrets;
        let (shared, own, rotated) = (shared.as_str(), own.as_str(), rotated.as_str());
        let header = STANDARD_NO_PAD.encode(format!("Bearer {shared}"));
        assert!(forms(shared).iter().any(|form| header.contains(form)), "base64 is seen through");
        for secret in [shared, own, rotated, body.as_str(), signature].iter().flat_map(|secret| forms(secret))
        {
            for (name, text) in &everything {
                let found = text.lines().find(|line| line.contains(&secret));
                assert_eq!(found, None, "{secret} is in the {name}");
            }
        }
        let servers = namespace.api::<McpServer>().list(&ListParams::default()).await.unwrap();
        assert_eq!(servers.items.len(), 2);
        drop(last);
        // The books have digests of what really was sent.
        let books = probe.books().await;
        all_were_met(&books);
        let books = books.0.to_string();
        assert!([shared, own, rotated, signature].iter().all(|secret| !books.contains(secret)));
        let hex = |text: &str| {
            Sha256::digest(text).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
        };
        assert!(books.contains(&hex(&format!("Bearer {shared}"))), "the credential was used");
        assert!(!books.contains(&hex(&format!("Bearer {token}"))), "the caller's bearer was not");
    })
    .await;
}
