//! Certificates of a company's own authority (CASES.md 38), and servers and pages that name a Host or an Origin (CASES.md 40).

use berth_api::AgentSession;
use berth_e2e::{
    McpClient, POOL, Probe, TestNamespace, ends_and_leaves_nothing, eventually, gateway_url, in_namespace,
    initialize, is_ready, mcp_server, pod_metrics, post, session, system_namespace,
};
use futures::future::join_all;
use http::{Request, StatusCode};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(1);

/// Reason and text of what a first request of `session` to `server` meets; nothing if it is served.
async fn met(
    namespace: &TestNamespace,
    session: &str,
    server: &str,
    token: &str,
) -> Option<(String, String)> {
    let answer = McpClient::new(&namespace.name, session, server, token).try_initialize(&json!({})).await;
    let error = answer.get("error")?;
    assert_eq!(error["data"]["server"], server, "{answer}");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some((text(&error["data"]["reason"]), text(&error["message"])))
}

/// Applies the ConfigMap and the Secret `corp` with the certificates of an authority.
async fn authority(namespace: &TestNamespace, pem: &str) {
    let params = PatchParams::apply("e2e").force();
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "corp"}, "data": {"ca.crt": pem},
    });
    namespace.api::<ConfigMap>().patch("corp", &params, &Patch::Apply(&map)).await.unwrap();
    let metadata = json!({"name": "corp", "labels": {"berth.dev/credential": "server"}});
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"ca.crt": pem}});
    namespace.api::<Secret>().patch("corp", &params, &Patch::Apply(&secret)).await.unwrap();
}

/// A server for one of the probe's TLS ports.
async fn tls_server(namespace: &TestNamespace, probe: &Probe, name: &str, port: u16, tls: Value) {
    let url = probe.url_at("https", port);
    let spec = json!({"transport": {"type": "Http", "http": {"url": url, "tls": tls}}});
    mcp_server(namespace, name, &url, spec).await;
}

/// Trust in what the object `corp` of that kind holds.
fn corp(kind: &str) -> Value {
    json!({"caRef": {"kind": kind, "name": "corp", "key": "ca.crt"}})
}

/// What the status of the session `s` gives as reason for one of its servers.
async fn reason_of(namespace: &TestNamespace, server: &str) -> Value {
    let session = namespace.api::<AgentSession>().get("s").await.unwrap();
    let status = serde_json::to_value(session.status).unwrap();
    let servers = status["servers"].as_array().cloned().unwrap_or_default();
    servers.into_iter().find(|entry| entry["name"] == server).unwrap_or_default()["reason"].clone()
}

/// CASES.md 38.
#[tokio::test]
async fn an_authority_of_a_config_map_or_secret_is_trusted_and_each_check_that_fails_is_told_apart() {
    in_namespace("authority", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let (namespace, probe) = (&namespace, &probe);
        authority(namespace, &probe.ca().await).await;
        let mut renamed = corp("ConfigMap");
        renamed["serverName"] = json!("wrong-name.probe.test");
        let of_another = format!("it is for wrong-name.probe.test, not for probe.{}.svc", namespace.name);
        let cases = [
            ("map", 8443, corp("ConfigMap"), None),
            ("secret", 8443, corp("Secret"), None),
            ("renamed", 8445, renamed, None),
            (
                "expired",
                8444,
                corp("ConfigMap"),
                Some("it expired on Fri, 01 Jan 2021 00:00:00 GMT; renew it"),
            ),
            ("wrong-name", 8445, corp("ConfigMap"), Some(of_another.as_str())),
            ("incomplete", 8446, corp("Secret"), Some("the server sends no intermediate certificate")),
            (
                "unknown",
                8443,
                json!({}),
                Some("its CA is not known; set transport.http.tls.caRef to that CA"),
            ),
        ];
        join_all(
            cases.iter().map(|(name, port, tls, _)| tls_server(namespace, probe, name, *port, tls.clone())),
        )
        .await;
        session(namespace, "s", "alice", &cases.clone().map(|(name, ..)| name)).await;
        let token = namespace.token("alice").await;
        for (name, _, _, wrong) in &cases {
            let met = met(namespace, "s", name, &token).await;
            assert_eq!(met.is_some(), wrong.is_some(), "{name}: {met:?}");
            if let (Some((reason, text)), Some(wrong)) = (met, wrong) {
                assert_eq!(reason, "TLSUntrusted", "{name}: {text}");
                assert!(text.contains(wrong), "{name}: {text}");
                eventually(&format!("the status tells of {name}"), BOUND, || async {
                    (reason_of(namespace, name).await == "TLSUntrusted").then_some(())
                })
                .await;
            }
        }
        assert_eq!(
            probe.books().await.total("initialize"),
            3,
            "nothing goes to a server that is not trusted"
        );
    })
    .await;
}

/// CASES.md 38.
#[tokio::test]
async fn a_rotated_authority_is_taken_up_by_the_next_connection_and_costs_no_session() {
    in_namespace("rotated", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        authority(&namespace, &probe.ca().await).await;
        let servers = ["map", "secret"];
        futures::join!(
            tls_server(&namespace, &probe, "map", 8443, corp("ConfigMap")),
            tls_server(&namespace, &probe, "secret", 8443, corp("Secret")),
        );
        session(&namespace, "s", "alice", &servers).await;
        session(&namespace, "next", "alice", &servers).await;
        let token = namespace.token("alice").await;
        let mut living = Vec::new();
        for server in servers {
            let mut client = McpClient::new(&namespace.name, "s", server, &token);
            client.initialize().await;
            living.push(client);
        }
        let new = probe.rotate_ca().await;
        for client in &living {
            assert_eq!(client.call("echo", json!({"message": "old socket"})).await, "old socket");
        }
        for server in servers {
            let (reason, text) =
                met(&namespace, "next", server, &token).await.expect("it is not trusted yet");
            assert_eq!(reason, "TLSUntrusted", "{text}");
        }
        authority(&namespace, &new).await;
        for server in servers {
            // A ConfigMap is looked at once a minute.
            eventually(&format!("{server}: the new authority is trusted"), 2 * BOUND, || async {
                let met = met(&namespace, "next", server, &token).await;
                assert!(met.as_ref().is_none_or(|(reason, _)| reason == "TLSUntrusted"), "{met:?}");
                met.is_none().then_some(())
            })
            .await;
        }
        probe.tell("connections/drop", &json!({})).await;
        eventually("the sidecars know that their sockets are closed", BOUND, || async {
            let metrics = pod_metrics(&namespace.client, &namespace.name, POOL).await;
            (metrics.sum("berth_sidecar_connections") == 0.0).then_some(())
        })
        .await;
        for client in &living {
            let answer = client.call_as(&json!(1), "echo", json!({"message": "new socket"})).await;
            assert_eq!(answer["result"]["content"][0]["text"], "new socket", "{answer}");
        }
        assert_eq!(probe.books().await.total("initialize"), 4, "those that lived go on");
    })
    .await;
}

/// A redirect of whatever comes to that path.
async fn redirect(probe: &Probe, path: &str, location: &str) {
    let fault = json!({"status": 307, "headers": {"location": location}, "path": path});
    probe.set_faults(&json!({"any": fault})).await;
}

#[tokio::test]
async fn a_redirect_is_followed_within_the_origin_and_nothing_goes_to_another_one() {
    in_namespace("redirect", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let names = ["within", "plain", "good", "direct"];
        let plain = probe.url_at("http", 8081);
        join_all(names.map(async |name| {
            let url = if name == "direct" { plain.clone() } else { format!("{}/{name}", probe.url()) };
            mcp_server(&namespace, name, &url, json!({})).await
        }))
        .await;
        session(&namespace, "s", "alice", &names).await;
        let token = namespace.token("alice").await;
        let accepted = async |port: &str| {
            probe.books().await.0["connections"]["ports"][port]["accepted"].as_u64().unwrap_or(0)
        };
        // Two other ports of the same host, where somebody listens.
        for (port, location) in [("plain", plain.clone()), ("good", probe.url_at("https", 8443))] {
            redirect(&probe, &format!("/mcp/{port}"), &location).await;
            let (reason, text) = met(&namespace, "s", port, &token).await.expect("nobody is asked there");
            assert_eq!(reason, "ProtocolError", "{text}");
            assert!(text.contains("only redirects within"), "{text}");
            assert_eq!(accepted(port).await, 0, "{port}: nobody even dials there");
        }
        redirect(&probe, "/mcp/within", "/mcp").await;
        let mut client = McpClient::new(&namespace.name, "s", "within", &token);
        client.initialize().await;
        assert_eq!(client.call("echo", json!({"message": "on"})).await, "on");
        let books = probe.books().await;
        let calls: Vec<Value> = ["path", "status"]
            .map(|field| books.requests("tools/call").iter().map(|entry| entry[field].clone()).collect())
            .to_vec();
        assert_eq!(calls, [json!(["/mcp/within", "/mcp"]), json!([307, 200])]);
        assert!(books.journal().iter().all(|entry| entry["port"] == "main"), "{books:?}");

        // Whoever is meant to come to the other port is counted there.
        assert_eq!(met(&namespace, "s", "direct", &token).await, None);
        assert_eq!(accepted("plain").await, 1);
        ends_and_leaves_nothing(&namespace, "s").await;
        let sessions = probe.books().await.sessions();
        assert_eq!(sessions.len(), 2, "{sessions:?}");
        assert!(sessions.iter().all(|session| session["ended"] == "DELETE"), "{sessions:?}");
    })
    .await;
}

/// CASES.md 40.
#[tokio::test]
async fn a_server_is_asked_by_its_own_host_and_one_that_takes_localhost_alone_is_told_of() {
    in_namespace("host", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let own = format!("probe.{}.svc:8080", namespace.name);
        let by_address = format!("{}:8080", probe.address().await);
        let strict = json!({"status": 421, "unlessHost": [own, by_address]});
        probe.set_faults(&json!({"any": strict})).await;
        let (url, of_address) = (probe.url(), format!("http://{by_address}/mcp/address"));
        let (misdirected, forbidden) = (probe.url() + "/misdirected", probe.url() + "/forbidden");
        futures::join!(
            mcp_server(&namespace, "strict", &url, json!({})),
            mcp_server(&namespace, "address", &of_address, json!({})),
            mcp_server(&namespace, "misdirected", &misdirected, json!({})),
            mcp_server(&namespace, "forbidden", &forbidden, json!({}))
        );
        session(&namespace, "s", "alice", &["strict", "address", "misdirected", "forbidden"]).await;
        let token = namespace.token("alice").await;
        let url = format!("{}/{}/s/strict/mcp", gateway_url(), namespace.name);
        let bearer = format!("Bearer {token}");
        let headers = [
            ("authorization", bearer.as_str()),
            ("host", "mcp.corp.example"),
            ("origin", "http://localhost:6274"),
            ("x-forwarded-host", "mcp.corp.example"),
        ];
        let answer = post(&url, &headers, &initialize(&json!({}))).await;
        assert!(answer.messages()[0]["result"].is_object(), "{answer:?}");
        let books = probe.books().await;
        let seen = &books.sessions()[0]["lastHeaders"];
        assert_eq!(seen["host"], json!(own), "{seen}");
        for theirs in ["origin", "x-forwarded-host", "forwarded"] {
            assert_eq!(seen[theirs], Value::Null, "nothing of the client's own goes up: {seen}");
        }
        let mut client = McpClient::new(&namespace.name, "s", "address", &token);
        client.initialize().await;
        assert_eq!(client.call("echo", json!({"message": "on"})).await, "on");
        assert_eq!(probe.books().await.sessions()[1]["lastHeaders"]["host"], json!(by_address));

        for (server, status, expected, hint) in [
            ("misdirected", 421, "ProtocolError", "does not accept this Host; check its allowed hosts"),
            ("forbidden", 403, "Unauthorized", "and that the server's allowed hosts have this Host"),
        ] {
            let hosts = ["localhost:*", "127.0.0.1:*"];
            let local = json!({"status": status, "unlessHost": hosts, "path": format!("/mcp/{server}")});
            probe.set_faults(&json!({"initialize": local})).await;
            let (reason, text) =
                met(&namespace, "s", server, &token).await.expect("another Host is asked for");
            assert_eq!(reason, expected, "{text}");
            assert!(text.contains(hint), "{text}");
        }

        // The kubelet asks the sidecar by the pod's address, and the server never.
        let of_pool = ListParams::default().labels(POOL);
        let pods = eventually("all sidecars are Ready", BOUND, || async {
            let pods = namespace.api::<Pod>().list(&of_pool).await.unwrap().items;
            pods.iter().all(is_ready).then_some(pods)
        })
        .await;
        assert_eq!(pods.len(), 4);
        for pod in pods {
            let restarts = pod.status.and_then(|status| status.container_statuses).unwrap();
            assert!(restarts.iter().all(|container| container.restart_count == 0), "{restarts:?}");
        }
        assert_eq!(books.requests("initialize").len(), 1);
    })
    .await;
}

/// What the admin port of a gateway answers, asked by an Origin that may not call.
async fn health(client: &Client, pod: &str, path: &str) -> Result<String, kube::Error> {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}:8081/proxy/{path}", system_namespace());
    let request = Request::get(path).header("origin", "https://evil.example").body(Vec::new()).unwrap();
    client.request_text(request).await
}

/// CASES.md 40.
#[tokio::test]
async fn the_gateway_is_called_by_no_page_of_another_origin_and_its_health_asks_for_none() {
    in_namespace("origin", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        session(&namespace, "s", "alice", &["probe"]).await;
        let bearer = format!("Bearer {}", namespace.token("alice").await);
        let url = format!("{}/{}/s/probe/mcp", gateway_url(), namespace.name);
        // A page whose name was rebound to the gateway's address has the same Host and Origin.
        let rebound = [("host", "evil.example"), ("origin", "http://evil.example")];
        for headers in [&rebound[..], &[("origin", "https://evil.example")], &[("origin", "null")]] {
            let headers = [&[("authorization", bearer.as_str())][..], headers].concat();
            let answer = post(&url, &headers, &initialize(&json!({}))).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{headers:?}: {answer:?}");
            let error = &answer.messages()[0]["error"];
            assert_eq!(error["data"]["reason"], "ForbiddenOrigin", "{error}");
        }
        assert_eq!(probe.books().await.connections(), 0);
        for headers in [&[("origin", "http://localhost:6274")][..], &[]] {
            let headers = [&[("authorization", bearer.as_str())][..], headers].concat();
            let answer = post(&url, &headers, &initialize(&json!({}))).await;
            assert!(answer.messages()[0]["result"].is_object(), "{headers:?}: {answer:?}");
        }
        let pods: Api<Pod> = Api::namespaced(namespace.client.clone(), &system_namespace());
        let gateways = ListParams::default().labels("app.kubernetes.io/component=gateway");
        let ready: Vec<Pod> = pods.list(&gateways).await.unwrap().into_iter().filter(is_ready).collect();
        assert!(!ready.is_empty());
        for (pod, path) in ready.iter().flat_map(|pod| [(pod, "readyz"), (pod, "livez")]) {
            health(&namespace.client, &pod.name_any(), path).await.expect("health is told to whoever asks");
        }
    })
    .await;
}
