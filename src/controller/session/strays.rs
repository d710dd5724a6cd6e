//! Pods that hold a session, or held it, and that the cache does not have.

use crate::context::Context;
use crate::controller::stray::{self, Found};
use berth_api::{AgentSession, label};
use berth_wire::SessionState;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

/// What was found of them; those that do not exist are left out.
#[derive(Debug, Default)]
pub struct Strays {
    /// Some come back with the next events of the watch.
    pub are_coming_back: bool,
    /// UIDs of all of them.
    pub uids: Vec<String>,
    /// Of one that does not come back: what people are told.
    pub lost: Option<String>,
}

/// Looks for every pod that status or a sidecar's stream names and the cache does not have. A pod that was seen to end, and one
/// that was looked for before, is not read again: what is normal reads nothing.
pub async fn look(session: &AgentSession, ctx: &Context) -> Result<Strays, stray::Error> {
    let namespace = session.namespace().unwrap_or_default();
    let (api, mut strays) = (ctx.api::<Pod>(&namespace), Strays::default());
    for missing in missing(session, &namespace, ctx) {
        match stray::look(&api, &missing.name, &missing.uid).await? {
            Found::Gone => {
                ctx.fleet.gone(&missing.uid);
                continue;
            }
            Found::Back => strays.are_coming_back = true,
            Found::Stray(why) => {
                let name = missing.name;
                strays.lost = Some(format!(
                    "pod {name:?}, which holds a slot of the session, is lost: {why}; delete it"
                ));
            }
        }
        strays.uids.push(missing.uid);
    }
    Ok(strays)
}

struct Missing {
    name: String,
    uid: String,
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
    let in_status = entries.filter_map(|entry| entry.pod_ref.as_ref());
    let named = in_status.map(|pod| (&pod.name, &pod.uid, &pod.server_uid));
    let told = reports.iter().map(|reported| (&reported.pod_name, &reported.pod, &reported.server_uid));
    let mut missing: Vec<Missing> = Vec::new();
    for (name, uid, server_uid) in named.chain(told) {
        let known = in_cache(name, uid, server_uid) || is_over(uid) || ctx.fleet.is_gone(uid);
        if !known && !missing.iter().any(|missing| missing.uid == *uid) {
            missing.push(Missing { name: name.clone(), uid: uid.clone() });
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::session::{Error, end, finalizer, reconcile};
    use crate::controller::stray::tests::{PATH, pool_pod};
    use crate::fixture::{context, deleted_session, failure, server, store_of};
    use crate::fleet::stand::{Stand, pod, report, until};
    use crate::memory_api::MemoryApi;
    use berth_plan::server::validate::accept;
    use http::Method;
    use k8s_openapi::jiff::Timestamp;
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
        pod
    }

    #[tokio::test]
    async fn a_session_whose_pod_lost_its_labels_stays_there_and_the_labels_are_put_back() {
        let (ctx, api, stand) = stage("127.0.82.1").await;
        api.put(PATH, without_labels());
        assert_eq!(reconcile(Arc::new(bound()), &ctx).await.unwrap(), finalizer::look_again());
        assert_eq!(api.get(PATH).unwrap()["metadata"]["labels"], pool_pod()["metadata"]["labels"]);
        // Until the cache has it again nothing is written, and nothing more than a look is needed.
        assert_eq!(api.writes(), [format!("PATCH {PATH}")]);
        assert_eq!(reconcile(Arc::new(bound()), &ctx).await.unwrap(), finalizer::look_again());
        assert_eq!(api.writes(), Vec::<String>::new());
        assert_eq!(stand.held(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_pod_that_cannot_be_taken_back_keeps_its_session_and_is_named_with_the_remedy() {
        let (ctx, api, stand) = stage("127.0.82.2").await;
        let mut pod = without_labels();
        pod["metadata"].as_object_mut().unwrap().remove("ownerReferences");
        api.put(PATH, pod);
        let error = reconcile(Arc::new(bound()), &ctx).await.unwrap_err();
        assert!(matches!(error, Error::Lost(_)));
        let text = error.to_string();
        assert!(text.contains("pod \"everything-x-0\"") && text.ends_with("delete it"), "{text}");
        assert_eq!((api.writes(), stand.held()), (vec![], vec![]));
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
        assert_eq!(end::end(&ending(), &ctx).await.unwrap(), finalizer::look_again());
        assert_eq!(api.writes(), [format!("PATCH {PATH}")]);
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
            let (ctx, api, _stand) = stage(address).await;
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
