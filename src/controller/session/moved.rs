//! Ends a session that lives in pods that it has left for others and that are back.

use crate::api_error;
use crate::context::Context;
use crate::controller::session::strays::Stray;
use crate::controller::session::{end, holdings};
use berth_api::AgentSession;
use berth_plan::end::{Holding, State};
use berth_plan::session::build;
use berth_plan::session::moved::{LeftBehind, Told, is_stored, left_behind};
use berth_plan::session::status::Outcome;
use kube::ResourceExt;
use std::time::Duration;

/// Asks every sidecar that holds the session, though it has its slot of that server in another pod, to end it. What is returned
/// is left. A slot counts once the API server, asked live, says where it is: until then gateways may look for the session where
/// it was, and so may the next operator.
pub async fn leave(
    session: &AgentSession,
    outcomes: &[Outcome],
    strays: &[Stray],
    ctx: &Context,
) -> Vec<Holding> {
    let uid = session.uid().unwrap_or_default();
    let mut reports = ctx.fleet.reports_of(&uid);
    reports.retain(|reported| ctx.fleet.is_synced(&reported.pod));
    let told: Vec<Told<'_>> = reports
        .iter()
        .map(|reported| Told {
            server_uid: &reported.server_uid,
            pod_uid: &reported.pod,
            state: reported.report.state,
        })
        .collect();
    let behind = left_behind(outcomes, &told);
    if behind.is_empty() {
        return Vec::new();
    }
    let is_behind = |pod: &str| behind.iter().find(|left| left.pod_uid == pod);
    let mut held = holdings::holdings(session, strays, ctx);
    held.retain(|holding| is_behind(&holding.pod_uid).is_some());
    let stored = stored(session, ctx).await;
    let may_end =
        |left: &LeftBehind<'_>| stored.as_ref().is_some_and(|stored| is_stored(stored, &uid, left.place));
    let asked: Vec<usize> = held
        .iter()
        .enumerate()
        .filter(|(_, holding)| is_behind(&holding.pod_uid).is_some_and(may_end))
        .map(|(index, _)| index)
        .collect();
    let (drain, close) = end::bounds(session, held.iter().map(|holding| holding.server.as_str()), ctx);
    holdings::close(
        session,
        build::end_request(drain, close, end::WAIT),
        Duration::MAX,
        &mut held,
        &asked,
        ctx,
    )
    .await;
    for holding in held.iter().filter(|holding| matches!(holding.state, State::Answered(_))) {
        ctx.metrics.orphan_ended();
        let (session, pod) = (session.name_any(), &holding.pod);
        tracing::warn!(session, pod, "orphan ended: the session has its slot in another pod");
    }
    held.retain(|holding| !holding.is_over());
    held
}

/// The session as the API server has it now; nothing if that cannot be learnt.
async fn stored(session: &AgentSession, ctx: &Context) -> Option<AgentSession> {
    let (namespace, name) = (session.namespace().unwrap_or_default(), session.name_any());
    match ctx.api::<AgentSession>(&namespace).get_opt(&name).await {
        Ok(stored) => stored,
        Err(error) => {
            let error = api_error::text(&error);
            tracing::warn!(namespace, session = name, error, "cannot tell yet where a session has its slot");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::session::reconcile;
    use crate::fixture::{Log, Seen, context, deleted_session, failure, server, store_of};
    use crate::fleet::stand::{Stand, pod, report, until};
    use berth_api::label;
    use berth_plan::server::validate::accept;
    use berth_wire::SessionState;
    use http::Method;
    use k8s_openapi::api::core::v1::Pod;
    use kube::runtime::controller::Action;
    use serde_json::{Value, json};
    use std::sync::Arc;

    const UID: &str = "77-session";

    /// The session, bound in the pod `uid` by its status, which remembers that nobody has confirmed its end in the pod `pod`.
    fn bound_in(uid: &str) -> AgentSession {
        let place =
            json!({"name": "everything-x-1", "uid": uid, "address": "127.0.0.1", "serverUid": "server"});
        let left = json!({"server": "everything", "name": "everything-x-0", "uid": "pod"});
        let mut session = deleted_session(&json!({
            "servers": [{"name": "everything", "state": "Bound", "podRef": place}],
            "unconfirmed": [left],
        }));
        (session.metadata.deletion_timestamp, session.spec.end) = (None, None);
        session
    }

    fn ready(address: &str, name: &str, uid: &str) -> Pod {
        let revision = accept(&server("everything", &json!({}))).unwrap().key.revision;
        let mut ready = pod(address);
        ready.metadata.labels.get_or_insert_default().insert(label::REVISION.into(), revision);
        (ready.metadata.name, ready.metadata.uid) = (Some(name.into()), Some(uid.into()));
        ready
    }

    /// The session has moved from the pod `pod` at the first address to the pod `other` at the second one, and both sidecars tell of
    /// it; `stored` is what the API server says of it.
    async fn stage(addresses: [&str; 2], stored: (u16, Value)) -> (Context, Log, [Stand; 2]) {
        let answer = move |seen: &Seen| match seen.method {
            Method::GET => stored.clone(),
            _ => (200, json!(bound_in("other"))),
        };
        let (mut ctx, log) = context(answer).await;
        ctx.stores.servers = store_of(vec![server("everything", &json!({}))]);
        ctx.slots.know(&bound_in("other"));
        let pods =
            [ready(addresses[0], "everything-x-0", "pod"), ready(addresses[1], "everything-x-1", "other")];
        let left = Stand::start(&ctx.ca, addresses[0], vec![report(UID, SessionState::Connected)]).await;
        let place = Stand::start(&ctx.ca, addresses[1], vec![report(UID, SessionState::Idle)]).await;
        for pod in &pods {
            ctx.fleet.follow(pod);
        }
        ctx.stores.pods = store_of(pods.into());
        until("synced", || ctx.fleet.is_synced("pod") && ctx.fleet.is_synced("other")).await;
        (ctx, log, [left, place])
    }

    /// One look: when the next one is, and the status that was written.
    async fn look(ctx: &Context, log: &Log) -> (Action, Value) {
        let action = reconcile(Arc::new(bound_in("other")), ctx).await.unwrap();
        let mut patches = log.take().into_iter().filter(|seen| seen.method == Method::PATCH);
        let written = patches.next_back().expect("the status is written");
        (action, written.body[1]["value"].clone())
    }

    #[tokio::test]
    async fn a_session_ends_in_the_pod_that_it_has_left_when_that_is_back_and_is_confirmed() {
        let (ctx, log, [left, place]) =
            stage(["127.0.85.1", "127.0.85.2"], (200, json!(bound_in("other")))).await;
        assert!(ctx.fleet.occupancy("pod", vec![]).held.contains(UID));
        let (_, status) = look(&ctx, &log).await;
        assert_eq!(left.ended().into_iter().map(|(uid, _)| uid).collect::<Vec<_>>(), [UID]);
        assert_eq!((place.ended(), place.held()), (vec![], vec![UID.to_owned()]));
        assert!(ctx.fleet.occupancy("pod", vec![]).held.is_empty(), "the pod may go");
        assert_eq!(status.get("unconfirmed"), None, "its sidecar has confirmed the end");
        assert_eq!(status["servers"][0]["podRef"]["uid"], "other");
        assert_eq!(ctx.slots.promised_to("server", "other"), [UID]);
        look(&ctx, &log).await;
        assert_eq!((left.ended(), place.ended()), (vec![], vec![]), "nobody is asked again");
        assert_eq!(ctx.metrics.orphans(), 1);
    }

    #[tokio::test]
    async fn nothing_ends_while_the_api_server_does_not_say_that_the_session_is_in_the_other_pod() {
        let mut foreign = bound_in("other");
        foreign.metadata.uid = Some("another".into());
        let cases = [
            (["127.0.85.3", "127.0.85.4"], (200, json!(bound_in("pod")))),
            (["127.0.85.5", "127.0.85.6"], (200, json!(foreign))),
            (["127.0.85.7", "127.0.85.8"], failure(500, "InternalError", "etcd is away")),
        ];
        for (addresses, stored) in cases {
            let (ctx, log, [left, place]) = stage(addresses, stored).await;
            let (action, status) = look(&ctx, &log).await;
            assert_eq!((left.ended(), place.ended()), (vec![], vec![]), "{addresses:?}");
            assert_eq!(action, Action::requeue(Duration::from_secs(2)), "it is looked at again soon");
            assert_eq!(status["unconfirmed"][0]["uid"], "pod");
        }
    }

    #[tokio::test]
    async fn nothing_ends_and_nothing_is_read_while_one_of_the_two_sidecars_cannot_be_heard() {
        for (addresses, silent) in
            [(["127.0.85.9", "127.0.85.10"], "pod"), (["127.0.85.11", "127.0.85.12"], "other")]
        {
            let (ctx, log, [left, place]) = stage(addresses, (200, json!(bound_in("other")))).await;
            let cut = if silent == "pod" { &left } else { &place };
            cut.cancel.cancel();
            cut.lines.send("end".into()).unwrap();
            until("cut off", || !ctx.fleet.is_synced(silent)).await;
            reconcile(Arc::new(bound_in("other")), &ctx).await.unwrap();
            assert_eq!((left.ended(), place.ended()), (vec![], vec![]), "{silent}");
            assert!(log.take().iter().all(|seen| seen.method != Method::GET), "{silent}");
        }
    }
}
