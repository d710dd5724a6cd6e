//! What runs beside the controllers: the sweep, the renewal of certificates; and who notices when such a task ends.

use crate::ca::{Ca, Own};
use crate::context::{Clock, Context};
use crate::lead::Lead;
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
/// How often certificates are looked at when nobody asks.
const RENEW: Duration = Duration::from_mins(10);
/// The pause after a look that failed, or that was left out.
const AGAIN: Duration = Duration::from_secs(10);
/// The shortest pause: a change is one look with those that follow at once, and others who write the same Secrets are not
/// raced with.
const APART: Duration = Duration::from_secs(1);

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

/// Keeps certificates good, and the CA behind them: now and then, and soon after one of their Secrets has changed. Not while
/// Berth is being uninstalled: what goes then is not made again.
pub async fn renew(
    ca: Ca,
    mut own: Own,
    lead: Lead,
    clock: Clock,
    cancel: CancellationToken,
) -> &'static str {
    loop {
        let pause = if lead.is_shutting_down() {
            AGAIN
        } else {
            match ca.keep(&mut own, clock.now()).await {
                Ok(()) => RENEW,
                Err(error) if error.is_terminating_namespace() => {
                    tracing::debug!(%error, "certificates are left as they are");
                    AGAIN
                }
                Err(error) => {
                    tracing::error!(%error, "cannot see to the certificates");
                    AGAIN
                }
            }
        };
        let ended = paused(APART, &cancel).await
            || tokio::select! {
                ended = paused(pause.saturating_sub(APART), &cancel) => ended,
                () = ca.asked() => false,
            };
        if ended {
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
    use crate::memory_api::MemoryApi;
    use futures::FutureExt;

    const CA: &str = "/api/v1/namespaces/berth/secrets/berth-ca";

    /// The renewal of an operator that has made its Secrets and written nothing since.
    async fn renewal(
        lead: &Lead,
    ) -> (MemoryApi, Ca, tokio::task::JoinHandle<&'static str>, CancellationToken) {
        let (api, cancel) = (MemoryApi::default(), CancellationToken::new());
        let ca = Ca::open(api.client(), "berth", Clock::SYSTEM.now()).await.unwrap();
        let (_, own) = ca.own_identity(Clock::SYSTEM.now()).unwrap();
        let task = tokio::spawn(renew(ca.clone(), own, lead.clone(), Clock::SYSTEM, cancel.clone()));
        tokio::time::sleep(AGAIN).await;
        (api, ca, task, cancel)
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_of_the_ca_that_is_told_to_have_gone_is_back_at_once() {
        let (api, ca, task, cancel) = renewal(&Lead::for_test(1)).await;
        let before = api.get(CA).unwrap()["data"].clone();
        api.remove(CA);
        api.writes();
        tokio::time::sleep(AGAIN).await;
        assert!(api.writes().is_empty(), "nobody has told of it");
        ca.ask();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(api.get(CA).unwrap()["data"], before);
        // What follows at once waits a moment.
        api.remove(CA);
        ca.ask();
        tokio::time::sleep(APART / 2).await;
        assert_eq!(api.get(CA), None);
        tokio::time::sleep(APART).await;
        assert_eq!(api.get(CA).unwrap()["data"], before);
        cancel.cancel();
        assert_eq!(task.await.unwrap(), "renewal of certificates");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_made_again_during_an_uninstall_and_all_of_it_when_that_is_given_up() {
        let lead = Lead::for_test(1);
        let (api, ca, _task, _cancel) = renewal(&lead).await;
        lead.set_shutting_down(true);
        api.remove(CA);
        api.writes();
        ca.ask();
        tokio::time::sleep(RENEW).await;
        assert!(api.writes().is_empty());
        lead.set_shutting_down(false);
        tokio::time::sleep(AGAIN).await;
        assert!(api.get(CA).is_some());
    }

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
