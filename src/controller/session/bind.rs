//! Gives one binding its slot: decide and promise in one step, then ask the sidecar, which has the last word.

use crate::context::Context;
use crate::controller::server::pool_pods;
use crate::fleet::ControlError;
use berth_api::AgentSession;
use berth_plan::pod::PoolPod;
use berth_plan::server::validate::ValidServer;
use berth_plan::session::build;
use berth_plan::session::place::{self, Decision, Observed, Wait};
use berth_plan::session::status::{Outcome, silent};
use berth_plan::time::Moment;
use berth_wire::{EndPhase, RefusalReason, SessionReport};
use kube::ResourceExt;
use std::time::Duration;

/// Pods that are asked in one reconcile.
const TRIES: usize = 4;
/// How long a reconcile waits for a session to leave a pod of an older revision.
const LEAVE_WAIT: Duration = Duration::from_millis(500);

/// What was decided, free of what it was decided from.
enum Placed {
    Keep(PoolPod, Option<SessionReport>, Option<String>),
    Take(PoolPod),
    Leave(PoolPod),
    Wait(Wait),
}

/// What became of one binding.
pub async fn bind(
    session: &AgentSession,
    server: Result<ValidServer, Outcome>,
    ctx: &Context,
    now: Moment,
) -> Outcome {
    let server = match server {
        Ok(server) => server,
        Err(outcome) => return outcome,
    };
    let mut refused_by = Vec::new();
    for _ in 0..TRIES {
        match decide(session, &server, &refused_by, ctx, now) {
            Placed::Wait(wait) => return Outcome::Waiting(wait),
            Placed::Leave(pod) => {
                if !leave(session, &server, &pod, ctx).await {
                    return Outcome::Waiting(Wait::Moving { server: server.key.name.clone() });
                }
            }
            Placed::Keep(pod, report, sent) => match keep(session, &server, &pod, report, sent, ctx).await {
                Some(outcome) => return outcome,
                None => refused_by.push(pod.uid),
            },
            Placed::Take(pod) => match take(session, &server, &pod, ctx).await {
                Some(outcome) => return outcome,
                None => refused_by.push(pod.uid),
            },
        }
    }
    Outcome::Waiting(Wait::NoSlot { server: server.key.name.clone() })
}

/// Decides under the lock of the promises, and promises what was decided.
fn decide(
    session: &AgentSession,
    server: &ValidServer,
    refused_by: &[String],
    ctx: &Context,
    now: Moment,
) -> Placed {
    let uid = session.uid().unwrap_or_default();
    let reports: Vec<(String, SessionReport)> =
        ctx.fleet.reports_of(&uid).into_iter().map(|reported| (reported.pod, reported.report)).collect();
    ctx.slots.with(|book| {
        let pods = pool_pods(&server.namespace, &server.key.uid, ctx, book);
        let promise = book.promise_of(&uid, &server.key.uid).cloned();
        let counts = |pod: &str| pods.iter().any(|held| held.uid == pod && held.is_alive());
        let observed = Observed {
            session: &uid,
            pods: &pods,
            reports: &reports,
            promised: promise.as_ref().map(|promise| promise.pod.as_str()),
            refused_by,
            held: place::held_by_others(&uid, &pods),
            held_by_subject: u32::try_from(book.of_subject(
                &server.key.uid,
                &session.spec.subject,
                &uid,
                counts,
            ))
            .unwrap_or(u32::MAX),
            image: &ctx.settings.sidecar_image,
        };
        match place::decide(server, &observed, now) {
            Decision::Wait(wait) => {
                book.release(&uid, &server.key.uid);
                Placed::Wait(wait)
            }
            Decision::Leave(pod) => Placed::Leave(pod.clone()),
            Decision::Keep(pod) => {
                book.promise(&uid, &server.key.uid, &pod.uid);
                let report =
                    reports.iter().find(|(held_by, _)| *held_by == pod.uid).map(|(_, report)| report.clone());
                Placed::Keep(pod.clone(), report, promise.and_then(|promise| promise.sent))
            }
            Decision::Take(pod) => {
                book.promise(&uid, &server.key.uid, &pod.uid);
                Placed::Take(pod.clone())
            }
        }
    })
}

/// The outcome of a slot that the session has; nothing when the sidecar will not have it any more.
async fn keep(
    session: &AgentSession,
    server: &ValidServer,
    pod: &PoolPod,
    report: Option<SessionReport>,
    sent: Option<String>,
    ctx: &Context,
) -> Option<Outcome> {
    let spec = build::spec(session, server);
    if !build::is_to_be_sent(&spec, &pod.revision, report.as_ref(), sent.as_deref()) {
        return Some(Outcome::kept(server, pod, report));
    }
    match put(session, server, pod, ctx).await {
        Ok(report) => Some(Outcome::kept(server, pod, Some(report))),
        // An older version of the objects than one sent before: the caches will catch up.
        Err(ControlError::Refused(refusal)) if refusal.reason == RefusalReason::Stale => {
            Some(Outcome::kept(server, pod, report))
        }
        Err(ControlError::Refused(refusal)) => {
            refused(session, server, pod, &refusal, ctx);
            None
        }
        Err(ControlError::Invalid(error)) => Some(invalid(session, server, error, ctx)),
        Err(error) => Some(silent(session, server, pod, report, &error.to_string())),
    }
}

/// The outcome of a slot that was just promised; nothing when another pod has to be asked.
async fn take(session: &AgentSession, server: &ValidServer, pod: &PoolPod, ctx: &Context) -> Option<Outcome> {
    match put(session, server, pod, ctx).await {
        Ok(report) => Some(Outcome::kept(server, pod, Some(report))),
        Err(ControlError::Refused(refusal)) => {
            refused(session, server, pod, &refusal, ctx);
            None
        }
        Err(ControlError::Invalid(error)) => Some(invalid(session, server, error, ctx)),
        Err(ControlError::Unreachable(_)) => {
            release(session, server, ctx);
            None
        }
        // The sidecar may hold it: the promise stands, and the next look asks this one again.
        Err(ControlError::NoAnswer(error)) => Some(Outcome::Unconfirmed { error }),
    }
}

async fn put(
    session: &AgentSession,
    server: &ValidServer,
    pod: &PoolPod,
    ctx: &Context,
) -> Result<SessionReport, ControlError> {
    let spec = build::spec(session, server);
    let report = ctx.fleet.put(&pod.uid, &spec).await.inspect_err(|error| {
        let (namespace, name) = (session.namespace().unwrap_or_default(), session.name_any());
        tracing::info!(namespace, session = name, server = server.key.name, pod = pod.name, %error, "slot not taken");
    })?;
    ctx.slots.with(|book| book.sent(&spec.uid, &server.key.uid, &pod.uid, build::fingerprint(&spec)));
    Ok(report)
}

/// Ends the session in a pod of an older revision; true when it is over there.
async fn leave(session: &AgentSession, server: &ValidServer, pod: &PoolPod, ctx: &Context) -> bool {
    let timeouts = build::spec(session, server).timeouts;
    let (drain, close) =
        (Duration::from_millis(timeouts.drain_millis), Duration::from_millis(timeouts.close_millis));
    let request = build::end_request(drain, close, LEAVE_WAIT);
    let ended = ctx.fleet.end(&pod.uid, &session.uid().unwrap_or_default(), request).await;
    let over = ended.is_ok_and(|report| report.phase == EndPhase::Ended);
    if over {
        release(session, server, ctx);
    }
    over
}

/// Takes the promise back. A pod for a single session that is full was used, which only its sidecar still knew when this
/// process started after that session: it takes nobody any more, and has to be replaced.
fn refused(
    session: &AgentSession,
    server: &ValidServer,
    pod: &PoolPod,
    refusal: &berth_wire::Refusal,
    ctx: &Context,
) {
    release(session, server, ctx);
    if pod.slots == 1 && refusal.reason == RefusalReason::Full {
        ctx.fleet.mark_used(&pod.uid);
    }
}

/// Takes the promise back: no sidecar would act on this, so the slot is for others until the objects change.
fn invalid(session: &AgentSession, server: &ValidServer, error: String, ctx: &Context) -> Outcome {
    release(session, server, ctx);
    Outcome::Invalid { server: server.key.name.clone(), error }
}

fn release(session: &AgentSession, server: &ValidServer, ctx: &Context) {
    let uid = session.uid().unwrap_or_default();
    ctx.slots.with(|book| book.release(&uid, &server.key.uid));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::fleet::stand::{Stand, pod, until};
    use berth_api::label;
    use berth_plan::server::validate::{SecretState, validate};
    use serde_json::json;

    /// A sidecar at `address` whose pod is ready, and the server of that pod.
    async fn stage(address: &str) -> (Context, Stand, ValidServer) {
        let (mut ctx, _) = fixture::context(|_| fixture::failure(404, "NotFound", "no")).await;
        let spec = json!({"pool": {"sessionsPerPod": 1}});
        let server = validate(&fixture::server("everything", &spec), SecretState::Missing).unwrap();
        let stand = Stand::start(&ctx.ca, address, vec![]).await;
        let mut ready = pod(address);
        let revision = server.key.revision.clone();
        ready.metadata.labels.get_or_insert_default().insert(label::REVISION.into(), revision);
        ctx.stores.pods = fixture::store_of(vec![ready.clone()]);
        ctx.fleet.follow(&ready);
        until("synced", || ctx.fleet.is_synced("pod")).await;
        (ctx, stand, server)
    }

    #[tokio::test]
    async fn what_a_sidecar_cannot_act_on_is_invalid_at_every_look_and_holds_no_slot() {
        let (ctx, _stand, server) = stage("127.0.79.5").await;
        let mut session = fixture::deleted_session(&json!({}));
        session.metadata.uid = Some("invalid".into());
        for _ in 0..2 {
            let outcome = bind(&session, Ok(server.clone()), &ctx, ctx.clock.now()).await;
            let error = "the upstream's url cannot be used".to_owned();
            assert_eq!(outcome, Outcome::Invalid { server: "everything".into(), error });
            assert_eq!(ctx.slots.promised_to("server", "pod"), Vec::<String>::new());
        }
    }

    #[tokio::test]
    async fn a_pod_for_one_session_that_is_full_though_it_seems_free_was_used_and_is_not_asked_again() {
        let (ctx, stand, server) = stage("127.0.79.4").await;
        let mut session = fixture::deleted_session(&json!({}));
        session.metadata.uid = Some("one-too-many".into());
        let free = || ctx.slots.with(|book| pool_pods("demo", "server", &ctx, book)[0].free());
        assert_eq!(free(), 1);
        let outcome = bind(&session, Ok(server), &ctx, ctx.clock.now()).await;
        assert!(matches!(outcome, Outcome::Waiting(Wait::NoSlot { .. })), "{outcome:?}");
        assert_eq!(free(), 0);
        assert!(ctx.fleet.occupancy("pod", vec![]).used);
        assert_eq!(stand.ended(), []);
    }
}
