//! A certificate, its key and the CA of its peers, replaceable while in use.
//!
//! Connections take the TLS configuration that is current when they begin, so a rotated certificate needs no restart and
//! cuts no running connection.

use arc_swap::ArcSwap;
use berth_wire::{CA_FILE, CERT_FILE, KEY_FILE};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Files of an identity's folder, in the order of [`Identity::from_pem`].
const FILES: [&str; 3] = [CERT_FILE, KEY_FILE, CA_FILE];

/// Why an identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file is missing or unreadable.
    #[error("cannot read {path}: {source}; mount the Secret that holds tls.crt, tls.key and ca.crt there")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A PEM text holds nothing usable.
    #[error("cannot read {what} from its PEM text: {message}")]
    Pem {
        /// Which of the three.
        what: &'static str,
        /// What the parser said; never the text itself.
        message: String,
    },
    /// The three do not fit together.
    #[error("certificate, key and CA do not fit together: {0}")]
    Unfit(String),
}

/// A live identity; clones share it.
#[derive(Clone)]
pub struct Identity {
    current: Arc<ArcSwap<Configs>>,
}

struct Configs {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Identity {
    /// An identity from PEM texts: certificate chain, private key, CA bundle of the peers.
    pub fn from_pem(cert: &[u8], key: &[u8], ca: &[u8]) -> Result<Self, IdentityError> {
        Ok(Self { current: Arc::new(ArcSwap::from_pointee(Configs::from_pem(cert, key, ca)?)) })
    }

    /// Replaces the identity for every connection begun from now on.
    pub fn replace_pem(&self, cert: &[u8], key: &[u8], ca: &[u8]) -> Result<(), IdentityError> {
        self.current.store(Arc::new(Configs::from_pem(cert, key, ca)?));
        Ok(())
    }

    /// An identity from a folder with `tls.crt`, `tls.key` and `ca.crt`.
    pub async fn from_dir(dir: &Path) -> Result<Self, IdentityError> {
        let [cert, key, ca] = read_dir(dir).await?;
        Self::from_pem(&cert, &key, &ca)
    }

    /// Looks at the folder every `every` until cancelled and takes up what changed. What cannot be used is logged and the
    /// identity in use stays.
    pub async fn follow_dir(&self, dir: &Path, every: Duration, cancel: CancellationToken) {
        let mut held = read_dir(dir).await.ok();
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
            let read = match read_dir(dir).await {
                Ok(read) => read,
                Err(error) => {
                    tracing::warn!(%error, "keeping the identity in use");
                    continue;
                }
            };
            if held.as_ref() == Some(&read) {
                continue;
            }
            match self.replace_pem(&read[0], &read[1], &read[2]) {
                Ok(()) => {
                    tracing::info!(dir = %dir.display(), "identity rotated");
                    held = Some(read);
                }
                Err(error) => tracing::warn!(%error, "keeping the identity in use"),
            }
        }
    }

    /// Configuration for serving: peers must show a certificate of the CA.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        self.current.load().server.clone()
    }

    /// Configuration for dialling: shows this identity's certificate.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        self.current.load().client.clone()
    }
}

impl Configs {
    fn from_pem(cert: &[u8], key: &[u8], ca: &[u8]) -> Result<Self, IdentityError> {
        let chain = certificates("the certificate", cert)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| IdentityError::Pem { what: "the private key", message: error.to_string() })?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates("the CA", ca)? {
            roots.add(certificate).map_err(unfit)?;
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(unfit)?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unfit)?;
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Connections are kept and used again. One that takes up another's secrets would not be checked by authorities that
        // were replaced meanwhile, and what could be taken up would have to be remembered.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(unfit)?;
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        client.resumption = Resumption::disabled();
        Ok(Self { server: Arc::new(server), client: Arc::new(client) })
    }
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|error| IdentityError::Pem { what, message: error.to_string() })?;
    if read.is_empty() {
        return Err(IdentityError::Pem { what, message: "it holds no certificate".to_owned() });
    }
    Ok(read)
}

fn unfit(error: impl std::fmt::Display) -> IdentityError {
    IdentityError::Unfit(error.to_string())
}

async fn read_dir(dir: &Path) -> Result<[Vec<u8>; 3], IdentityError> {
    let mut read = [const { Vec::new() }; 3];
    for (slot, name) in read.iter_mut().zip(FILES) {
        let path = dir.join(name);
        *slot = tokio::fs::read(&path)
            .await
            .map_err(|source| IdentityError::Read { path: path.display().to_string(), source })?;
    }
    Ok(read)
}
