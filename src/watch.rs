//! One watch a kind: it fills a store and asks for looks at what a change concerns.

mod prune;
pub mod routes;

use berth_api::{AgentSession, McpServer, label};
use futures::{Stream, StreamExt, future};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{Lookup, Store, store::Writer};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

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
    /// Secrets that may be used as credentials; no other Secret is ever watched.
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
pub struct Changes<A, B, C, D> {
    /// Servers that changed, deletions included.
    pub servers: A,
    /// Sessions that changed, deletions included.
    pub sessions: B,
    /// Pods that changed, deletions included.
    pub pods: C,
    /// Secrets that changed, deletions included.
    pub secrets: D,
}

/// The stores and the streams that fill them.
pub fn start(
    client: &Client,
) -> (
    Stores,
    Changes<
        impl Stream<Item = McpServer> + Send + 'static,
        impl Stream<Item = AgentSession> + Send + 'static,
        impl Stream<Item = Pod> + Send + 'static,
        impl Stream<Item = Secret> + Send + 'static,
    >,
) {
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
        secrets: changes(watcher(Api::all(client.clone()), all().labels(label::CREDENTIAL)), prune::meta, secrets_writer),
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

fn parsed<K: Resource<DynamicType = ()>>(event: watcher::Event<DeserializeGuard<K>>) -> Option<watcher::Event<K>> {
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

/// The objects that a watch touches, after they are in the store. A failing watch backs off on its own and slows nothing else.
fn changes<K>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    prune: fn(&mut K),
    writer: Writer<K>,
) -> impl Stream<Item = K> + Send + 'static
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    events.default_backoff().modify(prune).reflect(writer).touched_objects().filter_map(|object| {
        let logged = object.inspect_err(|error| tracing::warn!(kind = %<K as Resource>::kind(&()), %error, "watch failed"));
        future::ready(logged.ok())
    })
}
