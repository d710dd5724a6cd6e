use super::*;
use crate::memory_api::MemoryApi;
use axum::Router;
use axum::http::HeaderMap;
use berth_api::{AgentSession, McpServer};
use kube::CustomResourceExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/berth/leases/berth-operator";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A gateway that knows the token `good`, and no session.
async fn stand_in() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().fallback(|headers: HeaderMap| async move {
        if headers["authorization"] == "Bearer good" {
            (StatusCode::NOT_FOUND, r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"no"}}"#)
        } else {
            (StatusCode::UNAUTHORIZED, "")
        }
    });
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

fn installed(gateway: SocketAddr) -> MemoryApi {
    let api = MemoryApi::default();
    for crd in [AgentSession::crd(), McpServer::crd()] {
        let crd: Value = serde_json::to_value(crd).unwrap();
        let name = crd["metadata"]["name"].as_str().unwrap().to_owned();
        api.put(&format!("{DEFINITIONS}/{name}"), crd);
    }
    let renewed = Clock::SYSTEM.now().to_api().0.to_string().replace('Z', ".000000Z");
    let spec = json!({"holderIdentity": "op_1", "renewTime": renewed, "leaseDurationSeconds": 60});
    api.put(LEASE, json!({"metadata": {"name": "berth-operator"}, "spec": spec}));
    let spec = json!({"clusterIP": gateway.ip(), "ports": [{"port": gateway.port()}]});
    api.put(
        "/api/v1/namespaces/berth/services/berth-gateway",
        json!({"metadata": {"name": "x"}, "spec": spec}),
    );
    api
}

/// Settings with that token, in a file that goes with the guard.
fn options(token: &str) -> (Options, Guard) {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("berth-check-{}-{number}", std::process::id()));
    std::fs::write(&file, format!("{token}\n")).unwrap();
    let options = Options {
        namespace: "berth".into(),
        gateway_service: "berth-gateway".into(),
        gateway_host: None,
        token_file: file.clone(),
        // One attempt.
        timeout: Duration::ZERO,
    };
    (options, Guard(file))
}

struct Guard(PathBuf);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn an_install_that_works_passes() {
    let api = installed(stand_in().await);
    let (options, _guard) = options("good");
    run(&options, &api.client(), Clock::SYSTEM).await.unwrap();
    assert!(api.writes().is_empty());
}

#[tokio::test]
async fn what_does_not_work_is_named_with_a_remedy() {
    let gateway = stand_in().await;
    let (api, lease, definition) = (installed(gateway), installed(gateway), installed(gateway));
    lease.remove(LEASE);
    definition.remove(&format!("{DEFINITIONS}/mcpservers.berth.dev"));
    let rows = [
        (&api, "bad", "refuses a token of this cluster"),
        (&lease, "good", "no operator leads"),
        (&definition, "good", "definition of McpServer"),
    ];
    for (api, token, wanted) in rows {
        let (options, _guard) = options(token);
        let said = run(&options, &api.client(), Clock::SYSTEM).await.unwrap_err().to_string();
        assert!(said.contains(wanted), "{said}");
    }
}

#[test]
fn only_the_gateways_own_answer_counts() {
    let judged = |status: u16, body: &str| {
        judge(&http::Answer { status: StatusCode::from_u16(status).unwrap(), body: body.into() })
    };
    assert_eq!(judged(404, r#"{"code":-32001}"#), Ok(()));
    for (status, body, wanted) in [
        (404, "default backend", "something else"),
        (200, "-32001", "something else"),
        (403, "host", "allowedHosts"),
        (503, "starting", "starting"),
    ] {
        let said = judged(status, body).unwrap_err();
        assert!(said.contains(wanted), "{said}");
    }
}
