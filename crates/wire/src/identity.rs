//! Who is who between Berth's own parts: certificate names, ports and paths.

/// URI in the operator's client certificate: the only one that control accepts.
pub const OPERATOR_URI: &str = "berth://operator";
/// URI in the gateway's client certificate: the only one that the data path accepts.
pub const GATEWAY_URI: &str = "berth://gateway";
/// Port of a sidecar for control and data, mutual TLS only.
pub const SIDECAR_PORT: u16 = 8443;
/// Port of the operator for gateways, mutual TLS only.
pub const OPERATOR_PORT: u16 = 8443;
/// The DNS name in the operator's serving certificate.
pub const OPERATOR_DNS_NAME: &str = "operator.berth.internal";
/// Header of every control request: the transition count of the Lease that its sender holds, as a decimal number.
pub const TERM_HEADER: &str = "berth-term";
/// Header of the 503 of a server that has no place for the connection: the request was not looked at, and can be sent again.
pub const NOT_ACCEPTED_HEADER: &str = "berth-not-accepted";
/// First path segment of the data path: `/mcp/{session uid}`.
pub const DATA_PREFIX: &str = "mcp";

/// File of a certificate chain in a mounted identity (as in a Secret of type `kubernetes.io/tls`).
pub const CERT_FILE: &str = "tls.crt";
/// File of the private key in a mounted identity.
pub const KEY_FILE: &str = "tls.key";
/// File of the CA that the peers' certificates are checked against.
pub const CA_FILE: &str = "ca.crt";

/// The DNS name in the serving certificate of every sidecar of one `McpServer`. Peers check it instead of an address: pods come and go.
pub fn server_dns_name(server_uid: &str) -> String {
    format!("{server_uid}.sidecar.berth.internal")
}
