//! Mutual TLS of the pair, from a folder with `tls.crt`, `tls.key` and `ca.crt`.

use crate::Error;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;

/// DNS name in the certificate of both.
pub const NAME: &str = "pair.bench";

/// What the front dials with and what the back serves with: the versions and suites that Berth uses.
pub fn configs(folder: &Path) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), Error> {
    let read = |name: &str| CertificateDer::pem_file_iter(folder.join(name))?.collect::<Result<Vec<_>, _>>();
    let mut roots = RootCertStore::empty();
    for ca in read("ca.crt")? {
        roots.add(ca)?;
    }
    let (roots, chain) = (Arc::new(roots), read("tls.crt")?);
    let key = PrivateKeyDer::from_pem_file(folder.join("tls.key"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build()?;
    let client = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain.clone(), key.clone_key())?;
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)?;
    Ok((Arc::new(client), Arc::new(server)))
}
