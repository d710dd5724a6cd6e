//! Which objects a change concerns.

use crate::context::Triggers;
use crate::fleet::Fleet;
use crate::slots::Slots;
use crate::watch::{Change, Stores};
use berth_api::{AgentSession, McpServer, ServerBinding, label};
use berth_plan::pod::Trouble;
use berth_plan::server::authorities::names_secret;
use berth_plan::server::build;
use berth_plan::server::status::trouble;
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

/// What was seen of a server before.
pub struct Seen {
    /// Its UID and generation: one that was made anew, while the watch was down, begins with the same generation.
    version: (Option<String>, Option<i64>),
    /// What its status last said is wrong with its pool.
    trouble: Option<Trouble>,
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

    /// A server changed: it is looked at, and so are its sessions when its spec changed or it is gone, and those that wait when
    /// another trouble of its pool concerns them. `seen` holds what was seen before, since status writes must not concern all
    /// sessions.
    pub fn server(&self, change: &Change<McpServer>, seen: &mut HashMap<ObjectRef<McpServer>, Seen>) {
        let (Change::Seen(server) | Change::Gone(server)) = change;
        let object = ObjectRef::from_obj(&**server);
        let (namespace, name) = (server.namespace().unwrap_or_default(), server.name_any());
        let before = seen.remove(&object);
        if matches!(change, Change::Seen(_)) {
            let (version, trouble) = ((server.uid(), server.metadata.generation), trouble(server));
            let is_new = trouble.is_some() && before.as_ref().is_none_or(|before| before.trouble != trouble);
            let changed = before.as_ref().is_none_or(|before| before.version != version);
            // One that comes and goes with the last free slot is told once.
            let trouble = trouble.or_else(|| before.and_then(|before| before.trouble));
            seen.insert(object.clone(), Seen { version, trouble });
            let server_uid = server.uid().unwrap_or_default();
            let waits = |session: &AgentSession| {
                let uid = session.uid().unwrap_or_default();
                self.slots.with(|book| book.promise_of(&uid, &server_uid).is_none())
            };
            if changed || is_new {
                self.sessions_of(&namespace, &name, |session| changed || waits(session));
            }
        } else {
            self.sessions_of(&namespace, &name, |_| true);
        }
        self.triggers.servers.fire(object);
    }

    /// A pod changed: its server is looked at, which wakes the sessions that it concerns.
    pub fn pod(&self, change: &Change<Pod>) {
        let (Change::Seen(pod) | Change::Gone(pod)) = change;
        let server = owner(pod).or_else(|| self.labelled_owner(pod));
        match (change, pod.uid()) {
            (Change::Seen(_), uid) => {
                if let Some(server) = &server {
                    self.fleet.follow_of(server, pod);
                }
                self.fleet.is_back(&uid.unwrap_or_default());
                if build::lost_labels(pod).is_some_and(|lost| !lost.is_empty()) {
                    // The look at its server puts them back.
                    self.fleet.ask_for(pod);
                }
            }
            (Change::Gone(_), Some(uid)) => {
                // One that was not seen on its way out may be there still, without the labels that the watch selects by.
                match pod.metadata.deletion_timestamp {
                    Some(_) => self.fleet.gone(&uid),
                    None => self.fleet.doubt(pod),
                }
                self.slots.pod_gone(&uid);
            }
            (Change::Gone(_), None) => {}
        }
        if let Some(server) = server {
            self.triggers.servers.fire_named(&pod.namespace().unwrap_or_default(), &server);
        }
    }

    /// The server of a pod that has no owner any more, by its label: its name, or its UID when it is gone, as it is where that was
    /// deleted with `--cascade=orphan`. The pod's sessions have to end all the same.
    fn labelled_owner(&self, pod: &Pod) -> Option<String> {
        let uid = pod.labels().get(label::SERVER_UID)?;
        let server = self.stores.servers.find(|server| server.metadata.uid.as_ref() == Some(uid));
        Some(server.map_or_else(|| uid.clone(), |server| server.name_any()))
    }

    /// A Secret changed: servers that name it are looked at, and all their sessions; so are sessions that name it themselves, and
    /// their servers, since who has a credential can take a slot.
    pub fn secret(&self, change: &Change<Secret>) {
        let (Change::Seen(secret) | Change::Gone(secret)) = change;
        let (namespace, name) = (secret.namespace().unwrap_or_default(), secret.name_any());
        let uses = |server: &McpServer| {
            server.metadata.namespace.as_ref() == Some(&namespace)
                && (secret_ref(server).is_some_and(|shared| shared.secret_key_ref.name == name)
                    || names_secret(server, &name))
        };
        for server in self.stores.servers.state_filter(uses) {
            self.triggers.servers.fire(ObjectRef::from_obj(&*server));
            self.sessions_of(&namespace, &server.name_any(), |_| true);
        }
        let names = |binding: &ServerBinding| {
            binding.credential.as_ref().is_some_and(|credential| credential.secret_key_ref.name == name)
        };
        let uses = |session: &AgentSession| {
            session.metadata.namespace.as_ref() == Some(&namespace) && session.spec.servers.iter().any(names)
        };
        for session in self.stores.sessions.state_filter(uses) {
            self.triggers.sessions.fire(ObjectRef::from_obj(&*session));
            for binding in session.spec.servers.iter().filter(|binding| names(binding)) {
                self.triggers.servers.fire_named(&namespace, &binding.name);
            }
        }
    }

    /// Asks for a look at the sessions that name a server, and that it `concerns`.
    fn sessions_of(&self, namespace: &str, server: &str, concerns: impl Fn(&AgentSession) -> bool) {
        let uses = |session: &AgentSession| {
            session.namespace().as_deref() == Some(namespace)
                && session.spec.servers.iter().any(|binding| binding.name == server)
        };
        // What asks the book comes after the store let go: the book is locked before a store, never the other way round.
        for session in self.stores.sessions.state_filter(uses).iter().filter(|session| concerns(session)) {
            self.triggers.sessions.fire(ObjectRef::from_obj(&**session));
        }
    }
}

/// Name of the `McpServer` that owns a pod.
pub fn owner(pod: &Pod) -> Option<String> {
    let kind = McpServer::kind(&());
    pod.owner_references().iter().find(|owner| owner.kind == kind).map(|owner| owner.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{context, deleted_session, failure, server, store_of};
    use berth_plan::server::validate::accept;
    use futures::{FutureExt, StreamExt};
    use serde_json::json;
    use std::collections::BTreeSet;

    fn session(namespace: &str, name: &str, server: &str, secret: Option<&str>) -> AgentSession {
        let mut session = deleted_session(&json!({}));
        session.metadata.namespace = Some(namespace.into());
        session.metadata.name = Some(name.into());
        let credential = secret.map(|name| json!({"secretKeyRef": {"name": name, "key": "token"}}));
        session.spec.servers =
            serde_json::from_value(json!([{"name": server, "credential": credential}])).unwrap();
        session
    }

    /// The objects that were asked to be looked at since the last time.
    fn fired<K: Resource<DynamicType = ()> + Send + Sync + 'static>(
        trigger: &crate::trigger::Trigger<K>,
    ) -> BTreeSet<String> {
        let mut looks = Box::pin(trigger.stream());
        std::iter::from_fn(|| looks.next().now_or_never().flatten())
            .map(|object| format!("{}/{}", object.namespace.unwrap_or_default(), object.name))
            .collect()
    }

    fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
        names.map(str::to_owned).into()
    }

    #[tokio::test]
    async fn a_secret_that_comes_changes_or_goes_concerns_all_who_name_it_in_its_namespace() {
        let (ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
        let shared =
            json!({"auth": {"type": "Shared", "shared": {"secretKeyRef": {"name": "token", "key": "k"}}}});
        let http = json!({"url": "https://a.test/", "tls": {"caRef": {"kind": "Secret", "name": "token", "key": "k"}}});
        let trusting = json!({"transport": {"type": "Http", "http": http}});
        let mut stores = ctx.stores.clone();
        stores.servers = store_of(vec![
            server("shared", &shared),
            server("own", &json!({})),
            server("trusting", &trusting),
        ]);
        stores.sessions = store_of(vec![
            session("demo", "of-shared", "shared", None),
            session("demo", "of-trusting", "trusting", None),
            session("demo", "names-it", "own", Some("token")),
            session("demo", "names-another", "own", Some("another")),
            session("elsewhere", "names-its-namesake", "own", Some("token")),
        ]);
        let routes = Routes {
            stores,
            triggers: ctx.triggers.clone(),
            slots: ctx.slots.clone(),
            fleet: ctx.fleet.clone(),
        };
        let secret = |name: &str| {
            let secret = json!({"metadata": {"name": name, "namespace": "demo"}});
            Arc::new(serde_json::from_value::<Secret>(secret).unwrap())
        };
        for change in [Change::Seen(secret("token")), Change::Gone(secret("token"))] {
            routes.secret(&change);
            assert_eq!(
                fired(&ctx.triggers.sessions),
                names(["demo/names-it", "demo/of-shared", "demo/of-trusting"])
            );
            assert_eq!(fired(&ctx.triggers.servers), names(["demo/own", "demo/shared", "demo/trusting"]));
        }
        routes.secret(&Change::Seen(secret("unused")));
        assert_eq!((fired(&ctx.triggers.sessions), fired(&ctx.triggers.servers)), Default::default());
    }

    #[tokio::test]
    async fn a_server_that_goes_concerns_all_its_sessions_at_once_and_one_whose_status_changes_none() {
        let (ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
        let mut stores = ctx.stores.clone();
        stores.sessions = store_of(vec![
            session("demo", "of-it", "gone", None),
            session("demo", "of-another", "own", None),
            session("elsewhere", "of-its-namesake", "gone", None),
        ]);
        let (triggers, slots, fleet) = (ctx.triggers.clone(), ctx.slots.clone(), ctx.fleet.clone());
        let (routes, mut seen) = (Routes { stores, triggers, slots, fleet }, HashMap::new());
        let mut server = server("gone", &json!({}));
        routes.server(&Change::Seen(Arc::new(server.clone())), &mut seen);
        fired(&ctx.triggers.sessions);
        routes.server(&Change::Seen(Arc::new(server.clone())), &mut seen);
        assert_eq!(fired(&ctx.triggers.sessions), names([]));
        // Deleted and made anew while the watch was down: both are of the same generation.
        server.metadata.uid = Some("anew".into());
        routes.server(&Change::Seen(Arc::new(server.clone())), &mut seen);
        assert_eq!(fired(&ctx.triggers.sessions), names(["demo/of-it"]));
        // A deletion that waits for the pods: the API server counts the generation up with it.
        server.metadata.generation = server.metadata.generation.map_or(Some(1), |held| Some(held + 1));
        for change in [Change::Seen(Arc::new(server.clone())), Change::Gone(Arc::new(server))] {
            routes.server(&change, &mut seen);
            assert_eq!(fired(&ctx.triggers.sessions), names(["demo/of-it"]));
        }
    }

    #[tokio::test]
    async fn those_who_wait_are_told_of_a_trouble_of_the_pool_once_and_of_another_one_anew() {
        let (ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
        let mut stores = ctx.stores.clone();
        let mut holds = session("demo", "holds", "everything", None);
        holds.metadata.uid = Some("holds".into());
        stores.sessions = store_of(vec![session("demo", "waits", "everything", None), holds]);
        ctx.slots.with(|book| book.promise("holds", "server", "pod"));
        let (triggers, slots, fleet) = (ctx.triggers.clone(), ctx.slots.clone(), ctx.fleet.clone());
        let (routes, mut seen) = (Routes { stores, triggers, slots, fleet }, HashMap::new());
        let mut told = |status: &str, reason: &str, message: &str| {
            let mut server = server("everything", &json!({}));
            let ready = json!({"type": "Ready", "status": status, "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 3});
            let whole =
                json!({"conditions": [ready], "pods": 0, "readyPods": 0, "sessions": 0, "freeSlots": 0});
            server.status = serde_json::from_value(whole).unwrap();
            routes.server(&Change::Seen(Arc::new(server)), &mut seen);
            fired(&ctx.triggers.sessions)
        };
        assert_eq!(told("False", "PoolStarting", "").len(), 2, "it is new");
        assert_eq!(told("False", "QuotaExceeded", "q"), names(["demo/waits"]));
        for (status, reason) in
            [("False", "QuotaExceeded"), ("True", "PoolReady"), ("False", "QuotaExceeded")]
        {
            assert_eq!(told(status, reason, "q"), names([]), "{reason}");
        }
        assert_eq!(told("False", "Unschedulable", "0/1 nodes"), names(["demo/waits"]));
    }

    #[tokio::test]
    async fn a_pod_that_lost_its_owner_is_followed_for_the_server_of_its_label() {
        for (address, servers, named) in [
            ("127.0.83.2", vec![server("everything", &json!({}))], "everything"),
            ("127.0.83.3", vec![], "server"),
        ] {
            let (ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
            let held = crate::fleet::stand::report("held", berth_wire::SessionState::Idle);
            let _stand = crate::fleet::stand::Stand::start(&ctx.ca, address, vec![held]).await;
            let (mut stores, triggers) = (ctx.stores.clone(), ctx.triggers.clone());
            stores.servers = store_of(servers);
            let routes = Routes { stores, triggers, slots: ctx.slots.clone(), fleet: ctx.fleet.clone() };
            let mut pod = crate::fleet::stand::pod(address);
            pod.metadata.owner_references = None;
            routes.pod(&Change::Seen(Arc::new(pod)));
            crate::fleet::stand::until("synced", || ctx.fleet.is_synced("pod")).await;
            assert_eq!(ctx.fleet.reports_of("held")[0].server, named);
            assert!(fired(&ctx.triggers.servers).contains(&format!("demo/{named}")));
        }
    }

    #[tokio::test]
    async fn a_pod_that_lost_a_label_is_looked_for_by_its_server_though_the_watch_still_brings_it() {
        let (ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
        let (stores, triggers) = (ctx.stores.clone(), ctx.triggers.clone());
        let routes = Routes { stores, triggers, slots: ctx.slots.clone(), fleet: ctx.fleet.clone() };
        let valid = accept(&server("everything", &json!({}))).unwrap();
        let sidecar = build::Sidecar { image: "berth:1".into(), ..build::Sidecar::default() };
        let mut whole = build::pod(&valid, &sidecar, "everything-x-0");
        whole.metadata.uid = Some("pod".into());
        routes.pod(&Change::Seen(Arc::new(whole.clone())));
        assert_eq!(ctx.fleet.take_doubted("server"), []);
        for key in [label::MANAGED_BY, label::REVISION, label::SERVER_UID, "app.kubernetes.io/name"] {
            let mut pod = whole.clone();
            pod.metadata.labels.as_mut().unwrap().insert(key.into(), "another".into());
            crate::watch::prune::pod(&mut pod);
            routes.pod(&Change::Seen(Arc::new(pod)));
            assert_eq!(ctx.fleet.take_doubted("server").len(), 1, "{key}");
            assert!(fired(&ctx.triggers.servers).contains("demo/everything"), "{key}");
        }
    }

    #[tokio::test]
    async fn a_pod_that_leaves_the_cache_is_gone_only_if_it_was_seen_to_end() {
        let (ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
        let (stores, triggers) = (ctx.stores.clone(), ctx.triggers.clone());
        let routes = Routes { stores, triggers, slots: ctx.slots.clone(), fleet: ctx.fleet.clone() };
        let mut pod = crate::fleet::stand::pod("127.0.83.1");
        routes.pod(&Change::Gone(Arc::new(pod.clone())));
        assert!(!ctx.fleet.is_gone("pod"));
        assert_eq!(ctx.fleet.take_doubted("server"), [("pod".to_owned(), "everything-x-0".to_owned())]);
        pod.metadata.deletion_timestamp = deleted_session(&json!({})).metadata.deletion_timestamp;
        routes.pod(&Change::Gone(Arc::new(pod)));
        assert!(ctx.fleet.is_gone("pod") && ctx.fleet.take_doubted("server").is_empty());
        assert_eq!(fired(&ctx.triggers.servers), names(["demo/everything"]));
    }
}
