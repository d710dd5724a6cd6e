//! Fixtures for tests: an `McpServer` from a piece of YAML.

use crate::name;
use crate::pod::{Life, Occupancy, PoolPod};
use crate::server::authorities::CaState;
use crate::server::credential::SecretState;
use crate::server::validate::{ValidServer, validate};
use berth_api::McpServer;
use k8s_openapi::api::core::v1::Secret;

/// The certificate of a CA, as PEM.
pub const AUTHORITY: &str = include_str!("authority.pem");

/// A server whose spec has a transport and what `yaml` (one flow mapping) says beside it. Its name is not the product's, so
/// that swapped labels show.
pub fn server(yaml: &str) -> McpServer {
    let mut spec: serde_json::Value = serde_saphyr::from_str(yaml).unwrap();
    if spec.get("transport").is_none() {
        spec["transport"] =
            serde_json::json!({"type": "Http", "http": {"url": "http://everything.demo.svc:3001/mcp"}});
    }
    serde_json::from_value(serde_json::json!({
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "McpServer",
        "metadata": {"name": "everything", "namespace": "demo", "uid": "0a1b-server", "generation": 3},
        "spec": spec,
    }))
    .unwrap()
}

/// The same, gone through the real validation.
pub fn valid(yaml: &str) -> ValidServer {
    validate(&server(yaml), SecretState::Missing, CaState::Missing).unwrap()
}

/// The Secret `token` with one key, and what its label says.
pub fn secret(label: &str, key: &str, value: &str) -> Secret {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "token", "labels": {"berth.dev/credential": label}},
        "data": {key: k8s_openapi::ByteString(value.as_bytes().to_vec())},
    }))
    .unwrap()
}

/// A ready pod of the fixture's current revision, whose sidecar has told everything.
pub fn pool_pod(ordinal: u32, slots: u32, held: &[&str]) -> PoolPod {
    let server = valid("{}");
    PoolPod {
        name: name::pool_pod(&server.key.name, &server.key.uid, &server.key.revision, ordinal),
        uid: format!("pod-{ordinal}"),
        address: Some("10.0.0.1".into()),
        revision: server.key.revision,
        slots,
        image: IMAGE.into(),
        life: Life::Ready,
        trouble: None,
        locked: false,
        occupancy: Occupancy {
            synced: true,
            silent: std::time::Duration::ZERO,
            held: held.iter().map(|uid| (*uid).to_owned()).collect(),
            used: false,
        },
    }
}

/// Image that the fixture's pods have.
pub const IMAGE: &str = "berth:1";
