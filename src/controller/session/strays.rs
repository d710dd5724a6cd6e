//! Pods that hold a session, or held it, that exist and that the cache does not have.
//!
//! The session stays in such a pod and goes on there as in any other, as far as its sidecar can be asked. Here nothing is
//! written: the pod is put in doubt, and the look at its server takes it back.

use crate::context::Context;
use crate::controller::{SOON, stray};
use berth_api::{AgentSession, McpServer, label};
use berth_plan::pod::{Life, PoolPod};
use berth_plan::server::build;
use berth_plan::session::status::Outcome;
use berth_plan::time::Moment;
use berth_wire::SessionState;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::time::Duration;

/// A pod that does not come back is looked for again after this: no event tells when people have deleted it.
const LOST: Duration = Duration::from_secs(15);

/// One of them.
#[derive(Clone, Debug)]
pub struct Stray {
    /// UID of its server.
    pub server_uid: String,
    /// The pod. It has no slots: nobody comes in beside those who are there.
    pub pod: PoolPod,
    /// Why it does not come back by itself; nothing while it may.
    why: Option<String>,
}

impl Stray {
    /// Whether the watch is to bring it with its next events.
    pub fn is_coming_back(&self) -> bool {
        self.why.is_none()
    }

    /// The outcome of a binding, with what people have to know if it has its slot in this pod.
    pub fn noted(&self, outcome: Outcome) -> Outcome {
        match (&outcome, &self.why) {
            (Outcome::Held { pod, .. }, Some(why)) if pod.uid == self.pod.uid => outcome.noted(&format!(
                "pod {:?}, which holds a slot of the session, is lost: {why}; delete it",
                self.pod.name
            )),
            _ => outcome,
        }
    }
}

/// When to look again; none if there is nothing to look for.
pub fn next_look(strays: &[Stray], now: Moment) -> Option<Moment> {
    strays.iter().map(|stray| now.plus(if stray.is_coming_back() { SOON } else { LOST })).min()
}

/// Looks for every pod that status or a sidecar's stream names and the cache does not have. A pod that was seen to end, and one
/// that was looked for before, is not read again: what is normal reads nothing.
pub async fn look(session: &AgentSession, ctx: &Context) -> Vec<Stray> {
    let namespace = session.namespace().unwrap_or_default();
    let (api, mut strays) = (ctx.api::<Pod>(&namespace), Vec::new());
    for missing in missing(session, &namespace, ctx) {
        match stray::read(&api, &missing.name, &missing.uid).await {
            Ok(None) => ctx.fleet.gone(&missing.uid),
            Ok(Some(pod)) => {
                let why = recall(&missing, ctx);
                strays.push(missing.found(pod, why, ctx));
            }
            Err(error) => {
                tracing::warn!(namespace, %error, "cannot tell yet what became of a pod");
                strays.push(missing.unread(error.forbidden(), ctx));
            }
        }
    }
    strays
}

/// Has the server of a pod look for it, and says why it does not come back, as far as that is known.
fn recall(missing: &Missing, ctx: &Context) -> Option<String> {
    let lives = |server: &McpServer| {
        server.metadata.uid.as_ref() == Some(&missing.server_uid)
            && server.metadata.deletion_timestamp.is_none()
    };
    let Some(server) = ctx.stores.servers.find(lives) else {
        let why = "its McpServer is gone".to_owned();
        ctx.fleet.found_stray(&missing.uid, Some(why.clone()));
        return Some(why);
    };
    ctx.fleet.put_in_doubt(&missing.server_uid, &missing.uid, &missing.name);
    ctx.triggers.servers.fire(ObjectRef::from_obj(&*server));
    ctx.fleet.why_stray(&missing.uid)
}

/// A pod that the cache does not have.
struct Missing {
    name: String,
    uid: String,
    server_uid: String,
    /// Address and revision, as status has them.
    known: Option<(String, String)>,
}

impl Missing {
    /// The pod as it was read just now: it is followed whatever labels it has, so that its sidecar can be asked.
    fn found(self, mut pod: Pod, why: Option<String>, ctx: &Context) -> Stray {
        if let Some(lost) = build::lost_labels(&pod) {
            pod.metadata.labels.get_or_insert_default().extend(lost);
        }
        ctx.fleet.follow(&pod);
        let read = PoolPod::read(&pod, ctx.fleet.occupancy(&self.uid, self.promised(ctx)));
        let revision = match self.known {
            Some((_, revision)) if read.revision.is_empty() => revision,
            _ => read.revision,
        };
        Stray { server_uid: self.server_uid, pod: PoolPod { slots: 0, revision, ..read }, why }
    }

    /// A pod that could not be read: what was known of it stands.
    fn unread(self, why: Option<String>, ctx: &Context) -> Stray {
        ctx.fleet.found_stray(&self.uid, why.clone());
        let occupancy = ctx.fleet.occupancy(&self.uid, self.promised(ctx));
        let (address, revision) = self.known.unzip();
        let pod = PoolPod {
            name: self.name,
            uid: self.uid,
            address,
            revision: revision.unwrap_or_default(),
            slots: 0,
            image: String::new(),
            life: Life::Ready,
            trouble: None,
            locked: false,
            occupancy,
        };
        Stray { server_uid: self.server_uid, pod, why }
    }

    fn promised(&self, ctx: &Context) -> Vec<String> {
        ctx.slots.promised_to(&self.server_uid, &self.uid)
    }
}

fn missing(session: &AgentSession, namespace: &str, ctx: &Context) -> Vec<Missing> {
    let in_cache = |name: &str, uid: &str, server_uid: &str| {
        let pod = ctx.stores.pods.get(&ObjectRef::new(name).within(namespace));
        pod.is_some_and(|pod| {
            pod.uid().as_deref() == Some(uid)
                && pod.labels().get(label::SERVER_UID).is_some_and(|held| held == server_uid)
        })
    };
    let reports = ctx.fleet.reports_of(&session.uid().unwrap_or_default());
    let is_over = |uid: &str| {
        let ended = |state: SessionState| state == SessionState::Ended;
        reports.iter().any(|reported| reported.pod == uid && ended(reported.report.state))
    };
    let entries = session.status.iter().flat_map(|status| &status.servers);
    let named = entries.filter_map(|entry| {
        let pod = entry.pod_ref.as_ref()?;
        let known = Some((pod.address.clone(), entry.revision.clone().unwrap_or_default()));
        let (name, uid) = (pod.name.clone(), pod.uid.clone());
        Some(Missing { name, uid, server_uid: pod.server_uid.clone(), known })
    });
    let told = reports.iter().map(|reported| Missing {
        name: reported.pod_name.clone(),
        uid: reported.pod.clone(),
        server_uid: reported.server_uid.clone(),
        known: None,
    });
    let mut missing: Vec<Missing> = Vec::new();
    for pod in named.chain(told) {
        let known = in_cache(&pod.name, &pod.uid, &pod.server_uid)
            || is_over(&pod.uid)
            || ctx.fleet.is_gone(&pod.uid);
        if !known && !missing.iter().any(|missing| missing.uid == pod.uid) {
            missing.push(pod);
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background;
    use crate::controller::look_again;
    use crate::controller::server::recall;
    use crate::controller::session::{bind, dereference, end, reconcile};
    use crate::controller::stray::tests::{PATH, pool_pod};
    use crate::fixture::{context, deleted_session, failure, server, store_of};
    use crate::fleet::stand::{Stand, pod, report, until};
    use crate::memory_api::MemoryApi;
    use berth_plan::server::validate::accept;
    use futures::{FutureExt, StreamExt};
    use http::Method;
    use k8s_openapi::jiff::Timestamp;
    use kube::runtime::controller::Action;
    use serde_json::{Value, json};
    use std::sync::Arc;

    const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/demo/events";
    const SESSION: &str = "/apis/berth.dev/v1alpha1/namespaces/demo/agentsessions/chat";

    /// Bound, by its status, in the pod `pod`.
    fn bound() -> AgentSession {
        let pod =
            json!({"name": "everything-x-0", "uid": "pod", "address": "127.0.0.1", "serverUid": "server"});
        let mut session =
            deleted_session(&json!({"servers": [{"name": "everything", "state": "Bound", "podRef": pod}]}));
        session.metadata.deletion_timestamp = None;
        session.spec.end = None;
        session
    }

    /// The same, deleted just now.
    fn ending() -> AgentSession {
        let mut session = bound();
        session.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now()));
        session
    }

    /// An operator whose cache has a free pod of the server at `address`, and not the one where the session is.
    async fn stage(address: &str) -> (Context, MemoryApi, Stand) {
        let api = MemoryApi::default();
        api.rule(|method, path| {
            (method == Method::PATCH && path.starts_with(SESSION))
                .then(|| (200, serde_json::to_value(deleted_session(&json!({}))).unwrap()))
        });
        let (ctx, _) = context(|_| failure(500, "InternalError", "not this one")).await;
        let mut ctx = Context { client: api.client(), ..ctx };
        let served = server("everything", &json!({}));
        let stand = Stand::start(&ctx.ca, address, vec![]).await;
        let mut free = pod(address);
        (free.metadata.name, free.metadata.uid) = (Some("everything-x-1".into()), Some("free".into()));
        let labels = free.metadata.labels.get_or_insert_default();
        labels.insert(label::REVISION.into(), accept(&served).unwrap().key.revision);
        ctx.stores.servers = store_of(vec![served]);
        ctx.stores.pods = store_of(vec![free.clone()]);
        ctx.fleet.follow(&free);
        until("synced", || ctx.fleet.is_synced("free")).await;
        (ctx, api, stand)
    }

    fn without_labels() -> Value {
        let mut pod = pool_pod();
        pod["metadata"].as_object_mut().unwrap().remove("labels");
        pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        pod
    }

    /// The writes so far but those to the session, taken out.
    fn writes(api: &MemoryApi) -> Vec<String> {
        api.writes().into_iter().filter(|line| !line.contains(SESSION)).collect()
    }

    #[tokio::test]
    async fn a_session_whose_pod_lost_its_labels_stays_and_goes_on_there_and_its_server_puts_them_back() {
        let (ctx, api, stand) = stage("127.0.82.1").await;
        let held = Stand::start(&ctx.ca, "127.0.82.11", vec![]).await;
        let mut pod = without_labels();
        pod["status"]["podIP"] = "127.0.82.11".into();
        api.put(PATH, pod);
        let mut looks = Box::pin(ctx.triggers.servers.stream());
        while looks.next().now_or_never().is_some() {}
        assert_eq!(reconcile(Arc::new(bound()), &ctx).await.unwrap(), look_again());
        assert_eq!((held.held(), stand.held()), (vec!["77-session".to_owned()], vec![]));
        assert_eq!(writes(&api), Vec::<String>::new(), "the look at the server alone writes to pods");
        assert_eq!(looks.next().await.unwrap().name, "everything");
        assert!(recall("demo", "server", &ctx).await.is_none());
        assert_eq!(api.get(PATH).unwrap()["metadata"]["labels"], pool_pod()["metadata"]["labels"]);
        assert_eq!(writes(&api), [format!("PATCH {PATH}")]);
        assert_eq!(reconcile(Arc::new(bound()), &ctx).await.unwrap(), look_again());
        assert_eq!((writes(&api), stand.held()), (vec![], vec![]));
    }

    #[tokio::test]
    async fn a_pod_that_cannot_be_taken_back_is_named_with_the_remedy_and_other_bindings_go_on() {
        let (mut ctx, api, stand) = stage("127.0.82.2").await;
        let mut astray = server("astray", &json!({}));
        astray.metadata.uid = Some("astray".into());
        let revision = accept(&astray).unwrap().key.revision;
        ctx.stores.servers = store_of(vec![astray, server("everything", &json!({}))]);
        let mut pod = without_labels();
        pod["metadata"].as_object_mut().unwrap().remove("ownerReferences");
        api.put(PATH, pod);
        let mut session = bound();
        let mut other = session.spec.servers[0].clone();
        other.name = "astray".into();
        session.spec.servers.insert(0, other);
        let entry = &mut session.status.as_mut().unwrap().servers[0];
        (entry.name, entry.revision) = ("astray".into(), Some(revision));
        entry.pod_ref.as_mut().unwrap().server_uid = "astray".into();

        reconcile(Arc::new(session.clone()), &ctx).await.unwrap();
        assert_eq!(stand.held(), ["77-session"], "at the other server");
        assert!(recall("demo", "astray", &ctx).await.is_some());
        assert_eq!(reconcile(Arc::new(session.clone()), &ctx).await.unwrap(), Action::requeue(LOST));
        let strays = look(&session, &ctx).await;
        let binding = dereference::bindings(&session, &ctx).await.remove(0);
        let outcome = bind::bind(&session, binding, &strays, &ctx, ctx.clock.now()).await;
        let Outcome::Held { pod, note: Some(note), .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(pod.uid, "pod");
        assert!(note.contains("pod \"everything-x-0\"") && note.ends_with("delete it"), "{note}");
        assert_eq!(writes(&api), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_session_whose_pod_is_gone_is_placed_anew_and_nobody_looks_twice() {
        let (ctx, api, stand) = stage("127.0.82.3").await;
        let reads = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = reads.clone();
        api.rule(move |method, path| {
            if method == Method::GET && path == PATH {
                counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
            None
        });
        for _ in 0..3 {
            reconcile(Arc::new(bound()), &ctx).await.unwrap();
        }
        assert_eq!(stand.held(), ["77-session"]);
        assert_eq!(reads.load(std::sync::atomic::Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn an_end_waits_for_a_pod_that_comes_back_and_asks_it() {
        let (mut ctx, api, _stand) = stage("127.0.82.4").await;
        api.put(PATH, without_labels());
        assert_eq!(end::end(&ending(), &ctx).await.unwrap(), look_again());
        assert_eq!(api.writes(), Vec::<String>::new());
        assert!(recall("demo", "server", &ctx).await.is_none());
        // The watch brings it.
        let held = Stand::start(&ctx.ca, "127.0.82.5", vec![report("77-session", SessionState::Idle)]).await;
        ctx.stores.pods = store_of(vec![pod("127.0.82.5")]);
        ctx.fleet.follow(&pod("127.0.82.5"));
        until("synced", || ctx.fleet.is_synced("pod")).await;
        end::end(&ending(), &ctx).await.unwrap();
        assert_eq!(held.ended()[0].0, "77-session");
        let events: Vec<String> = api.paths().into_iter().filter(|path| path.starts_with(EVENTS)).collect();
        assert_eq!(api.get(&events[0]).unwrap()["type"], "Normal");
    }

    #[tokio::test]
    async fn an_end_asks_a_pod_that_cannot_be_taken_back_by_its_stream_or_names_it() {
        for (address, at, followed) in
            [("127.0.82.6", "127.0.82.7", true), ("127.0.82.8", "127.0.82.9", false)]
        {
            let (mut ctx, api, _stand) = stage(address).await;
            ctx.stores.sessions = store_of(vec![ending()]);
            ctx.slots.know(&ending());
            api.put(PATH, without_labels());
            api.rule(|method, path| {
                (method == Method::PATCH && path == PATH)
                    .then(|| failure(403, "Forbidden", "a policy says no"))
            });
            let held = Stand::start(&ctx.ca, at, vec![report("77-session", SessionState::Idle)]).await;
            if followed {
                ctx.fleet.follow(&pod(at));
                until("synced", || ctx.fleet.is_synced("pod")).await;
                ctx.fleet.doubt(&pod(at));
            }
            assert_eq!(end::end(&ending(), &ctx).await.unwrap(), look_again());
            assert!(recall("demo", "server", &ctx).await.is_some());
            // A sweep comes between, which sees that the cache does not have the pod.
            background::forget_gone(&ctx);
            end::end(&ending(), &ctx).await.unwrap();
            assert_eq!(held.ended().len(), usize::from(followed));
            let events: Vec<String> =
                api.paths().into_iter().filter(|path| path.starts_with(EVENTS)).collect();
            let event = api.get(&events[0]).unwrap();
            let note = event["note"].as_str().unwrap();
            if followed {
                assert_eq!(event["type"], "Normal", "{note}");
            } else {
                assert_eq!(event["reason"], "CleanupIncomplete");
                assert!(note.contains("everything-x-0") && note.contains("the pod exists"), "{note}");
            }
        }
    }
}
