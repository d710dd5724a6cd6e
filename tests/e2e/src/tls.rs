//! Requests to a pod's port over mutual TLS, as somebody who holds a certificate of Berth's CA.

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{Api, Client, ResourceExt};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

/// A certificate and its key, and the CA that peers are checked against.
pub struct Holder(Arc<ClientConfig>);

impl Holder {
    /// Whoever has read that Secret.
    pub async fn of_secret(client: &Client, namespace: &str, name: &str) -> Self {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let secret = secrets.get(name).await.unwrap();
        let file = |name: &str| secret.data.as_ref().unwrap()[name].0.clone();
        let chain = CertificateDer::pem_slice_iter(&file("tls.crt")).collect::<Result<Vec<_>, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(&file("tls.key")).unwrap();
        let mut roots = RootCertStore::empty();
        for ca in CertificateDer::pem_slice_iter(&file("ca.crt")) {
            roots.add(ca.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        Self(Arc::new(config.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap()))
    }

    /// Sends `GET path` to a port of a pod whose certificate must name `dns_name`; the status line of the answer, or why there
    /// is none.
    pub async fn get(
        &self,
        client: &Client,
        pod: &Pod,
        port: u16,
        dns_name: &str,
        path: &str,
    ) -> Result<String, String> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap());
        let mut forward =
            pods.portforward(&pod.name_any(), &[port]).await.expect("the pod's port can be reached");
        let stream = forward.take_stream(port).expect("the port was asked for");
        let name = ServerName::try_from(dns_name.to_owned()).unwrap();
        let mut tls =
            TlsConnector::from(self.0.clone()).connect(name, stream).await.map_err(|e| e.to_string())?;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: pod\r\nberth-term: 1\r\nconnection: close\r\n\r\n");
        tls.write_all(request.as_bytes()).await.map_err(|e| e.to_string())?;
        let mut answer = Vec::new();
        // A refused client certificate shows here: in TLS 1.3 the handshake is over before it is judged.
        tls.read_to_end(&mut answer).await.map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&answer);
        text.lines().next().map(str::to_owned).ok_or_else(|| "closed without an answer".to_owned())
    }
}
