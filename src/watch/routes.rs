//! Which objects a change concerns.

use crate::context::Triggers;
use crate::fleet::Fleet;
use crate::slots::Slots;
use crate::watch::{Change, Stores};
use berth_api::{AgentSession, McpServer};
use berth_plan::server::validate::secret_ref;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use std::collections::HashMap;
use std::sync::Arc;

/// Where changes go.
#[derive(Clone)]
pub struct Routes {
    /// Caches, already holding the change.
    pub stores: Stores,
    /// Wishes to look again.
    pub triggers: Triggers,
    /// Promised slots.
    pub slots: Arc<Slots>,
    /// The sidecars.
    pub fleet: Fleet,
}

impl Routes {
    /// A session changed: it is looked at, and so are its servers, whose demand may have changed.
    pub fn session(&self, change: &Change<AgentSession>) {
        let (Change::Seen(session) | Change::Gone(session)) = change;
        if let (Change::Gone(_), Some(uid)) = (change, session.uid()) {
            self.slots.forget(&uid);
            self.fleet.forget(&uid);
        }
        let namespace = session.namespace().unwrap_or_default();
        for server in &session.spec.servers {
            self.triggers.servers.fire_named(&namespace, &server.name);
        }
        self.triggers.sessions.fire(ObjectRef::from_obj(&**session));
    }

    /// A server changed: it is looked at, and so are its sessions when its spec changed or it is gone. `seen` holds the
    /// generations that were seen before, since status writes must not concern all sessions.
    pub fn server(&self, change: &Change<McpServer>, seen: &mut HashMap<ObjectRef<McpServer>, Option<i64>>) {
        let (Change::Seen(server) | Change::Gone(server)) = change;
        let object = ObjectRef::from_obj(&**server);
        let generation = server.metadata.generation;
        let changed = match change {
            Change::Seen(_) => seen.insert(object.clone(), generation) != Some(generation),
            Change::Gone(_) => {
                seen.remove(&object);
                true
            }
        };
        if changed {
            self.sessions_of(&server.namespace().unwrap_or_default(), &server.name_any());
        }
        self.triggers.servers.fire(object);
    }

    /// A pod changed: its server is looked at, which wakes the sessions that it concerns.
    pub fn pod(&self, change: &Change<Pod>) {
        let (Change::Seen(pod) | Change::Gone(pod)) = change;
        match (change, pod.uid()) {
            (Change::Seen(_), _) => self.fleet.follow(pod),
            (Change::Gone(_), Some(uid)) => {
                self.fleet.drop_pod(&uid);
                self.slots.with(|book| book.spare(&uid));
            }
            (Change::Gone(_), None) => {}
        }
        if let Some(server) = owner(pod) {
            self.triggers.servers.fire_named(&pod.namespace().unwrap_or_default(), &server);
        }
    }

    /// A Secret changed: servers that name it are looked at, and all their sessions.
    pub fn secret(&self, change: &Change<Secret>) {
        let (Change::Seen(secret) | Change::Gone(secret)) = change;
        let (namespace, name) = (secret.namespace(), secret.name_any());
        let uses = |server: &McpServer| {
            server.namespace() == namespace
                && secret_ref(server).is_some_and(|shared| shared.secret_key_ref.name == name)
        };
        for server in self.stores.servers.state_filter(uses) {
            self.triggers.servers.fire(ObjectRef::from_obj(&*server));
            self.sessions_of(&server.namespace().unwrap_or_default(), &server.name_any());
        }
    }

    fn sessions_of(&self, namespace: &str, server: &str) {
        let uses = |session: &AgentSession| {
            session.namespace().as_deref() == Some(namespace)
                && session.spec.servers.iter().any(|binding| binding.name == server)
        };
        for session in self.stores.sessions.state_filter(uses) {
            self.triggers.sessions.fire(ObjectRef::from_obj(&*session));
        }
    }
}

/// Name of the `McpServer` that owns a pod.
pub fn owner(pod: &Pod) -> Option<String> {
    let kind = McpServer::kind(&());
    pod.owner_references().iter().find(|owner| owner.kind == kind).map(|owner| owner.name.clone())
}
