//! Fixtures for tests: an `McpServer` from a piece of YAML.

use crate::server::validate::{SecretState, ValidServer, validate};
use berth_api::McpServer;

/// A server whose spec has a transport and what `yaml` (one flow mapping) says beside it. Its name is not the product's, so
/// that swapped labels show.
pub fn server(yaml: &str) -> McpServer {
    let mut spec: serde_json::Value = serde_saphyr::from_str(yaml).unwrap();
    if spec.get("transport").is_none() {
        spec["transport"] = serde_json::json!({"type": "Http", "http": {"url": "http://everything.demo.svc:3001/mcp"}});
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
    validate(&server(yaml), SecretState::Missing).unwrap()
}
