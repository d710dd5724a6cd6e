//! What runs beside the controllers: the watches, the sweep, the renewal of certificates.

use crate::ca::Ca;
use crate::context::{Clock, Context};
use crate::orphans;
use crate::watch::Changes;
use crate::watch::routes::Routes;
use berth_net::identity::Identity;
use berth_plan::time::Moment;
use futures::{Stream, StreamExt, future};
use kube::runtime::reflector::Store;
use kube::{Resource, ResourceExt};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How often what events may have missed is swept up. An orphan holds a slot until then; a sweep that finds nothing asks
/// nobody.
pub const SWEEP: Duration = Duration::from_secs(20);
/// How often certificates are looked at, and the pause after a failure.
const RENEW: Duration = Duration::from_mins(10);

/// Tasks that run as long as the process, each ending with its name.
pub type Tasks = JoinSet<&'static str>;

/// Waits until one of `tasks` ends although nothing was cancelled, and says which: without it the process would stand there
/// ready and blind.
pub async fn unexpected_end(tasks: &mut Tasks, cancel: &CancellationToken) -> String {
    match tasks.join_next().await.filter(|_| !cancel.is_cancelled()) {
        Some(Ok(name)) => format!("the {name} ended"),
        Some(Err(error)) => error.to_string(),
        None => future::pending().await,
    }
}

/// Follows every watch until `cancel`.
pub fn follow(tasks: &mut Tasks, changes: Changes, routes: &Routes, cancel: &CancellationToken) {
    let mut seen = HashMap::new();
    let server = move |routes: &Routes, server| routes.server(&server, &mut seen);
    tasks.spawn(each("watch of servers", changes.servers, routes.clone(), cancel.clone(), server));
    let session = |routes: &Routes, session| routes.session(&session);
    tasks.spawn(each("watch of sessions", changes.sessions, routes.clone(), cancel.clone(), session));
    let pod = |routes: &Routes, pod| routes.pod(&pod);
    tasks.spawn(each("watch of pods", changes.pods, routes.clone(), cancel.clone(), pod));
    let secret = |routes: &Routes, secret| routes.secret(&secret);
    tasks.spawn(each("watch of secrets", changes.secrets, routes.clone(), cancel.clone(), secret));
}

async fn each<K>(
    name: &'static str,
    changes: impl Stream<Item = K> + Send + 'static,
    routes: Routes,
    cancel: CancellationToken,
    mut route: impl FnMut(&Routes, K) + Send + 'static,
) -> &'static str {
    let mut changes = std::pin::pin!(changes.take_until(cancel.cancelled_owned()));
    while let Some(changed) = changes.next().await {
        route(&routes, changed);
    }
    name
}

/// Drops what belongs to objects whose deletion no event told of, which happens when a watch begins anew, and ends orphans.
pub async fn sweep(ctx: Arc<Context>, every: Duration, cancel: CancellationToken) -> &'static str {
    while !paused(every, &cancel).await {
        forget_gone(&ctx);
        orphans::end(&ctx).await;
    }
    "sweep"
}

fn forget_gone(ctx: &Context) {
    let stores = &ctx.stores;
    let (pods, sessions) = (|| uids(&stores.pods), || uids(&stores.sessions));
    ctx.fleet.retain(pods);
    ctx.slots.retain(sessions, pods);
    ctx.failures.retain(|| &sessions() | &uids(&stores.servers));
}

/// The UIDs of everything in a store.
pub fn uids<K>(store: &Store<K>) -> HashSet<String>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.state().iter().filter_map(|object| object.uid()).collect()
}

/// Keeps the operator's own certificate and the gateway's good.
pub async fn renew(
    ca: Ca,
    identity: Identity,
    mut renew_at: Moment,
    clock: Clock,
    cancel: CancellationToken,
) -> &'static str {
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
            return "renewal of certificates";
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn a_task_that_ends_or_panics_before_the_process_does_is_told() {
        let cancel = CancellationToken::new();
        let mut tasks = Tasks::new();
        tasks.spawn(future::pending());
        tasks.spawn(async { "watch of pods" });
        assert_eq!(unexpected_end(&mut tasks, &cancel).await, "the watch of pods ended");
        tasks.spawn(async { panic!("out of luck") });
        assert!(unexpected_end(&mut tasks, &cancel).await.contains("out of luck"));
    }

    #[tokio::test]
    async fn a_task_that_ends_with_the_process_is_no_news() {
        let cancel = CancellationToken::new();
        let mut tasks = Tasks::new();
        let waits = cancel.clone();
        tasks.spawn(async move {
            waits.cancelled().await;
            "sweep"
        });
        cancel.cancel();
        assert_eq!(unexpected_end(&mut tasks, &cancel).now_or_never(), None);
    }
}
