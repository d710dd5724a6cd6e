//! Follows the watches: caches are kept from the start, changes are acted on once this process leads.

use crate::background::Tasks;
use crate::watch::routes::Routes;
use crate::watch::{Change, Changes, Stores};
use futures::{Stream, StreamExt};
use kube::Resource;
use kube::runtime::reflector::Store;
use std::collections::HashMap;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Where changes go: nowhere before this process leads.
pub type Routing = watch::Sender<Option<Routes>>;

/// Follows every watch until `cancel`. As soon as `routing` says where changes go, everything that the caches hold by then is
/// told, and each change after it.
pub fn follow(
    tasks: &mut Tasks,
    changes: Changes,
    stores: &Stores,
    routing: &Routing,
    cancel: &CancellationToken,
) {
    let followed = |name, replayed| {
        let (routing, cancel) = (routing.subscribe(), cancel.clone());
        Followed { name, replayed, routing, cancel }
    };
    let mut seen = HashMap::new();
    let server = move |routes: &Routes, server: &Change<_>| routes.server(server, &mut seen);
    tasks.spawn(followed("watch of servers", true).run(changes.servers, stores.servers.clone(), server));
    tasks.spawn(followed("watch of sessions", true).run(
        changes.sessions,
        stores.sessions.clone(),
        Routes::session,
    ));
    tasks.spawn(followed("watch of pods", true).run(changes.pods, stores.pods.clone(), Routes::pod));
    // Whom a Secret concerns is looked at anyway by then.
    tasks.spawn(followed("watch of secrets", false).run(
        changes.secrets,
        stores.secrets.clone(),
        Routes::secret,
    ));
}

/// One watch that is followed.
struct Followed {
    name: &'static str,
    /// Whether what the cache holds is told once changes go somewhere.
    replayed: bool,
    routing: watch::Receiver<Option<Routes>>,
    cancel: CancellationToken,
}

impl Followed {
    async fn run<K>(
        mut self,
        changes: impl Stream<Item = Change<K>> + Send + 'static,
        store: Store<K>,
        mut route: impl FnMut(&Routes, &Change<K>) + Send + 'static,
    ) -> &'static str
    where
        K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    {
        let mut changes = std::pin::pin!(changes.take_until(self.cancel.cancelled_owned()));
        let mut routes: Option<Routes> = None;
        loop {
            let told: Vec<Change<K>> = tokio::select! {
                next = changes.next() => match next {
                    Some(change) => vec![change],
                    None => return self.name,
                },
                Ok(()) = self.routing.changed() => {
                    routes.clone_from(&self.routing.borrow_and_update());
                    let held = if self.replayed { store.state() } else { Vec::new() };
                    held.into_iter().map(Change::Seen).collect()
                }
            };
            if let Some(routes) = &routes {
                for change in &told {
                    route(routes, change);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{context, deleted_session, failure, store_of};
    use berth_api::AgentSession;
    use futures::stream;
    use serde_json::json;
    use std::sync::{Arc, Mutex};
    use tokio::sync::mpsc;

    fn named(name: &str) -> AgentSession {
        let mut session = deleted_session(&json!({}));
        session.metadata.name = Some(name.to_owned());
        session
    }

    #[tokio::test]
    async fn what_a_cache_holds_is_told_when_this_process_begins_to_lead_and_changes_after_it() {
        let (ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
        let routes = Routes {
            stores: ctx.stores.clone(),
            triggers: ctx.triggers.clone(),
            slots: ctx.slots.clone(),
            fleet: ctx.fleet.clone(),
        };
        let (routing, told) = (Routing::new(None), Arc::new(Mutex::new(Vec::new())));
        let (change, changes) = mpsc::unbounded_channel();
        let changes = stream::unfold(changes, |mut changes| async { Some((changes.recv().await?, changes)) });
        let followed = Followed {
            name: "watch of sessions",
            replayed: true,
            routing: routing.subscribe(),
            cancel: CancellationToken::new(),
        };
        let (log, (tell, mut heard)) = (told.clone(), mpsc::unbounded_channel());
        let route = move |_: &Routes, changed: &Change<AgentSession>| {
            let (Change::Seen(session) | Change::Gone(session)) = changed;
            log.lock().unwrap().push(session.metadata.name.clone().unwrap());
            tell.send(()).unwrap();
        };
        let task = tokio::spawn(followed.run(changes, store_of(vec![named("held")]), route));
        change.send(Change::Seen(Arc::new(named("before")))).unwrap();
        tokio::task::yield_now().await;
        routing.send_replace(Some(routes));
        heard.recv().await.unwrap();
        change.send(Change::Seen(Arc::new(named("after")))).unwrap();
        heard.recv().await.unwrap();
        assert_eq!(
            told.lock().unwrap().iter().filter(|name| *name != "before").collect::<Vec<_>>(),
            ["held", "after"]
        );
        drop(change);
        assert_eq!(task.await.unwrap(), "watch of sessions");
    }
}
