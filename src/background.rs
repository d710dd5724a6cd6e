//! What runs beside the controllers: the sweep, the renewal of certificates; and who notices when such a task ends.

use crate::ca::{Ca, Own};
use crate::context::{Clock, Context};
use crate::orphans;
use berth_api::McpServer;
use futures::future;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use std::collections::HashSet;
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

/// Drops what belongs to objects whose deletion no event told of, which happens when a watch begins anew, and ends orphans.
pub async fn sweep(ctx: Arc<Context>, every: Duration, cancel: CancellationToken) -> &'static str {
    while !paused(every, &cancel).await {
        forget_gone(&ctx);
        orphans::end(&ctx).await;
    }
    "sweep"
}

/// Drops what belongs to objects that are gone, and looks at the servers where that frees slots.
pub fn forget_gone(ctx: &Context) {
    let stores = &ctx.stores;
    let (pods, sessions) = (|| uids(&stores.pods), || uids(&stores.sessions));
    ctx.fleet.retain(pods);
    let freed = ctx.slots.retain(sessions, pods);
    let concerned = |server: &McpServer| server.uid().is_some_and(|uid| freed.contains(&uid));
    for server in stores.servers.state_filter(concerned) {
        ctx.triggers.servers.fire(ObjectRef::from_obj(&*server));
    }
    ctx.failures.retain(|| &sessions() | &uids(&stores.servers));
}

/// The UIDs of everything in a store.
pub fn uids<K>(store: &Store<K>) -> HashSet<String>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.state().iter().filter_map(|object| object.uid()).collect()
}

/// Keeps certificates good, and the CA behind them.
pub async fn renew(ca: Ca, mut own: Own, clock: Clock, cancel: CancellationToken) -> &'static str {
    loop {
        let pause = match ca.keep(&mut own, clock.now()).await {
            Ok(()) => RENEW,
            Err(error) => {
                tracing::error!(%error, "cannot see to the certificates");
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
