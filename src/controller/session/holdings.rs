//! The pods that hold a session, or held it, and the request to end it there.

use crate::context::Context;
use crate::controller::session::strays::Stray;
use crate::watch::routes;
use berth_api::AgentSession;
use berth_plan::end::{self, Holding, Known, State};
use berth_plan::pod::PoolPod;
use berth_wire::EndRequest;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::sync::Arc;
use std::time::Duration;

/// Every pod that holds the session or held it: what status says, what this process promised, what sidecars report. A crash
/// between a PUT and the status write loses none of them. `strays` are pods that exist and are not in the cache.
pub fn holdings(session: &AgentSession, strays: &[Stray], ctx: &Context) -> Vec<Holding> {
    let uid = session.uid().unwrap_or_default();
    let mut holdings: Vec<Holding> = Vec::new();
    let mut add = |server: String, pod: String, pod_uid: String, taken: bool, restarted: bool| {
        if !holdings.iter().any(|held| held.pod_uid == pod_uid) {
            holdings.push(Holding { server, pod, pod_uid, state: State::Unasked, taken, restarted });
        }
    };
    for pod in session.status.iter().flat_map(|status| &status.unconfirmed) {
        add(pod.server.clone(), pod.name.clone(), pod.uid.clone(), true, pod.restarted);
    }
    for server in session.status.iter().flat_map(|status| &status.servers) {
        if let Some(pod) = &server.pod_ref {
            add(server.name.clone(), pod.name.clone(), pod.uid.clone(), true, false);
        }
    }
    let reports = ctx.fleet.reports_of(&uid);
    for reported in &reports {
        add(reported.server.clone(), reported.pod_name.clone(), reported.pod.clone(), false, false);
    }
    for (_, pod_uid) in ctx.slots.promises_of(&uid) {
        if let Some(pod) = pod_of(&pod_uid, ctx) {
            add(routes::owner(&pod).unwrap_or_default(), pod.name_any(), pod_uid, false, false);
        }
    }
    for holding in &mut holdings {
        let reported = reports.iter().find(|reported| reported.pod == holding.pod_uid);
        let ended = reported.and_then(|reported| reported.report.end);
        let pod = pod_of(&holding.pod_uid, ctx);
        let known = match pod.as_deref() {
            Some(pod) => Known::Pod(pod),
            None if strays.iter().any(|stray| stray.pod.uid == holding.pod_uid) => {
                Known::Stray { reachable: ctx.fleet.is_reachable(&holding.pod_uid) }
            }
            None => Known::Gone,
        };
        holding.state = end::first_state(known, ended);
        holding.taken |= reported.is_some();
        holding.restarted |= ctx.fleet.has_lost(&holding.pod_uid, &uid)
            || pod.is_some_and(|pod| end::is_restarted(&pod, session));
    }
    holdings
}

/// Whether a ready pod of the session's servers, those among them that it is just leaving, has not told yet which sessions
/// it holds.
pub fn unheard(session: &AgentSession, ctx: &Context) -> bool {
    let namespace = session.namespace();
    let named = |server: &str| {
        let in_status = session.status.iter().flat_map(|status| &status.servers);
        session.spec.servers.iter().any(|binding| binding.name == server)
            || in_status.into_iter().any(|entry| entry.name == server)
    };
    let may_hold = |pod: &Pod| {
        pod.namespace() == namespace
            && routes::owner(pod).is_some_and(|server| named(&server))
            && PoolPod::read(pod, ctx.fleet.occupancy(&pod.uid().unwrap_or_default(), vec![])).is_unheard()
    };
    // One that this process deletes is surely empty, though the cache may still show it ready. The book is never asked under the
    // lock of the cache.
    let condemned = |pod: &Arc<Pod>| ctx.slots.with(|book| book.is_condemned(&pod.uid().unwrap_or_default()));
    !ctx.stores.pods.state_filter(may_hold).iter().all(condemned)
}

/// Asks the sidecars of `asked` (indices of `holdings`) to end the session, all at once, and notes what they answer `within` that
/// time.
pub async fn close(
    session: &AgentSession,
    request: EndRequest,
    within: Duration,
    holdings: &mut [Holding],
    asked: &[usize],
    ctx: &Context,
) {
    let uid = session.uid().unwrap_or_default();
    let pods: Vec<(usize, String)> =
        asked.iter().filter_map(|index| Some((*index, holdings.get(*index)?.pod_uid.clone()))).collect();
    let asks = pods.iter().map(|(_, pod)| ctx.fleet.end_within(pod, &uid, request, within));
    let answers = join_all(asks).await;
    for ((index, _), answer) in pods.iter().zip(answers) {
        let Some(holding) = holdings.get_mut(*index) else { continue };
        holding.state = match answer {
            Ok(report) => State::Answered(report),
            Err(error) => {
                tracing::info!(session = session.name_any(), pod = holding.pod, %error, "end not confirmed yet");
                State::Silent
            }
        };
    }
}

fn pod_of(uid: &str, ctx: &Context) -> Option<Arc<Pod>> {
    ctx.stores.pods.find(|pod| pod.metadata.uid.as_deref() == Some(uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::session::{end, reconcile};
    use crate::fixture::{Log, Seen, context, deleted_session, failure, server, store_of};
    use crate::fleet::stand::{Stand, pod, report, until};
    use berth_api::label;
    use berth_plan::server::validate::accept;
    use berth_wire::{EndReport, Outcome, SessionReport, SessionState, WatchLine};
    use http::Method;
    use serde_json::{Value, json};

    const UID: &str = "77-session";

    /// A session that lives, with that status.
    fn living(status: &Value) -> AgentSession {
        let mut session = deleted_session(status);
        (session.metadata.deletion_timestamp, session.spec.end) = (None, None);
        session
    }

    /// The status of one that is bound to the pod `pod`.
    fn bound() -> Value {
        let pod =
            json!({"name": "everything-x-0", "uid": "pod", "address": "127.0.0.1", "serverUid": "server"});
        json!({"servers": [{"name": "everything", "state": "Bound", "podRef": pod}]})
    }

    fn answer(seen: &Seen) -> (u16, Value) {
        match seen.method {
            Method::GET => failure(404, "NotFound", "no"),
            Method::PATCH => (200, json!(living(&bound()))),
            _ => (201, seen.body.clone()),
        }
    }

    /// An operator that knows the session, its server and, by its stream, what the sidecar at `address` holds.
    async fn operator(address: &str, holds: Vec<SessionReport>) -> (Context, Log, Stand) {
        let (mut ctx, log) = context(answer).await;
        ctx.stores.servers = store_of(vec![server("everything", &json!({}))]);
        let stand = Stand::start(&ctx.ca, address, holds).await;
        ctx.slots.know(&living(&bound()));
        ctx.fleet.follow(&pod(address));
        until("synced", || ctx.fleet.is_synced("pod")).await;
        (ctx, log, stand)
    }

    /// The status that a look at the session wrote.
    async fn written(session: AgentSession, ctx: &Context, log: &Log) -> Value {
        reconcile(Arc::new(session), ctx).await.unwrap();
        let mut patches = log.take().into_iter().filter(|seen| seen.method == Method::PATCH);
        patches.next_back().map_or(Value::Null, |seen| seen.body[1]["value"].clone())
    }

    /// The Event of the end that an operator tells which knows nothing but `status`.
    async fn told_by_the_next(status: &Value) -> Value {
        let (ctx, log) = context(answer).await;
        end::end(&deleted_session(status), &ctx).await.unwrap();
        log.take().into_iter().find(|seen| seen.method == Method::POST).unwrap().body
    }

    #[tokio::test]
    async fn a_pod_that_is_lost_is_named_at_the_end_whoever_tells_it_unless_nothing_was_left_there() {
        let over = EndReport { remove: Outcome::Confirmed, ..EndReport::NOTHING_HELD };
        let ended = SessionReport { end: Some(over), ..report(UID, SessionState::Ended) };
        let cases = [
            ("127.0.84.1", SessionState::Connected, None, true, true),
            ("127.0.84.2", SessionState::Connected, Some(ended), true, false),
            ("127.0.84.3", SessionState::Idle, None, true, false),
            ("127.0.84.4", SessionState::Idle, None, false, true),
        ];
        for (address, state, said, heard, lost) in cases {
            let (ctx, log, stand) = operator(address, vec![report(UID, state)]).await;
            if let Some(said) = said {
                stand.say(&WatchLine::Session(said));
                until("said", || ctx.fleet.reports_of(UID)[0].report.end.is_some()).await;
            }
            if !heard {
                stand.cancel.cancel();
                stand.lines.send("end".into()).unwrap();
                until("cut off", || !ctx.fleet.is_synced("pod")).await;
            }
            ctx.fleet.gone("pod");
            let status = written(living(&bound()), &ctx, &log).await;
            let named = json!([{"server": "everything", "name": "everything-x-0", "uid": "pod"}]);
            assert_eq!(status["unconfirmed"], if lost { named } else { Value::Null }, "{address}");
            assert_eq!(status["servers"][0]["podRef"], Value::Null);
            assert_eq!(written(living(&status), &ctx, &log).await, Value::Null, "nothing is written again");
            let event = told_by_the_next(&status).await;
            let warned = event["reason"] == "CleanupIncomplete";
            let names_it = event["note"].as_str().unwrap().contains("everything-x-0");
            assert_eq!((warned, names_it), (lost, lost), "{event}");
        }
    }

    #[tokio::test]
    async fn a_sidecar_that_lost_the_session_between_two_operators_is_remembered_when_it_takes_it_again() {
        let (mut ctx, log, stand) = operator("127.0.84.5", vec![]).await;
        let revision = accept(&server("everything", &json!({}))).unwrap().key.revision;
        let mut ready = pod("127.0.84.5");
        ready.metadata.labels.get_or_insert_default().insert(label::REVISION.into(), revision);
        ctx.stores.pods = store_of(vec![ready]);
        let status = written(living(&bound()), &ctx, &log).await;
        assert_eq!(stand.held(), [UID]);
        let named =
            json!([{"server": "everything", "name": "everything-x-0", "uid": "pod", "restarted": true}]);
        assert_eq!((&status["unconfirmed"], &status["servers"][0]["podRef"]["uid"]), (&named, &json!("pod")));
        // The next one holds it and ends it well; the pod goes after that.
        let over = EndReport { remove: Outcome::Confirmed, ..EndReport::NOTHING_HELD };
        stand.say(&WatchLine::Session(SessionReport { end: Some(over), ..report(UID, SessionState::Ended) }));
        until("said", || ctx.fleet.reports_of(UID)[0].report.end.is_some()).await;
        ctx.stores.pods = store_of(vec![]);
        ctx.fleet.gone("pod");
        let status = written(living(&status), &ctx, &log).await;
        assert_eq!(status["unconfirmed"], named);
        let event = told_by_the_next(&status).await;
        assert_eq!(event["reason"], "CleanupIncomplete", "{event}");
    }
}
