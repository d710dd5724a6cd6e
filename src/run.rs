//! Puts the parts together and runs them until a signal.
//!
//! Every replica fills its caches and is ready then; one of them leads, by the Lease, and only that one acts.

use crate::background::{SWEEP, Tasks, forget_gone, renew, sweep, unexpected_end};
use crate::ca::Ca;
use crate::cli::Options;
use crate::context::{Clock, Context, Settings, Triggers};
use crate::controller::{ConfigMaps, Policies};
use crate::fleet::Fleet;
use crate::follow::{Routing, follow};
use crate::gateways::Gateways;
use crate::lead::elector::Elector;
use crate::lead::{Lead, Times};
use crate::metrics::{Metrics, objects};
use crate::slots::Slots;
use crate::start::wait_for_kinds;
use crate::uninstall::farewell;
use crate::watch::{self, Stores, made, routes::Routes};
use crate::{ca, client, controller};
use berth_net::admin::{self, Readiness};
use berth_net::client::PeerClient;
use berth_net::identity::Identity;
use berth_net::{serve, shutdown};
use kube::Api;
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Connections to the admin port at once.
const MAX_ADMIN_CONNECTIONS: usize = 64;
/// Connections of gateways at once.
const MAX_GATEWAY_CONNECTIONS: usize = 1024;
/// Pause before the cluster is asked again whether it knows our kinds.
const START_RETRY: Duration = Duration::from_secs(5);

/// Why the operator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No client to the API server.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// A port cannot be served.
    #[error("cannot listen on {address}: {source}; free the port or set --listen or --admin-listen")]
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
    /// Another operator may lead by now.
    #[error("the lead is lost; the kubelet starts this operator anew")]
    LeadLost,
    /// The CA cannot be had.
    #[error(transparent)]
    Ca(#[from] ca::Error),
}

/// What the process has before it leads.
struct Standby {
    options: Options,
    clients: client::Clients,
    stores: Stores,
    metrics: Metrics,
    lead: Lead,
    routing: Routing,
    clock: Clock,
    cancel: CancellationToken,
}

/// Runs the operator until SIGTERM or SIGINT, or until it has led and does not any more.
pub async fn run(options: Options) -> Result<(), Error> {
    let signal = shutdown::on_signal().map_err(Error::Signal)?;
    let lead = Lead::default();
    let clients = client::clients(&lead).await?;
    let cancel = farewell::may_end(signal, clients.watches.clone(), options.namespace.clone());
    let (stores, changes) = watch::start(&clients.watches);
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    objects::register(&mut registry, &stores, &lead);
    let readiness = Readiness::default();
    let admin =
        serve_admin(options.admin_listen, Arc::new(registry), readiness.clone(), cancel.clone()).await?;

    if !wait_for_kinds(&clients.watches, START_RETRY, &cancel).await {
        return Ok(());
    }
    let (mut tasks, routing) = (Tasks::new(), Routing::new(None));
    follow(&mut tasks, changes, &stores, &routing, &cancel);
    let standby = Standby {
        options,
        clients,
        stores,
        metrics,
        lead,
        routing,
        clock: Clock::SYSTEM,
        cancel: cancel.clone(),
    };
    tokio::select! {
        () = cancel.cancelled() => return Ok(()),
        filled = standby.stores.wait_until_ready() => tracing::info!(filled, "caches"),
        ended = unexpected_end(&mut tasks, &cancel) => return Err(Error::Background(ended)),
    }
    readiness.set(true);
    // Only now: whoever takes the Lease has to be able to act. It is given back when nothing of this process writes any more.
    let resign = CancellationToken::new();
    let election = tokio::spawn(standby.elector().run(resign.clone()));
    let outcome = tokio::select! {
        outcome = standby.lead_when_won() => outcome,
        () = standby.lead.lost().cancelled() => return Err(Error::LeadLost),
        ended = unexpected_end(&mut tasks, &cancel) => Err(Error::Background(ended)),
    };
    readiness.set(false);
    cancel.cancel();
    resign.cancel();
    let _ = election.await;
    if outcome.is_ok() {
        let _ = admin.await;
    }
    outcome
}

impl Standby {
    fn elector(&self) -> Elector {
        let Options { namespace, pod_name, pod_ip, listen, lease_duration, .. } = &self.options;
        Elector {
            api: Api::namespaced(self.clients.watches.clone(), namespace),
            pod: pod_name.clone(),
            identity: berth_plan::lead::identity(pod_name, self.clock.now().0),
            address: SocketAddr::new(*pod_ip, listen.port()).to_string(),
            times: Times::of(*lease_duration),
            lead: self.lead.clone(),
        }
    }

    /// Waits until the Lease is won, then leads until the end.
    async fn lead_when_won(&self) -> Result<(), Error> {
        tokio::select! {
            () = self.cancel.cancelled() => return Ok(()),
            () = self.lead.won() => {}
        }
        let mut tasks = Tasks::new();
        let ctx = self.take_over(&mut tasks).await?;
        tokio::select! {
            () = controller::run(ctx, self.cancel.clone()) => {}
            ended = unexpected_end(&mut tasks, &self.cancel) => return Err(Error::Background(ended)),
        }
        if self.cancel.is_cancelled() {
            Ok(())
        } else {
            Err(Error::Background("the controllers ended".to_owned()))
        }
    }

    /// Everything that only the leader has: the CA, the streams of sidecars, the server for gateways.
    async fn take_over(&self, tasks: &mut Tasks) -> Result<Arc<Context>, Error> {
        let (client, clock, cancel) = (self.clients.calls.clone(), self.clock, self.cancel.clone());
        let ca = Ca::open(client.clone(), &self.options.namespace, clock.now()).await?;
        let (identity, own) = ca.own_identity(clock.now())?;
        tasks.spawn(renew(ca.clone(), own, self.lead.clone(), clock, cancel.clone()));
        let (triggers, slots) = (Triggers::default(), Arc::new(Slots::default()));
        // Promises that status speaks of come before the first decision, which has to count them.
        self.stores.sessions.state().iter().for_each(|session| slots.know(session));
        self.serve_gateways(tasks, identity.clone(), &slots, &triggers).await?;
        let peers = PeerClient::new(identity);
        let fleet = Fleet::new(
            peers,
            self.lead.clone(),
            triggers.clone(),
            slots.clone(),
            self.metrics.clone(),
            cancel.clone(),
        );
        let ctx = Arc::new(Context {
            client,
            lead: self.lead.clone(),
            stores: self.stores.clone(),
            fleet: fleet.clone(),
            slots: slots.clone(),
            ca,
            policies: Policies::new(self.options.callers()),
            config_maps: ConfigMaps::default(),
            triggers: triggers.clone(),
            failures: controller::retry::Failures::default(),
            metrics: self.metrics.clone(),
            clock,
            started: clock.now(),
            settings: Settings {
                sidecar: self.options.sidecar(),
                gateway_url: self.options.gateway_url.clone(),
            },
        });
        made::follow_all(tasks, &ctx, &self.clients.watches, &cancel);
        tasks.spawn(sweep(ctx.clone(), SWEEP, cancel));
        self.routing.send_replace(Some(Routes { stores: self.stores.clone(), triggers, slots, fleet }));
        // What went between the two was told to nobody.
        forget_gone(&ctx);
        Ok(ctx)
    }

    async fn serve_gateways(
        &self,
        tasks: &mut Tasks,
        identity: Identity,
        slots: &Arc<Slots>,
        triggers: &Triggers,
    ) -> Result<(), Error> {
        let (slots, stores, triggers) = (slots.clone(), self.stores.clone(), triggers.clone());
        let router = Gateways { slots, stores, triggers }.router(self.cancel.clone());
        let (listener, cancel) = (listen(self.options.listen).await?, self.cancel.clone());
        tasks.spawn(async move {
            serve::serve(listener, Some(identity), router, MAX_GATEWAY_CONNECTIONS, cancel).await;
            "server for gateways"
        });
        Ok(())
    }
}

async fn serve_admin(
    address: SocketAddr,
    registry: Arc<Registry>,
    readiness: Readiness,
    cancel: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, Error> {
    let (listener, router) = (listen(address).await?, admin::router(registry, readiness));
    Ok(tokio::spawn(serve::serve_latest(listener, router, MAX_ADMIN_CONNECTIONS, cancel)))
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}
