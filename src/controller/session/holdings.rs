//! The pods that hold a session, or held it, and the request to end it there.

use crate::context::Context;
use crate::controller::session::strays::Stray;
use crate::watch::routes;
use berth_api::AgentSession;
use berth_plan::end::{self, Holding, Known, State};
use berth_wire::EndRequest;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::sync::Arc;

/// Every pod that holds the session or held it: what status says, what this process promised, what sidecars report. A crash
/// between a PUT and the status write loses none of them. `strays` are pods that exist and are not in the cache.
pub fn holdings(session: &AgentSession, strays: &[Stray], ctx: &Context) -> Vec<Holding> {
    let uid = session.uid().unwrap_or_default();
    let mut holdings: Vec<Holding> = Vec::new();
    let mut add = |server: String, pod: String, pod_uid: String, taken: bool| {
        if !holdings.iter().any(|held| held.pod_uid == pod_uid) {
            let (state, restarted) = (State::Unasked, false);
            holdings.push(Holding { server, pod, pod_uid, state, taken, restarted });
        }
    };
    for server in session.status.iter().flat_map(|status| &status.servers) {
        if let Some(pod) = &server.pod_ref {
            add(server.name.clone(), pod.name.clone(), pod.uid.clone(), true);
        }
    }
    let reports = ctx.fleet.reports_of(&uid);
    for reported in &reports {
        add(reported.server.clone(), reported.pod_name.clone(), reported.pod.clone(), false);
    }
    for (_, pod_uid) in ctx.slots.promises_of(&uid) {
        if let Some(pod) = pod_of(&pod_uid, ctx) {
            add(routes::owner(&pod).unwrap_or_default(), pod.name_any(), pod_uid, false);
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
        holding.restarted = ctx.fleet.has_lost(&holding.pod_uid, &uid)
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
            && end::is_unheard(pod, ctx.fleet.is_synced(&pod.uid().unwrap_or_default()))
    };
    // One that this process deletes is surely empty, though the cache may still show it ready. The book is never asked under the
    // lock of the cache.
    let condemned = |pod: &Arc<Pod>| ctx.slots.with(|book| book.is_condemned(&pod.uid().unwrap_or_default()));
    !ctx.stores.pods.state_filter(may_hold).iter().all(condemned)
}

/// Asks the sidecars of `asked` (indices of `holdings`) to end the session, all at once, and notes what they answer.
pub async fn close(
    session: &AgentSession,
    request: EndRequest,
    holdings: &mut [Holding],
    asked: &[usize],
    ctx: &Context,
) {
    let uid = session.uid().unwrap_or_default();
    let pods: Vec<(usize, String)> =
        asked.iter().filter_map(|index| Some((*index, holdings.get(*index)?.pod_uid.clone()))).collect();
    let answers = join_all(pods.iter().map(|(_, pod)| ctx.fleet.end(pod, &uid, request))).await;
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
