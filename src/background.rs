//! What runs beside the controllers: the watches, the sweep, the renewal of certificates.

use crate::ca::Ca;
use crate::context::Clock;
use crate::watch::Changes;
use crate::watch::routes::Routes;
use berth_net::identity::Identity;
use berth_plan::time::Moment;
use futures::{Stream, StreamExt};
use kube::ResourceExt;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often what events may have missed is swept up.
const SWEEP: Duration = Duration::from_mins(1);
/// How often certificates are looked at, and the pause after a failure.
const RENEW: Duration = Duration::from_mins(10);

/// Follows every watch until `cancel`.
pub fn follow(changes: Changes, routes: &Routes, cancel: &CancellationToken) {
    let mut seen = HashMap::new();
    each(changes.servers, routes, cancel, move |routes, server| routes.server(&server, &mut seen));
    each(changes.sessions, routes, cancel, |routes, session| routes.session(&session));
    each(changes.pods, routes, cancel, |routes, pod| routes.pod(&pod));
    each(changes.secrets, routes, cancel, |routes, secret| routes.secret(&secret));
}

fn each<K: Send + 'static>(
    changes: impl Stream<Item = K> + Send + 'static,
    routes: &Routes,
    cancel: &CancellationToken,
    mut route: impl FnMut(&Routes, K) + Send + 'static,
) {
    let (routes, cancel) = (routes.clone(), cancel.clone());
    tokio::spawn(async move {
        let mut changes = std::pin::pin!(changes.take_until(cancel.cancelled_owned()));
        while let Some(changed) = changes.next().await {
            route(&routes, changed);
        }
    });
}

/// Drops what belongs to objects whose deletion no event told of, which happens when a watch begins anew.
pub async fn sweep(routes: Routes, cancel: CancellationToken) {
    while !paused(SWEEP, &cancel).await {
        let pods: HashSet<String> = routes.stores.pods.state().iter().filter_map(|pod| pod.uid()).collect();
        routes.fleet.retain(|uid| pods.contains(uid));
        let sessions: HashSet<String> =
            routes.stores.sessions.state().iter().filter_map(|session| session.uid()).collect();
        routes.slots.retain(|uid| sessions.contains(uid), |pod| pods.contains(pod));
    }
}

/// Keeps the operator's own certificate and the gateway's good.
pub async fn renew(
    ca: Ca,
    identity: Identity,
    mut renew_at: Moment,
    clock: Clock,
    cancel: CancellationToken,
) {
    loop {
        let now = clock.now();
        if now >= renew_at {
            match ca.renew_own(&identity, now) {
                Ok(next) => renew_at = next,
                Err(error) => tracing::error!(%error, "cannot renew the operator's certificate"),
            }
        }
        let pause = match ca.ensure_gateway(now).await {
            Ok(()) => RENEW,
            Err(error) => {
                tracing::error!(%error, "cannot see to the gateway's certificate");
                RENEW / 60
            }
        };
        if paused(pause, &cancel).await {
            return;
        }
    }
}

/// Waits; true when it was cancelled meanwhile.
async fn paused(pause: Duration, cancel: &CancellationToken) -> bool {
    tokio::select! {
        () = cancel.cancelled() => true,
        () = tokio::time::sleep(pause) => false,
    }
}
