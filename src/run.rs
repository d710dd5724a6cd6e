//! Puts the parts together and runs them until a signal.

use crate::background::{SWEEP, Tasks, follow, renew, sweep, unexpected_end};
use crate::ca::Ca;
use crate::cli::Options;
use crate::context::{Clock, Context, Settings, Triggers};
use crate::fleet::Fleet;
use crate::metrics::{Metrics, objects};
use crate::slots::Slots;
use crate::start::wait_for_kinds;
use crate::watch::{self, routes::Routes};
use crate::{ca, client, controller};
use berth_net::admin::{self, Readiness};
use berth_net::client::PeerClient;
use berth_net::{serve, shutdown};
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Connections to the admin port at once.
const MAX_ADMIN_CONNECTIONS: usize = 64;
/// Pause before the cluster is asked again whether it knows our kinds.
const START_RETRY: Duration = Duration::from_secs(5);

/// Why the operator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No client to the API server.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// The admin port cannot be served.
    #[error("cannot listen on {address}: {source}; free the port or set --admin-listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Signals cannot be heard.
    #[error("cannot listen for signals: {0}")]
    Signal(std::io::Error),
    /// Something that has to run as long as the process does not.
    #[error("a part of the operator ended before the whole: {0}; the kubelet starts it anew")]
    Background(String),
    /// The CA cannot be had.
    #[error(transparent)]
    Ca(#[from] ca::Error),
}

/// Runs the operator until SIGTERM or SIGINT.
pub async fn run(options: Options) -> Result<(), Error> {
    let cancel = shutdown::on_signal().map_err(Error::Signal)?;
    let clients = client::clients().await?;
    let (stores, changes) = watch::start(&clients.watches);
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    objects::register(&mut registry, &stores);
    let readiness = Readiness::default();
    let admin =
        serve_admin(options.admin_listen, Arc::new(registry), readiness.clone(), cancel.clone()).await?;

    let clock = Clock::SYSTEM;
    if !wait_for_kinds(&clients.calls, START_RETRY, &cancel).await {
        return Ok(());
    }
    // The place for the leader's lease: everything from here on writes.
    let ca = Ca::open(clients.calls.clone(), &options.namespace, clock.now()).await?;
    let (identity, issued) = ca.own_identity(clock.now())?;
    let triggers = Triggers::default();
    let slots = Arc::new(Slots::default());
    let peers = PeerClient::new(identity.clone());
    let fleet = Fleet::new(peers, triggers.clone(), slots.clone(), metrics.clone(), cancel.clone());
    let routes = Routes {
        stores: stores.clone(),
        triggers: triggers.clone(),
        slots: slots.clone(),
        fleet: fleet.clone(),
    };
    let mut tasks = Tasks::new();
    follow(&mut tasks, changes, &routes, &cancel);
    tokio::select! {
        () = cancel.cancelled() => return Ok(()),
        ended = unexpected_end(&mut tasks, &cancel) => return Err(Error::Background(ended)),
        filled = stores.wait_until_ready() => tracing::info!(filled, "caches"),
    }
    // Promises that status speaks of come before the first decision, which has to count them.
    stores.sessions.state().iter().for_each(|session| slots.know(session));
    tasks.spawn(renew(ca.clone(), identity, issued.renew_at, clock, cancel.clone()));
    let settings = Settings { sidecar_image: options.sidecar_image, gateway_url: options.gateway_url };
    let failures = controller::retry::Failures::default();
    let ctx = Context {
        client: clients.calls,
        stores,
        fleet,
        slots,
        ca,
        triggers,
        failures,
        metrics,
        clock,
        started: clock.now(),
        settings,
    };
    let ctx = Arc::new(ctx);
    tasks.spawn(sweep(ctx.clone(), SWEEP, cancel.clone()));
    readiness.set(true);
    tokio::select! {
        () = controller::run(ctx, cancel.clone()) => {}
        ended = unexpected_end(&mut tasks, &cancel) => return Err(Error::Background(ended)),
    }
    readiness.set(false);
    if !cancel.is_cancelled() {
        return Err(Error::Background("the controllers ended".to_owned()));
    }
    let _ = admin.await;
    Ok(())
}

async fn serve_admin(
    address: SocketAddr,
    registry: Arc<Registry>,
    readiness: Readiness,
    cancel: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, Error> {
    let listener = TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
    let router = admin::router(registry, readiness);
    Ok(tokio::spawn(serve::serve(listener, None, router, MAX_ADMIN_CONNECTIONS, cancel)))
}
