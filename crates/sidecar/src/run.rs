//! The process: identity, sockets, signals.

use crate::args::Args;
use crate::budget::Budget;
use crate::metrics::Metrics;
use crate::sidecar::Sidecar;
use crate::upstream::{Dialer, DialerError, Proxies, ProxyError};
use berth_net::identity::{Identity, IdentityError};
use berth_net::{admin, serve, shutdown};
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How often the identity's files are looked at.
const FOLLOW: Duration = Duration::from_secs(10);
/// Connections of gateways at once: operators have room of their own, see [`serve::serve`].
const MAX_CONNECTIONS: usize = 4096;
/// Connections to health and metrics at once.
const MAX_ADMIN_CONNECTIONS: usize = 32;

/// Why the sidecar cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No threads.
    #[error("cannot start threads: {0}; give fewer by --worker-threads")]
    Runtime(std::io::Error),
    /// No identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// No way to dial upstreams.
    #[error(transparent)]
    Dialer(#[from] DialerError),
    /// A proxy that cannot be used.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// No socket.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// No signals.
    #[error("cannot wait for signals: {0}")]
    Signal(std::io::Error),
}

/// Runs a sidecar until a signal asks it to end and its sessions have ended.
pub async fn run(args: Args) -> Result<(), RunError> {
    let asked_to_end = shutdown::on_signal().map_err(RunError::Signal)?;
    let stop = CancellationToken::new();
    let identity = Identity::from_dir(&args.tls_dir).await?;
    let mut metrics_registry = Registry::default();
    let metrics = Metrics::register(&mut metrics_registry);
    let budget = Budget::mebibytes(args.buffer_mib);
    let dialer = Arc::new(Dialer::system()?.through(proxies().await?));
    let sidecar = Sidecar::new(args.server(), args.slots, dialer, budget, metrics, stop.clone());
    let readiness = admin::Readiness::default();

    let listener = bind(args.listen).await?;
    let admin_listener = bind(args.admin_listen).await?;
    let (listen, admin_listen) = (listener.local_addr().ok(), admin_listener.local_addr().ok());
    let follow = {
        let (identity, dir, stop) = (identity.clone(), args.tls_dir.clone(), stop.clone());
        async move { identity.follow_dir(&dir, FOLLOW, stop).await }
    };
    let admin = admin::router(Arc::new(metrics_registry), readiness.clone());
    let admin = serve::serve_latest(admin_listener, admin, MAX_ADMIN_CONNECTIONS, stop.clone());
    let app = serve::serve(listener, Some(identity), sidecar.clone(), MAX_CONNECTIONS, stop.clone());
    let end = async {
        asked_to_end.cancelled().await;
        readiness.set(false);
        sidecar.shut_down().await;
        stop.cancel();
    };
    readiness.set(true);
    let Args { server_name, revision, slots, .. } = &args;
    tracing::info!(server = server_name, revision, slots, ?listen, ?admin_listen, "serving");
    tokio::join!(follow, admin, app, end);
    tracing::info!("ended");
    Ok(())
}

/// The proxies that the environment names.
async fn proxies() -> Result<Proxies, ProxyError> {
    let resolv_conf = tokio::fs::read_to_string("/etc/resolv.conf").await.unwrap_or_default();
    let proxies = Proxies::read(|name| std::env::var(name).ok(), &resolv_conf)?;
    for entry in proxies.not_understood() {
        tracing::warn!(
            entry,
            "NO_PROXY has an entry that is no host, suffix, address or CIDR; it counts for nothing"
        );
    }
    Ok(proxies)
}

async fn bind(address: SocketAddr) -> Result<TcpListener, RunError> {
    TcpListener::bind(address).await.map_err(|source| RunError::Listen { address, source })
}
