//! What a company's network asks of an install: proxies to what is outside of the cluster (CASES.md 39), and the names that its
//! gateway may be called by (CASES.md 40).

use crate::helm::Values;
use berth_e2e::{
    Answer, McpClient, Probe, Proxy, TestNamespace, eventually, gateway_url, in_namespace, initialize,
    is_ready, mcp_server, post, session, system_namespace, used_session,
};
use futures::future::join_all;
use http::StatusCode;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// A name that only a proxy can tell the address of.
const OUTSIDE: &str = "mcp.outside.test";

/// The answer to the first request of `session` to `server`.
async fn connects(namespace: &TestNamespace, session: &str, server: &str, token: &str) -> Value {
    McpClient::new(&namespace.name, session, server, token).try_initialize(&json!({})).await
}

/// Servers whose upstream is inside of the cluster, or is to be reached directly all the same: each name and URL. What is at the
/// first five is the probe, at the others nothing.
async fn direct(namespace: &TestNamespace, probe: &Probe) -> Vec<(&'static str, String)> {
    let service = namespace.api::<Service>().get("probe").await.unwrap();
    let address = service.spec.and_then(|spec| spec.cluster_ip).expect("a Service has an address");
    let of = &namespace.name;
    vec![
        ("short", "http://probe:8080/mcp".to_owned()),
        ("service", format!("http://probe.{of}.svc:8080/mcp")),
        ("whole", format!("http://probe.{of}.svc.cluster.local:8080/mcp")),
        ("network", format!("http://{address}:8080/mcp")),
        ("pod", format!("http://{}:8080/mcp", probe.address().await)),
        ("loopback", "http://127.0.0.1:9/mcp".to_owned()),
        ("loopback-v6", "http://[::1]:9/mcp".to_owned()),
        ("localhost", "http://localhost:9/mcp".to_owned()),
        ("suffix", "http://mcp.direct.test/mcp".to_owned()),
    ]
}

/// The outside is reached through the proxy, and all else directly.
async fn is_proxied(namespace: &TestNamespace, probe: &Probe, proxy: &Proxy, token: &str) {
    namespace
        .create::<ConfigMap>(json!({"metadata": {"name": "corp"}, "data": {"ca.crt": probe.ca().await}}))
        .await;
    let tls = json!({
        "caRef": {"kind": "ConfigMap", "name": "corp", "key": "ca.crt"},
        "serverName": format!("probe.{}.svc", namespace.name),
    });
    let url = format!("https://{OUTSIDE}/mcp");
    let secure = json!({"transport": {"type": "Http", "http": {"url": url, "tls": tls}}});
    let direct = direct(namespace, probe).await;
    let plain = format!("http://{OUTSIDE}/mcp");
    let inside = direct.iter().map(|(name, url)| mcp_server(namespace, name, url, json!({})));
    futures::join!(
        mcp_server(namespace, "outside", &plain, json!({})),
        mcp_server(namespace, "secure", &url, secure),
        join_all(inside)
    );
    let names: Vec<&str> =
        ["outside", "secure"].into_iter().chain(direct.iter().map(|(name, _)| *name)).collect();
    session(namespace, "s", "alice", &names).await;
    for name in &names {
        let answer = connects(namespace, "s", name, token).await;
        let is_there = !["loopback", "loopback-v6", "localhost", "suffix"].contains(name);
        assert_eq!(answer["result"].is_object(), is_there, "{name}: {answer}");
        if !is_there {
            let error = &answer["error"];
            assert_eq!(error["data"]["reason"], "UpstreamUnreachable", "{name}: {error}");
            assert!(!error["message"].as_str().unwrap().contains(&proxy.authority()), "{name}: {error}");
        }
    }
    // All that the proxy was ever asked for, by whatever part of Berth.
    let asked: BTreeSet<String> = proxy.asked().into_iter().collect();
    let outside = [443, 80].map(|port| format!("CONNECT {OUTSIDE}:{port} HTTP/1.1"));
    assert_eq!(asked, BTreeSet::from(outside));

    proxy.answer_with(407);
    session(namespace, "refused", "alice", &["outside"]).await;
    let error = connects(namespace, "refused", "outside", token).await["error"].clone();
    assert_eq!(error["data"]["reason"], "UpstreamUnreachable", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&proxy.authority()) && message.contains("authentication (407)"), "{message}");
}

/// Names that the gateway may be called by, and pages that may call it.
const HOSTS: &str = "gateway.allowedHosts={127.0.0.1,mcp.corp.example}";
const ORIGINS: &str = "gateway.allowedOrigins={https://app.example}";

async fn asks(url: &str, token: &str, host: &str, origin: Option<&str>) -> Answer {
    let bearer = format!("Bearer {token}");
    let mut headers = vec![("authorization", bearer.as_str()), ("host", host)];
    headers.extend(origin.map(|origin| ("origin", origin)));
    post(url, &headers, &initialize(&json!({}))).await
}

/// Who names another host, or is a page of another origin, is refused; the kubelet, which names a pod's address, is not.
async fn hosts_are_checked(client: &Client, url: &str, token: &str) {
    for (host, origin, refused) in [
        ("mcp.corp.example", None, None),
        ("mcp.corp.example:8443", Some("https://mcp.corp.example:8443"), None),
        ("mcp.corp.example", Some("https://app.example"), None),
        ("mcp.corp.example", Some("http://127.0.0.1:6274"), None),
        ("mcp.corp.example", Some("https://evil.example"), Some("ForbiddenOrigin")),
        ("evil.example", None, Some("ForbiddenHost")),
        ("evil.example", Some("https://evil.example"), Some("ForbiddenHost")),
    ] {
        let answer = asks(url, token, host, origin).await;
        let message = &answer.messages()[0];
        match refused {
            None => assert!(message["result"].is_object(), "{host}, {origin:?}: {answer:?}"),
            Some(reason) => {
                assert_eq!(answer.status, StatusCode::FORBIDDEN, "{host}, {origin:?}: {answer:?}");
                assert_eq!(message["error"]["data"]["reason"], reason, "{host}, {origin:?}: {answer:?}");
            }
        }
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), &system_namespace());
    let gateways = ListParams::default().labels("app.kubernetes.io/component=gateway");
    eventually("the gateways are Ready, and only they are there", Duration::from_mins(1), || async {
        let found = pods.list(&gateways).await.unwrap().items;
        (!found.is_empty() && found.iter().all(is_ready)).then_some(())
    })
    .await;
    for pod in pods.list(&gateways).await.unwrap() {
        let containers = pod.status.and_then(|status| status.container_statuses).unwrap();
        assert!(containers.iter().all(|container| container.restart_count == 0), "{containers:?}");
    }
}

#[tokio::test]
async fn proxies_and_names_of_the_gateway_are_taken_from_the_charts_values() {
    in_namespace("network", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let token = namespace.token("alice").await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        used_session(&namespace, "before", &token).await;
        let mut before = McpClient::new(&namespace.name, "before", "probe", &token);
        before.initialize().await;

        let ports = [(80, 8080), (443, 8443)];
        let proxy = Proxy::open(&namespace.client, probe.address().await, &ports).await;
        let (http, https) = (format!("proxy.http={}", proxy.url()), format!("proxy.https={}", proxy.url()));
        let direct = format!("proxy.noProxy=10.96.0.0/12\\,.direct.test\\,{}", probe.address().await);
        let more = ["--set", &http, "--set", &https, "--set", &direct, "--set", HOSTS, "--set", ORIGINS];
        Values::of_release()
            .await
            .with(&more, async {
                Box::pin(is_proxied(&namespace, &probe, &proxy, &token)).await;
                let url = format!("{}/{}/before/probe/mcp", gateway_url(), namespace.name);
                Box::pin(hosts_are_checked(&namespace.client, &url, &token)).await;
                assert_eq!(before.call("echo", json!({"message": "as before"})).await, "as before");
                // One of each upstream that is there: that of before lives on, in a pod without a proxy.
                assert_eq!(probe.books().await.total("initialize"), 1 + 2 + 5);
            })
            .await;
    })
    .await;
}
