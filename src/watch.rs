//! One watch a kind: it fills a store and asks for looks at what a change concerns.

pub mod made;
mod prune;
pub mod routes;

use berth_api::{AgentSession, McpServer, label};
use berth_cluster::Pauses;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, future, stream};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{Lookup, Store, store::Writer};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// First and longest pause of a watch that fails: it begins with a list of all, and the longest one bounds how much later than the
/// API server the operator is back after an outage.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// Objects listed in one request.
const PAGE: u32 = 500;

/// Caches of the watched kinds, trimmed to what is read.
#[derive(Clone)]
pub struct Stores {
    /// All servers.
    pub servers: Store<McpServer>,
    /// All sessions.
    pub sessions: Store<AgentSession>,
    /// Pods of all pools.
    pub pods: Store<Pod>,
    /// Secrets that may be used as credentials; of no other Secret is the content watched.
    pub secrets: Store<Secret>,
}

impl Stores {
    /// Waits until each store holds what the API server has. False when a watch ended before.
    pub async fn wait_until_ready(&self) -> bool {
        self.servers.wait_until_ready().await.is_ok()
            && self.sessions.wait_until_ready().await.is_ok()
            && self.pods.wait_until_ready().await.is_ok()
            && self.secrets.wait_until_ready().await.is_ok()
    }
}

/// The streams of changes, one for each store. They have to be polled for the stores to fill.
pub struct Changes {
    /// Of servers.
    pub servers: BoxStream<'static, Change<McpServer>>,
    /// Of sessions.
    pub sessions: BoxStream<'static, Change<AgentSession>>,
    /// Of pods.
    pub pods: BoxStream<'static, Change<Pod>>,
    /// Of secrets.
    pub secrets: BoxStream<'static, Change<Secret>>,
}

/// The stores and the streams that fill them.
pub fn start(client: &Client) -> (Stores, Changes) {
    let all = || watcher::Config::default().page_size(PAGE);
    let (servers, servers_writer) = reflector::store();
    let (sessions, sessions_writer) = reflector::store();
    let (pods, pods_writer) = reflector::store();
    let (secrets, secrets_writer) = reflector::store();
    let pool = all().labels(&format!("{}={}", label::ROLE, label::ROLE_POOL));
    let changes = Changes {
        servers: changes(guarded::<McpServer>(client, all()), prune::meta, servers_writer),
        sessions: changes(guarded::<AgentSession>(client, all()), prune::meta, sessions_writer),
        pods: changes(watcher(Api::all(client.clone()), pool), prune::pod, pods_writer),
        secrets: changes(
            watcher(Api::all(client.clone()), all().labels(label::CREDENTIAL)),
            prune::meta,
            secrets_writer,
        ),
    };
    (Stores { servers, sessions, pods, secrets }, changes)
}

/// A watch whose objects need not parse: one that does not, stored under an older CRD, is left out with an error in the log
/// instead of failing the list of all.
fn guarded<K>(
    client: &Client,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(Api::<DeserializeGuard<K>>::all(client.clone()), config)
        .filter_map(|event| future::ready(event.map(parsed).transpose()))
}

fn parsed<K: Resource<DynamicType = ()>>(
    event: watcher::Event<DeserializeGuard<K>>,
) -> Option<watcher::Event<K>> {
    use watcher::Event;
    let good = |guard: DeserializeGuard<K>| {
        let (namespace, name) = (ResourceExt::namespace(&guard).unwrap_or_default(), guard.name_any());
        guard
            .0
            .inspect_err(|error| tracing::error!(kind = %K::kind(&()), namespace, name, %error, "leaving out an object that cannot be read"))
            .ok()
    };
    match event {
        Event::Apply(object) => good(object).map(Event::Apply),
        Event::Delete(object) => good(object).map(Event::Delete),
        Event::InitApply(object) => good(object).map(Event::InitApply),
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
    }
}

/// What a watch tells. A deletion that happened while the watch was down is not told: see `background::sweep`.
pub enum Change<K> {
    /// The object is as the store has it now.
    Seen(Arc<K>),
    /// The object is gone from the store.
    Gone(Arc<K>),
}

fn pauses() -> Pauses {
    Pauses::new(PAUSES.0, PAUSES.1)
}

/// The changes that a watch tells, after they are in the store. A failing watch backs off on its own and slows nothing else.
fn changes<K>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    prune: fn(&mut K),
    writer: Writer<K>,
) -> BoxStream<'static, Change<K>>
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    let store = writer.as_reader();
    let changes = events.backoff(pauses()).modify(prune).reflect(writer).flat_map(move |event| {
        let logged = event
            .inspect_err(|error| tracing::warn!(kind = %<K as Resource>::kind(&()), %error, "watch failed"));
        stream::iter(logged.map_or_else(|_| Vec::new(), |event| told(event, &store)))
    });
    changes.boxed()
}

/// What an event tells. A list is not in the store before it is complete, and is then told as a whole.
fn told<K>(event: watcher::Event<K>, store: &Store<K>) -> Vec<Change<K>>
where
    K: Lookup<DynamicType = ()> + Clone + 'static,
{
    use watcher::Event;
    match event {
        Event::Apply(object) => vec![Change::Seen(Arc::new(object))],
        Event::Delete(object) => vec![Change::Gone(Arc::new(object))],
        Event::Init | Event::InitApply(_) => Vec::new(),
        Event::InitDone => store.state().into_iter().map(Change::Seen).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use watcher::Event;

    fn pod(name: &str) -> Pod {
        serde_json::from_value(serde_json::json!({"metadata": {"name": name, "namespace": "demo"}})).unwrap()
    }

    #[tokio::test]
    async fn what_a_watch_tells_is_in_the_store_already() {
        let (store, writer) = reflector::store();
        let events = [
            Event::Init,
            Event::InitApply(pod("a")),
            Event::InitApply(pod("b")),
            Event::InitDone,
            Event::Apply(pod("c")),
            Event::Delete(pod("a")),
        ];
        let mut changes = changes(stream::iter(events.map(Ok)), prune::pod, writer);
        let mut told = Vec::new();
        while let Some(change) = changes.next().await {
            let (sign, object) = match change {
                Change::Seen(object) => ('+', object),
                Change::Gone(object) => ('-', object),
            };
            let held = store.get(&reflector::ObjectRef::from_obj(&*object)).is_some();
            assert_eq!(held, sign == '+', "{}", object.name_any());
            told.push(format!("{sign}{}", object.name_any()));
        }
        told.sort();
        assert_eq!(told, ["+a", "+b", "+c", "-a"]);
    }
}
