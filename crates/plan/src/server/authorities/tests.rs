//! Each kind of object, in every state.

use super::*;
use crate::server::fixture::{AUTHORITY, secret, server};
use serde_json::json;

fn named(kind: &str) -> McpServer {
    server(&format!(
        "{{transport: {{type: Http, http: {{url: 'https://a.test/mcp', tls: {{caRef: {{kind: {kind}, name: token, key: value}}}}}}}}}}"
    ))
}

fn config_map(key: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": "token"}, "data": {key: value}})).unwrap()
}

fn refused(kind: &str, state: CaState<'_>) -> (Reason, bool, String) {
    let refusal = resolve(&named(kind), state).unwrap_err();
    (refusal.reason(), refusal.is_unseen(), refusal.to_string())
}

#[test]
fn certificates_come_from_either_kind_and_the_name_beside_them() {
    let secret = secret("server", "value", AUTHORITY);
    let map = config_map("value", AUTHORITY);
    let wanted = Some(UpstreamTls { ca_pem: Some(AUTHORITY.into()), server_name: None });
    let from_secret = CaState::Secret(SecretState::Present(&secret));
    assert_eq!(resolve(&named("Secret"), from_secret), Ok(wanted.clone()));
    assert_eq!(resolve(&named("ConfigMap"), CaState::ConfigMap(&map)), Ok(wanted));
    assert_eq!(resolve(&server("{}"), CaState::Missing), Ok(None));
    let yaml = "{transport: {type: Http, http: {url: 'https://a.test/mcp', tls: {serverName: b.test}}}}";
    let name = Some(UpstreamTls { ca_pem: None, server_name: Some("b.test".into()) });
    assert_eq!(resolve(&server(yaml), CaState::Missing), Ok(name));
}

#[test]
fn what_is_missing_is_named_with_the_remedy() {
    let text = "secret \"token\" does not exist; create it with the CA's certificates as PEM in key \"value\" and the label berth.dev/credential=server, or change spec.transport.http.tls.caRef";
    let missing = (Reason::RefNotFound, true, text.to_owned());
    assert_eq!(refused("Secret", CaState::Secret(SecretState::Missing)), missing);
    let text = "configmap \"token\" does not exist; create it with the CA's certificates as PEM in key \"value\", or change spec.transport.http.tls.caRef";
    assert_eq!(refused("ConfigMap", CaState::Missing), (Reason::RefNotFound, true, text.to_owned()));
    let text = "configmap \"token\" has no key \"value\"; add it or change spec.transport.http.tls.caRef.key";
    let map = config_map("other", AUTHORITY);
    assert_eq!(refused("ConfigMap", CaState::ConfigMap(&map)), (Reason::RefNotFound, false, text.to_owned()));
}

#[test]
fn a_secret_needs_the_label_of_a_server() {
    let session = secret("session", "value", AUTHORITY);
    let text = "secret \"token\" is not labelled berth.dev/credential=server; label it to allow its use here";
    for state in [SecretState::Unlabelled, SecretState::Present(&session)] {
        let refused = refused("Secret", CaState::Secret(state));
        assert_eq!(refused, (Reason::RefNotPermitted, true, text.to_owned()));
    }
}

#[test]
fn what_is_no_list_of_certificates_is_refused_and_says_why() {
    let long = "x".repeat(MAX_BYTES + 1);
    let key = format!("{AUTHORITY}-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n");
    let broken = format!("{AUTHORITY}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    for (value, problem) in [
        ("", "holds no certificate"),
        ("hello", "holds no certificate"),
        (&long, "holds more than 256 KiB"),
        (&key, "holds a private key, which does not belong there"),
        (&broken, "holds a certificate that cannot be read"),
        (
            "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n",
            "holds a certificate that cannot be read",
        ),
    ] {
        let map = config_map("value", value);
        let text = format!(
            "key \"value\" of configmap \"token\" {problem}; write the CA's certificates there as PEM"
        );
        assert_eq!(refused("ConfigMap", CaState::ConfigMap(&map)), (Reason::InvalidCredential, false, text));
    }
    let two = format!("{AUTHORITY}{AUTHORITY}");
    assert!(check(two.as_bytes()).is_ok());
}
