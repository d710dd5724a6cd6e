//! The end of an `AgentSession`: our own step machine, since kube's helper drops the finalizer on any `Ok`.
//!
//! Each pass gathers what is there, asks `berth_plan::end` for the next step and takes it, until there is nothing to do
//! but wait, or the finalizer is gone.

use crate::api_error;
use crate::context::Context;
use crate::controller::look_again;
use crate::controller::session::strays::Stray;
use crate::controller::session::{Error, finalizer, holdings, strays, update_status};
use crate::event;
use berth_api::{AgentSession, McpServer, Timeouts};
use berth_plan::end::report::Report;
use berth_plan::end::{self, Ending, Observed, Step};
use berth_plan::session::build;
use berth_plan::time::Moment;
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use std::time::Duration;

/// How long a reconcile waits for sidecars: most ends are over by then, and the streams tell of the others. Not longer, as few slow
/// upstreams would keep the workers from everybody else.
pub const WAIT: Duration = Duration::from_millis(50);

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
    if !finalizer::has(session) {
        // It is over; what is left is an object that others hold.
        if let Some(status) = end::status::held_by_others(session, ctx.clock.now()) {
            update_status::write(session, &status, ctx).await?;
        }
        return Ok(Action::await_change());
    }
    if ctx.slots.is_over(&session.uid().unwrap_or_default()) {
        return Ok(Action::await_change());
    }
    let ending = ending(session, ctx);
    let strays = strays::look(session, ctx).await;
    if strays.iter().any(Stray::is_coming_back) && ctx.clock.now() < ending.bound() {
        return Ok(look_again());
    }
    let request = build::end_request(ending.drain, ending.close, WAIT);
    // Before the holdings, and once: whoever tells everything from now on need not be among them.
    let unheard = holdings::unheard(session, ctx);
    let mut holdings = holdings::holdings(session, &strays, ctx);
    let mut told: Option<Report> = None;
    loop {
        let now = ctx.clock.now();
        let observed = Observed { holdings: &holdings, unheard, told: told.is_some(), started: ctx.started };
        match end::next(&ending, &observed, now) {
            Step::Close(asked) => {
                let within = end::answer_within(&ending, ctx.started, now);
                holdings::close(session, request, within, &mut holdings, &asked, ctx).await;
            }
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
        return Ok(look_again());
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

/// Reason and bounds of the end.
fn ending(session: &AgentSession, ctx: &Context) -> Ending {
    let names = session.spec.servers.iter().map(|server| server.name.as_str());
    let deleted = session.metadata.deletion_timestamp.as_ref().map_or(ctx.clock.now(), Moment::from_api);
    end::ending(session, &timeouts(session, names, ctx), deleted)
}

/// How long the session may drain and close at the servers of these names.
pub fn bounds<'a>(
    session: &AgentSession,
    servers: impl Iterator<Item = &'a str>,
    ctx: &Context,
) -> (Duration, Duration) {
    let ending = end::ending(session, &timeouts(session, servers, ctx), ctx.clock.now());
    (ending.drain, ending.close)
}

/// The timeouts of these servers. One that is gone is left out: it counts with the defaults.
fn timeouts<'a>(
    session: &AgentSession,
    servers: impl Iterator<Item = &'a str>,
    ctx: &Context,
) -> Vec<Timeouts> {
    let namespace = session.namespace().unwrap_or_default();
    let found = servers
        .filter_map(|name| ctx.stores.servers.get(&ObjectRef::<McpServer>::new(name).within(&namespace)));
    found.map(|server| server.spec.timeouts.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::session::reconcile;
    use crate::fixture::{Seen, context, deleted_session, failure, store_of};
    use crate::fleet::stand::{Stand, pod, report, until};
    use berth_wire::{EndPhase, EndReport, Outcome, SessionReport, SessionState, WatchLine};
    use http::Method;
    use serde_json::{Value, json};
    use std::sync::Arc;

    const EVENT: &str = "POST /apis/events.k8s.io/v1/namespaces/demo/events";
    const FINALIZER: &str = "PATCH /apis/berth.dev/v1alpha1/namespaces/demo/agentsessions/chat";

    fn all_is_well(seen: &Seen) -> (u16, Value) {
        match seen.method {
            Method::GET => failure(404, "NotFound", "no"),
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
        let seen = log.take();
        assert_eq!(
            seen[0].path, "/api/v1/namespaces/demo/pods/everything-x-0",
            "it may have lost its labels"
        );
        let event = &seen[1].body;
        assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("CleanupIncomplete")));
        let note = event["note"].as_str().unwrap();
        assert!(
            note.contains("Completed") && note.contains("everything-x-0") && note.contains("the pod is gone"),
            "{note}"
        );
    }

    #[tokio::test]
    async fn a_session_whose_server_went_first_is_told_as_released_only_if_its_pod_has_said_so() {
        let over = EndReport {
            phase: EndPhase::Ended,
            drain: Outcome::Confirmed,
            close: Outcome::Confirmed,
            remove: Outcome::Confirmed,
        };
        for (address, said) in [("127.0.79.20", true), ("127.0.79.21", false)] {
            let (ctx, log) = context(all_is_well).await;
            let held = vec![report("77-session", SessionState::Connected)];
            let stand = Stand::start(&ctx.ca, address, held).await;
            ctx.fleet.follow(&pod(address));
            until("synced", || ctx.fleet.is_synced("pod")).await;
            let held =
                json!({"name": "everything-x-0", "uid": "pod", "address": address, "serverUid": "server"});
            let bound = json!({"servers": [{"name": "everything", "state": "Bound", "podRef": held}]});
            let deleted = deleted_session(&bound);
            let mut session = deleted.clone();
            (session.metadata.deletion_timestamp, session.spec.end) = (None, None);
            ctx.slots.know(&session);
            if said {
                let ended = SessionReport { end: Some(over), ..report("77-session", SessionState::Ended) };
                stand.say(&WatchLine::Session(ended));
                until("said", || ctx.fleet.reports_of("77-session")[0].report.end.is_some()).await;
            }
            // The pod goes with its server.
            ctx.fleet.gone("pod");
            reconcile(Arc::new(session), &ctx).await.unwrap();
            let status = log.take().pop().unwrap().body[1]["value"].clone();
            let entry = &status["servers"][0];
            let named = if said { Value::Null } else { held };
            assert_eq!((&entry["reason"], &entry["podRef"]), (&json!("RefNotFound"), &named));
            let session = AgentSession { status: serde_json::from_value(status).unwrap(), ..deleted };
            end(&session, &ctx).await.unwrap();
            let event = &log.take()[0].body;
            assert_eq!(event["type"], if said { "Normal" } else { "Warning" }, "{event}");
        }
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

    #[tokio::test]
    async fn an_end_after_the_sidecar_was_restarted_says_that_it_cannot_be_known_to_be_clean() {
        let status = |uid: &str| {
            let pod =
                json!({"name": "everything-x-0", "uid": uid, "address": "127.0.79.6", "serverUid": "server"});
            json!({"servers": [{"name": "everything", "state": "Bound", "podRef": pod}]})
        };
        let idle = || vec![report("77-session", SessionState::Idle)];
        let cases = [
            ("127.0.79.6", idle(), 0, false),
            ("127.0.79.7", vec![], 0, true),
            ("127.0.79.8", idle(), 1, true),
        ];
        for (address, holds, restarts, lost) in cases {
            let (mut ctx, log) = context(all_is_well).await;
            let _stand = Stand::start(&ctx.ca, address, holds).await;
            let mut pod = pod(address);
            pod.status.as_mut().unwrap().container_statuses = serde_json::from_value(json!([
                {"name": "sidecar", "image": "i", "imageID": "", "ready": true, "restartCount": restarts,
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]))
            .unwrap();
            ctx.stores.pods = store_of(vec![pod.clone()]);
            ctx.fleet.follow(&pod);
            until("synced", || ctx.fleet.is_synced("pod")).await;
            end(&deleted_session(&status("pod")), &ctx).await.unwrap();
            let event = &log.take()[0].body;
            let restarted = event["note"].as_str().unwrap().contains("close (the sidecar was restarted");
            assert_eq!((event["type"] == "Warning", restarted), (lost, lost), "{address}: {event}");
        }
    }

    #[tokio::test]
    async fn a_session_that_has_ended_says_so_while_others_hold_its_object() {
        let (ctx, log) = context(all_is_well).await;
        let mut session = deleted_session(&lost_pod());
        session.metadata.finalizers = Some(vec!["other.test/first".into()]);
        assert_eq!(end(&session, &ctx).await.unwrap(), Action::await_change());
        let seen = log.take();
        let status = &seen[0].body[1]["value"];
        let ready = &status["conditions"][0];
        assert_eq!(
            (seen.len(), &ready["status"], &ready["reason"]),
            (1, &json!("False"), &json!("Removing"))
        );
        assert!(ready["message"].as_str().unwrap().contains("other.test/first"), "{ready}");
        assert_eq!(status["servers"], json!([{"name": "everything", "state": "Ending"}]));
        session.status = serde_json::from_value(status.clone()).unwrap();
        end(&session, &ctx).await.unwrap();
        assert_eq!(log.lines(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_sidecar_that_tells_of_the_session_only_while_another_one_is_asked_is_asked_too() {
        let held =
            json!({"name": "everything-x-0", "uid": "pod", "address": "127.0.79.9", "serverUid": "server"});
        let status = json!({"servers": [{"name": "everything", "state": "Bound", "podRef": held}]});
        let (mut ctx, log) = context(all_is_well).await;
        let told = || vec![report("77-session", SessionState::Idle)];
        let asked = Stand::start(&ctx.ca, "127.0.79.9", told()).await;
        let late = Stand::start(&ctx.ca, "127.0.79.10", told()).await;
        let mut pods = [pod("127.0.79.9"), pod("127.0.79.10")];
        pods[1].metadata.uid = Some("late".into());
        pods[1].metadata.name = Some("everything-x-1".into());
        ctx.stores.pods = store_of(pods.to_vec());
        ctx.started = ctx.clock.now();
        for pod in &pods {
            ctx.fleet.follow(pod);
        }
        until("synced", || ctx.fleet.is_synced("pod") && ctx.fleet.is_synced("late")).await;
        ctx.fleet.tell("late", false, &[]);
        let session = deleted_session(&status);
        ctx.slots.know(&session);
        let telling = async {
            while asked.ended().is_empty() {
                tokio::task::yield_now().await;
            }
            ctx.fleet.tell("late", true, &told());
        };
        let both = async { futures::join!(end(&session, &ctx), telling).0 };
        let ended =
            tokio::time::timeout(Duration::from_secs(10), both).await.expect("the other one is asked");
        ended.unwrap();
        assert!(!log.lines().contains(&EVENT.to_owned()), "nothing is told yet");
        end(&session, &ctx).await.unwrap();
        assert_eq!(late.ended().len(), 1);
        assert_eq!(log.lines(), [EVENT, FINALIZER]);
    }

    #[tokio::test]
    async fn an_operator_that_comes_back_long_after_the_bound_still_asks_every_sidecar() {
        let (mut ctx, log) = context(all_is_well).await;
        let stand = Stand::start(&ctx.ca, "127.0.79.3", vec![report("77-session", SessionState::Idle)]).await;
        ctx.stores.pods = store_of(vec![pod("127.0.79.3")]);
        let session = deleted_session(&json!({}));
        ctx.slots.know(&session);
        // It has just started: until the sidecar has told what it holds, nothing is told.
        ctx.started = ctx.clock.now();
        assert_eq!(end(&session, &ctx).await.unwrap(), Action::requeue(Duration::from_secs(1)));
        assert_eq!(log.lines().len(), 1, "only the status");
        ctx.fleet.follow(&pod("127.0.79.3"));
        until("synced", || ctx.fleet.is_synced("pod")).await;
        end(&session, &ctx).await.unwrap();
        assert_eq!(stand.ended()[0].0, "77-session");
        let seen = log.take();
        assert_eq!((seen.len(), &seen[0].body["type"]), (2, &json!("Normal")));
    }
}
