//! The process from its start to its end.

use crate::cli::Args;
use crate::gateway::{Ending, Gateway, Reviewers};
use crate::handle;
use crate::index::Index;
use crate::kube_review::KubeReviewer;
use crate::metrics::Metrics;
use crate::watch;
use berth_net::admin::{self, Readiness};
use berth_net::client::PeerClient;
use berth_net::identity::Identity;
use berth_net::serve::serve;
use kube::{Client, Config};
use prometheus_client::registry::Registry;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Most connections to the admin port at once.
const ADMIN_CONNECTIONS: usize = 64;
/// How often the identity's files are looked at.
const IDENTITY_PERIOD: Duration = Duration::from_secs(10);
/// How often missing identity files are looked for at the start.
const IDENTITY_RETRY: Duration = Duration::from_secs(1);

/// Why the process cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Signals cannot be received.
    #[error("cannot listen for signals: {0}")]
    Signal(#[source] io::Error),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another with --listen or --admin-listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// There is no way to the API server.
    #[error("cannot find the API server: {0}; run in a pod with a service account, or set KUBECONFIG")]
    Config(#[source] kube::config::InferConfigError),
    /// The client to the API server cannot be made.
    #[error("cannot make a client to the API server: {0}")]
    Client(#[source] kube::Error),
}

/// Runs until `shutdown` is cancelled and running calls have finished, or had their time.
pub async fn run(args: Args, shutdown: CancellationToken) -> Result<(), Error> {
    let config = Config::infer().await.map_err(Error::Config)?;
    run_with(args, config, shutdown).await
}

/// [`run`] with a given way to the API server.
pub async fn run_with(args: Args, config: Config, shutdown: CancellationToken) -> Result<(), Error> {
    let (metrics, readiness) = (Metrics::default(), Readiness::default());
    let admin = serve_admin(&args, &metrics, readiness.clone()).await?;
    let listener = listen(args.listen).await?;
    let Some(identity) = wait_for_identity(&args.tls_dir, &shutdown).await else { return Ok(()) };
    let index = Arc::new(Index::default());
    let ending = Ending::default();
    let watching = tokio::spawn(watch::follow(client(config.clone())?, index.clone(), ending.over.clone()));
    let following = {
        let (identity, dir, over) = (identity.clone(), args.tls_dir.clone(), ending.over.clone());
        tokio::spawn(async move { identity.follow_dir(&dir, IDENTITY_PERIOD, over).await })
    };
    let gateway = Gateway::new(
        args.settings(),
        index.clone(),
        reviewers(config, &args.audience)?,
        PeerClient::new(identity),
        metrics,
        ending.clone(),
    );
    let app = handle::router(Arc::new(gateway));
    let serving = tokio::spawn(serve(listener, None, app, args.max_connections, ending.begun.clone()));
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = index.synced() => {
            readiness.set(true);
            tracing::info!(listen = %args.listen, "ready");
            shutdown.cancelled().await;
        }
    }
    readiness.set(false);
    end(&ending, args.drain, serving).await;
    admin.cancel();
    // Both end with `ending.over`; a panic in one of them was logged when it happened.
    let _ = tokio::join!(watching, following);
    tracing::info!("ended");
    Ok(())
}

/// Closes streams, lets calls finish within `drain`, cuts what is left.
async fn end(ending: &Ending, drain: Duration, mut serving: tokio::task::JoinHandle<()>) {
    ending.begun.cancel();
    let drained = tokio::time::timeout(drain, &mut serving).await;
    ending.over.cancel();
    if drained.is_err() {
        tracing::warn!(?drain, "calls still running are cut");
        let _ = serving.await;
    }
}

async fn serve_admin(
    args: &Args,
    metrics: &Metrics,
    readiness: Readiness,
) -> Result<CancellationToken, Error> {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let listener = listen(args.admin_listen).await?;
    let end = CancellationToken::new();
    let app = admin::router(Arc::new(registry), readiness);
    tokio::spawn(serve(listener, None, app, ADMIN_CONNECTIONS, end.clone()));
    Ok(end)
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

/// The identity, as soon as its files are there: the operator may issue them after this process has started. `None` when
/// the process is to end first.
async fn wait_for_identity(dir: &Path, shutdown: &CancellationToken) -> Option<Identity> {
    let mut told = String::new();
    loop {
        match Identity::from_dir(dir).await {
            Ok(identity) => return Some(identity),
            Err(error) => {
                let text = error.to_string();
                if text != told {
                    tracing::warn!(%error, "waiting for the TLS identity");
                    told = text;
                }
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return None,
            () = tokio::time::sleep(IDENTITY_RETRY) => {}
        }
    }
}

fn reviewers(mut config: Config, audience: &str) -> Result<Reviewers, Error> {
    // A review is bounded as a whole, so a retry within it would only hide why it failed.
    config.default_retry = false;
    let reviewer = Arc::new(KubeReviewer::new(client(config)?, audience.to_owned()));
    Ok(Reviewers { tokens: reviewer.clone(), accesses: reviewer })
}

fn client(config: Config) -> Result<Client, Error> {
    Client::try_from(config).map_err(Error::Client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_gateway_without_identity_files_waits_and_can_still_be_ended() {
        let shutdown = CancellationToken::new();
        let missing = Path::new("/nonexistent/berth");
        let mut waiting = std::pin::pin!(wait_for_identity(missing, &shutdown));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut waiting).await.is_err(), "it waits");
        shutdown.cancel();
        assert!(waiting.await.is_none());
    }
}
