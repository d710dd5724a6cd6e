//! How an upstream's certificate is checked.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the upstream's certificate is checked. There is no way not to check it.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// Certificates of authorities that are trusted beside the public ones. A change of the object is taken up within about a minute, by the next connection to the upstream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_ref: Option<CaRef>,
    /// The name that the certificate must have, if it is another than the host of the URL, for example mcp.corp.example.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$"))]
    pub server_name: Option<String>,
}

/// A key of a ConfigMap or Secret in the same namespace.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CaRef {
    /// ConfigMap or Secret. A Secret must carry the label `berth.dev/credential: server`.
    pub kind: CaKind,
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in its data, for example ca.crt, that holds one or more certificates as PEM, at most 256 KiB.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// Kinds of objects that hold certificates of authorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CaKind {
    /// Certificates are no secret: a ConfigMap will do.
    ConfigMap,
    /// For those that something else writes into a Secret.
    Secret,
}
