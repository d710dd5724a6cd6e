//! The process from its start to its end.

use crate::cli::Args;
use crate::gateway::{Ending, Gateway, Peers, Reviewers};
use crate::handle;
use crate::index::Index;
use crate::kube_review::KubeReviewer;
use crate::leader::stream::Placements;
use crate::leader::wake::Waker;
use crate::leader::{Leader, lease};
use crate::metrics::Metrics;
use crate::watch;
use berth_net::admin::{self, Readiness};
use berth_net::client::PeerClient;
use berth_net::identity::Identity;
use berth_net::serve::{serve_and_drain, serve_latest};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
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
/// How long connections have to close once their calls were cut.
const CLOSING: Duration = Duration::from_secs(5);

/// Why the process cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Threads cannot be started.
    #[error("cannot start threads: {0}; give fewer by --worker-threads")]
    Runtime(#[source] io::Error),
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
    /// A task has stopped without being asked to, by a fault of ours.
    #[error("the {0} has stopped, which it never may; report the log lines before this one")]
    Stopped(&'static str),
}

/// Runs until `shutdown` is cancelled and running calls have finished, or had their time. Calls are accepted for a moment
/// longer than the process is ready: whoever routes to it learns of its end only after that.
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
    let (index, leader, ending) = (Arc::new(Index::default()), Leader::default(), Ending::default());
    let (client, sidecars) = (client(&config)?, PeerClient::new(identity.clone()));
    let placements = Placements { client: sidecars.clone(), index: index.clone(), metrics: metrics.clone() };
    let gateway = Gateway::new(
        args.settings(),
        index.clone(),
        reviewers(client.clone(), &args.audience),
        Peers { waker: Waker::new(sidecars.clone(), leader.clone()), sidecars },
        metrics,
        ending.clone(),
    );
    let app = handle::App(Arc::new(gateway));
    let (dir, over) = (args.tls_dir.clone(), ending.over.clone());
    let namespace = args.operator_namespace.clone().filter(|namespace| !namespace.is_empty());
    let tasks = Tasks {
        watching: start(watch::follow(client.clone(), index.clone(), over.clone())),
        leading: start(lead(client, namespace, leader, placements, over.clone())),
        following: start(async move { identity.follow_dir(&dir, IDENTITY_PERIOD, over).await }),
        serving: start(serve_and_drain(
            listener,
            None,
            app,
            args.max_connections,
            args.drain + CLOSING,
            ending.begun.clone(),
        )),
    };
    let outcome = work(&tasks, &index, &readiness, &shutdown).await;
    if index.is_synced() {
        tokio::time::sleep(args.shutdown_delay).await;
    }
    end(&ending, args.drain, &tasks).await;
    admin.cancel();
    tracing::info!("ended");
    outcome
}

/// A task that may be awaited more than once; a panic in it was logged when it happened.
type Task = Shared<BoxFuture<'static, ()>>;

fn start(work: impl Future<Output = ()> + Send + 'static) -> Task {
    tokio::spawn(work).map(drop).boxed().shared()
}

/// What runs as long as the process.
struct Tasks {
    watching: Task,
    leading: Task,
    following: Task,
    serving: Task,
}

/// Lets the tasks run until `shutdown`, ready as soon as the index is complete. Not ready any more when this returns.
async fn work(
    tasks: &Tasks,
    index: &Index,
    readiness: &Readiness,
    shutdown: &CancellationToken,
) -> Result<(), Error> {
    let until_synced = async {
        index.synced().await;
        readiness.set(true);
        tracing::info!("ready");
        std::future::pending::<()>().await;
    };
    let outcome = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        () = tasks.watching.clone() => Err(Error::Stopped("watch of sessions")),
        () = tasks.leading.clone() => Err(Error::Stopped("watch of the leader")),
        () = tasks.following.clone() => Err(Error::Stopped("watch of the identity's files")),
        () = tasks.serving.clone() => Err(Error::Stopped("server of calls")),
        () = until_synced => Ok(()),
    };
    readiness.set(false);
    outcome
}

/// Closes streams, lets calls finish within `drain`, cuts what is left.
async fn end(ending: &Ending, drain: Duration, tasks: &Tasks) {
    ending.begun.cancel();
    let drained = tokio::time::timeout(drain, tasks.serving.clone()).await;
    ending.over.cancel();
    if drained.is_err() {
        tracing::warn!(?drain, "calls still running are cut");
    }
    futures::join!(
        tasks.serving.clone(),
        tasks.watching.clone(),
        tasks.leading.clone(),
        tasks.following.clone()
    );
}

/// Takes what the leading operator says until cancelled; without a namespace to look for it in, nothing.
async fn lead(
    client: Client,
    namespace: Option<String>,
    leader: Leader,
    placements: Placements,
    cancel: CancellationToken,
) {
    let Some(namespace) = namespace else { return cancel.cancelled().await };
    futures::join!(
        lease::follow(client, &namespace, &leader, cancel.clone()),
        placements.follow(&leader, cancel.clone())
    );
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
    tokio::spawn(serve_latest(listener, app, ADMIN_CONNECTIONS, end.clone()));
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

fn reviewers(client: Client, audience: &str) -> Reviewers {
    let reviewer = Arc::new(KubeReviewer::new(client, audience.to_owned()));
    Reviewers { tokens: reviewer.clone(), accesses: reviewer }
}

/// A client that never sends again what may have been sent: a review is bounded as a whole, so a retry within it would only hide why
/// it failed, and a watch has pauses of its own, which are shorter.
fn client(config: &Config) -> Result<Client, Error> {
    Ok(berth_cluster::builder(config).map_err(Error::Client)?.build())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forever() -> Task {
        start(std::future::pending())
    }

    #[tokio::test]
    async fn a_task_that_stops_or_panics_makes_the_process_not_ready_and_ends_it_with_an_error() {
        let (index, shutdown) = (Index::default(), CancellationToken::new());
        index.end_list();
        for name in
            ["watch of sessions", "watch of the leader", "watch of the identity's files", "server of calls"]
        {
            for panics in [false, true] {
                let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
                let task = start(async move {
                    let _ = stopped.await;
                    assert!(!panics, "as the test wants");
                });
                let mut tasks = Tasks {
                    watching: forever(),
                    leading: forever(),
                    following: forever(),
                    serving: forever(),
                };
                match name {
                    "watch of sessions" => tasks.watching = task,
                    "watch of the leader" => tasks.leading = task,
                    "server of calls" => tasks.serving = task,
                    _ => tasks.following = task,
                }
                let readiness = Readiness::default();
                let mut working = std::pin::pin!(work(&tasks, &index, &readiness, &shutdown));
                assert!(futures::poll!(&mut working).is_pending());
                assert!(readiness.get(), "{name}");
                stop.send(()).unwrap();
                let outcome = working.await;
                assert!(matches!(outcome, Err(Error::Stopped(stopped)) if stopped == name), "{outcome:?}");
                assert!(!readiness.get(), "{name}");
            }
        }
    }

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
