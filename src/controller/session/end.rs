//! The end of an `AgentSession`: our own step machine, since kube's helper drops the finalizer on any `Ok`.
//!
//! Each pass gathers what is there, asks `berth_plan::end` for the next step and takes it, until there is nothing to do
//! but wait, or the finalizer is gone.

use crate::api_error;
use crate::context::Context;
use crate::controller::session::{Error, finalizer, update_status};
use crate::event;
use crate::watch::routes;
use berth_api::label::SESSION_FINALIZER;
use berth_api::{AgentSession, McpServer};
use berth_plan::end::report::Report;
use berth_plan::end::{self, Ending, Holding, Observed, State, Step};
use berth_plan::session::build;
use berth_plan::time::Moment;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use std::time::Duration;

/// How long a look waits for sidecars: most ends are over by then, and the streams tell of the others.
const WAIT: Duration = Duration::from_millis(500);

/// The session could not be deleted.
#[derive(Debug, thiserror::Error)]
#[error("failed to delete session {session:?}, whose spec.end is set: {}", api_error::text(source))]
pub struct DeleteError {
    session: String,
    source: Box<kube::Error>,
}

/// Deletes a session whose `spec.end` is set; the reason stays in its spec.
pub async fn delete(session: &AgentSession, ctx: &Context) -> Result<(), DeleteError> {
    let api: Api<AgentSession> = ctx.api(&session.namespace().unwrap_or_default());
    let preconditions = Preconditions { uid: session.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&session.name_any(), &params).await {
        Ok(_) => Ok(()),
        Err(error) if api_error::is_outdated(&error) => Ok(()),
        Err(source) => Err(DeleteError { session: session.name_any(), source: Box::new(source) }),
    }
}

/// One pass over a session that was deleted.
pub async fn end(session: &AgentSession, ctx: &Context) -> Result<Action, Error> {
    let over = ctx.slots.is_over(&session.uid().unwrap_or_default());
    if over || !session.finalizers().iter().any(|held| held == SESSION_FINALIZER) {
        return Ok(Action::await_change());
    }
    let ending = ending(session, ctx);
    let mut holdings = holdings(session, ctx);
    let mut told: Option<Report> = None;
    loop {
        let now = ctx.clock.now();
        let unheard = unheard(session, ctx);
        match end::next(&ending, &Observed { holdings: &holdings, unheard, told: told.is_some() }, now) {
            Step::Close(asked) => close(session, &ending, &mut holdings, &asked, ctx).await,
            Step::Wait(until) => {
                if let Some(status) = end::status::status(session, &ending, &holdings, now) {
                    update_status::write(session, &status, ctx).await?;
                }
                return Ok(Action::requeue(now.until(until)));
            }
            Step::Tell(report) => {
                event::tell(session, &report.telling(), ctx).await?;
                told = Some(report);
            }
            Step::Done => return done(session, told, ctx).await,
        }
    }
}

/// Drops the finalizer; whoever's patch did it counts the end.
async fn done(session: &AgentSession, told: Option<Report>, ctx: &Context) -> Result<Action, Error> {
    if !finalizer::remove(session, ctx).await? {
        return Ok(finalizer::look_again());
    }
    if let Some(report) = told {
        ctx.metrics.ended(report.reason, report.is_complete());
        tracing::info!(
            namespace = session.namespace().unwrap_or_default(),
            session = session.name_any(),
            reason = report.reason.as_str(),
            complete = report.is_complete(),
            "session ended"
        );
    }
    if let Some(uid) = session.uid() {
        ctx.slots.finish(&uid);
        ctx.fleet.forget(&uid);
    }
    Ok(Action::await_change())
}

/// Asks sidecars to end the session, all at once.
async fn close(
    session: &AgentSession,
    ending: &Ending,
    holdings: &mut [Holding],
    asked: &[usize],
    ctx: &Context,
) {
    let uid = session.uid().unwrap_or_default();
    let request = build::end_request(ending.drain, ending.close, WAIT);
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

/// Reason and bounds of the end. A server that is gone counts with the defaults.
fn ending(session: &AgentSession, ctx: &Context) -> Ending {
    let namespace = session.namespace().unwrap_or_default();
    let servers: Vec<_> = session
        .spec
        .servers
        .iter()
        .filter_map(|server| {
            ctx.stores.servers.get(&ObjectRef::<McpServer>::new(&server.name).within(&namespace))
        })
        .map(|server| server.spec.timeouts.clone())
        .collect();
    let deleted = session.metadata.deletion_timestamp.as_ref().map_or(ctx.clock.now(), Moment::from_api);
    end::ending(session, &servers, deleted)
}

/// Every pod that holds the session or held it: what status says, what this process promised, what sidecars report. A crash
/// between a PUT and the status write loses none of them.
fn holdings(session: &AgentSession, ctx: &Context) -> Vec<Holding> {
    let uid = session.uid().unwrap_or_default();
    let mut holdings: Vec<Holding> = Vec::new();
    let mut add = |server: String, pod: String, pod_uid: String| {
        if !holdings.iter().any(|held| held.pod_uid == pod_uid) {
            holdings.push(Holding { server, pod, pod_uid, state: State::Unasked });
        }
    };
    for server in session.status.iter().flat_map(|status| &status.servers) {
        if let Some(pod) = &server.pod_ref {
            add(server.name.clone(), pod.name.clone(), pod.uid.clone());
        }
    }
    let reports = ctx.fleet.reports_of(&uid);
    for reported in &reports {
        let name = pod_of(&reported.pod, ctx).map_or_else(|| reported.pod.clone(), |pod| pod.name_any());
        add(reported.server.clone(), name, reported.pod.clone());
    }
    for (_, pod_uid) in ctx.slots.promises_of(&uid) {
        if let Some(pod) = pod_of(&pod_uid, ctx) {
            add(routes::owner(&pod).unwrap_or_default(), pod.name_any(), pod_uid);
        }
    }
    for holding in &mut holdings {
        let reported = reports.iter().find(|reported| reported.pod == holding.pod_uid);
        let ended = reported.and_then(|reported| reported.report.end);
        holding.state = end::first_state(pod_of(&holding.pod_uid, ctx).as_deref(), ended);
    }
    holdings
}

/// Whether a ready pod of the session's servers has not told yet which sessions it holds.
fn unheard(session: &AgentSession, ctx: &Context) -> bool {
    let namespace = session.namespace();
    let may_hold = |pod: &Pod| {
        let server = routes::owner(pod);
        pod.namespace() == namespace
            && session.spec.servers.iter().any(|binding| server.as_ref() == Some(&binding.name))
            && end::is_unheard(pod, ctx.fleet.is_synced(&pod.uid().unwrap_or_default()))
    };
    ctx.stores.pods.find(may_hold).is_some()
}

fn pod_of(uid: &str, ctx: &Context) -> Option<std::sync::Arc<Pod>> {
    ctx.stores.pods.find(|pod| pod.metadata.uid.as_deref() == Some(uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Seen, context, deleted_session, failure};
    use http::Method;
    use serde_json::{Value, json};

    const EVENT: &str = "POST /apis/events.k8s.io/v1/namespaces/demo/events";
    const FINALIZER: &str = "PATCH /apis/berth.dev/v1alpha1/namespaces/demo/agentsessions/chat";

    fn all_is_well(seen: &Seen) -> (u16, Value) {
        match seen.method {
            Method::PATCH => (200, serde_json::to_value(deleted_session(&json!({}))).unwrap()),
            _ => (201, seen.body.clone()),
        }
    }

    fn lost_pod() -> Value {
        let pod = json!({"name": "everything-x-0", "uid": "p", "address": "10.0.0.1", "serverUid": "s"});
        json!({"servers": [{"name": "everything", "state": "Bound", "podRef": pod}]})
    }

    #[tokio::test]
    async fn the_end_is_told_before_the_finalizer_goes_and_only_once() {
        let (ctx, log) = context(all_is_well).await;
        let session = deleted_session(&json!({}));
        ctx.slots.know(&session);
        end(&session, &ctx).await.unwrap();
        assert_eq!(log.lines(), [EVENT, FINALIZER]);
        // The cache still shows the session: it is over all the same.
        end(&session, &ctx).await.unwrap();
        assert_eq!(log.lines(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_session_whose_pod_is_lost_ends_with_a_warning_that_says_so() {
        let (ctx, log) = context(all_is_well).await;
        end(&deleted_session(&lost_pod()), &ctx).await.unwrap();
        let event = &log.take()[0].body;
        assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("CleanupIncomplete")));
        let note = event["note"].as_str().unwrap();
        assert!(
            note.contains("Completed") && note.contains("everything-x-0") && note.contains("the pod is gone"),
            "{note}"
        );
    }

    #[tokio::test]
    async fn the_finalizer_stays_while_the_event_cannot_be_posted() {
        let (ctx, log) = context(|_| failure(500, "InternalError", "etcd is away")).await;
        assert!(end(&deleted_session(&json!({})), &ctx).await.is_err());
        assert_eq!(log.lines(), [EVENT]);
    }

    #[tokio::test]
    async fn an_end_that_somebody_else_finished_is_not_counted_again() {
        let (ctx, log) = context(|seen| match seen.method {
            Method::PATCH => failure(404, "NotFound", "gone"),
            _ => failure(409, "AlreadyExists", "there"),
        })
        .await;
        let session = deleted_session(&json!({}));
        ctx.slots.know(&session);
        end(&session, &ctx).await.unwrap();
        assert_eq!(log.lines(), [EVENT, FINALIZER]);
        assert!(!ctx.slots.is_over("77-session"));
    }

    #[tokio::test]
    async fn a_session_with_an_end_is_deleted_by_its_uid() {
        let (ctx, log) = context(|_| (200, serde_json::to_value(deleted_session(&json!({}))).unwrap())).await;
        delete(&deleted_session(&json!({})), &ctx).await.unwrap();
        let seen = log.take();
        assert_eq!(
            (&seen[0].method, &seen[0].body["preconditions"]["uid"]),
            (&Method::DELETE, &json!("77-session"))
        );
    }
}
