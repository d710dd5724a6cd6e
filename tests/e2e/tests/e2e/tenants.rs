//! What the key of one tenant's sidecars opens elsewhere: nothing.

use berth_api::McpServer;
use berth_e2e::{Holder, POOL, Probe, in_namespace, leader, mcp_server, system_namespace};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;

#[tokio::test]
async fn with_the_key_of_one_tenants_sidecar_no_port_of_another_and_of_the_operator_is_opened() {
    in_namespace("tenants", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        let (client, a) = (&namespace.client, mcp_server(&namespace, "a", &probe.url(), json!({})).await);
        let b = mcp_server(&namespace, "b", &probe.url(), json!({})).await;
        let of = |server: &McpServer| format!("{POOL},berth.dev/server-uid={}", server.uid().unwrap());
        let pods = namespace.api::<Pod>().list(&ListParams::default().labels(&of(&b))).await.unwrap();
        let certificates = ListParams::default()
            .labels(&format!("berth.dev/role=certificate,berth.dev/server-uid={}", a.uid().unwrap()));
        let certificates = namespace.api::<Secret>().list(&certificates).await.unwrap();
        let stolen = Holder::of_secret(client, &namespace.name, &certificates.items[0].name_any()).await;
        let gateway = Holder::of_secret(client, &system_namespace(), "berth-gateway-tls").await;
        let dns_name = format!("{}.sidecar.berth.internal", b.uid().unwrap());
        let (_, operator) = leader(client).await;

        for path in ["/v1/sessions", "/mcp/some-session"] {
            let answer = stolen.get(client, &pods.items[0], 8443, &dns_name, path).await;
            assert!(answer.is_err(), "{path}: {answer:?}");
        }
        let answer = stolen.get(client, &operator, 8443, "operator.berth.internal", "/v1/placements").await;
        assert!(answer.is_err(), "{answer:?}");

        // The same requests by a gateway are answered, so that it was the key; and control is not for it either.
        let data = gateway.get(client, &pods.items[0], 8443, &dns_name, "/mcp/some-session").await.unwrap();
        assert!(data.contains(" 421 "), "the sidecar does not hold such a session: {data}");
        let control = gateway.get(client, &pods.items[0], 8443, &dns_name, "/v1/sessions").await.unwrap();
        assert!(control.contains(" 403 "), "{control}");
        let wake = "/v1/sessions/nobody/wake";
        let wake = gateway.get(client, &operator, 8443, "operator.berth.internal", wake).await.unwrap();
        assert!(wake.contains(" 405 "), "it is asked for by POST: {wake}");
    })
    .await;
}
