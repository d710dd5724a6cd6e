//! Watches what the operator itself made: Secrets of certificates and of the CA, and the policies of pools.
//!
//! What was found good is trusted for minutes. When others change or delete it, that trust ends here, and whoever keeps the
//! object is asked to look. Only metadata is asked for, of objects with the operator's label, and none of it is kept.

use crate::background::Tasks;
use crate::ca::Ca;
use crate::context::Context;
use crate::found_good::{FoundGood, Key, Version};
use crate::trigger::Trigger;
use crate::watch::{PAGE, pauses};
use berth_api::{McpServer, label};
use berth_plan::name;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt::Debug;
use tokio_util::sync::CancellationToken;

/// Follows all such watches until `cancel`.
pub fn follow_all(tasks: &mut Tasks, ctx: &Context, client: &Client, cancel: &CancellationToken) {
    let (servers, looks) = (&ctx.stores.servers, &ctx.triggers.servers);
    let certificates = Made {
        good: ctx.ca.good().clone(),
        name: name::certificate,
        servers: servers.clone(),
        looks: looks.clone(),
        ca: Some(ctx.ca.clone()),
    };
    tasks.spawn(follow("watch of certificates", certificates, events::<Secret>(client), cancel.clone()));
    if let Some(good) = ctx.policies.good() {
        let policies = Made {
            good: good.clone(),
            name: name::network_policy,
            servers: servers.clone(),
            looks: looks.clone(),
            ca: None,
        };
        let events = events::<NetworkPolicy>(client);
        tasks.spawn(follow("watch of network policies", policies, events, cancel.clone()));
    }
}

/// Events of the objects of a kind that the operator made, in all namespaces.
fn events<K>(
    client: &Client,
) -> impl Stream<Item = watcher::Result<watcher::Event<PartialObjectMeta<K>>>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let ours = format!("{}={}", label::MANAGED_BY, label::MANAGER);
    let config = watcher::Config::default().page_size(PAGE).labels(&ours);
    watcher(Api::<PartialObjectMeta<K>>::all(client.clone()), config).backoff(pauses())
}

async fn follow<K>(
    name: &'static str,
    made: Made,
    events: impl Stream<Item = watcher::Result<watcher::Event<PartialObjectMeta<K>>>> + Send,
    cancel: CancellationToken,
) -> &'static str
where
    K: Resource<DynamicType = ()>,
{
    use watcher::Event;
    let mut events = std::pin::pin!(events.take_until(cancel.cancelled_owned()));
    let mut listed = HashMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                listed.insert(Key::of(&object), object.resource_version());
            }
            Ok(Event::InitDone) => made.listed(&std::mem::take(&mut listed)),
            Ok(Event::Apply(object)) => made.told(&Key::of(&object), object.resource_version().as_deref()),
            Ok(Event::Delete(object)) => made.told(&Key::of(&object), None),
            Err(error) => {
                tracing::warn!(kind = %K::kind(&()), %error, "watch of what the operator made failed");
            }
        }
    }
    name
}

/// Objects of one kind that the operator made.
struct Made {
    /// Those that were found good.
    good: FoundGood,
    /// Name of the one of a server, by that one's name and UID.
    name: fn(&str, &str) -> String,
    servers: Store<McpServer>,
    /// Wishes to look at a server, whose reconcile sees to what it has.
    looks: Trigger<McpServer>,
    /// Keeps those of the operator's own namespace, if there are such.
    ca: Option<Ca>,
}

impl Made {
    /// An object is there in that version, or is not there any more.
    fn told(&self, key: &Key, version: Option<&str>) {
        if !self.good.changed(key, version) {
            return;
        }
        if let Some(ca) = self.ca.as_ref().filter(|ca| ca.own_secrets().contains(key)) {
            ca.ask();
        }
        // By its name, which nobody can change: labels and owners are what somebody may have changed.
        for server in self.servers.state_filter(|server| self.is_of(key, server)) {
            self.looks.fire(ObjectRef::from_obj(&*server));
        }
    }

    /// These are all there are: the watch began, or began anew and missed what happened meanwhile.
    fn listed(&self, all: &HashMap<Key, Version>) {
        let changed = |key: &Key| self.good.changed(key, all.get(key).and_then(Option::as_deref));
        for server in self.servers.state() {
            if changed(&self.key(&server)) {
                self.looks.fire(ObjectRef::from_obj(&*server));
            }
        }
        if let Some(ca) = &self.ca
            && ca.own_secrets().iter().filter(|key| changed(key)).count() > 0
        {
            ca.ask();
        }
    }

    fn is_of(&self, key: &Key, server: &McpServer) -> bool {
        server.metadata.namespace.as_ref() == Some(&key.namespace) && self.key(server) == *key
    }

    fn key(&self, server: &McpServer) -> Key {
        let name = (self.name)(&server.name_any(), &server.uid().unwrap_or_default());
        Key { namespace: server.namespace().unwrap_or_default(), name }
    }
}

#[cfg(test)]
mod tests;
