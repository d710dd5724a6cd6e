//! Gives one binding its slot: decide and promise in one step, then ask the sidecar, which has the last word.

use crate::context::Context;
use crate::controller::server::pool_pods;
use crate::controller::session::end;
use crate::controller::session::strays::Stray;
use crate::fleet::ControlError;
use crate::slots::{Book, Promise};
use berth_api::{AgentSession, McpServer};
use berth_plan::pod::PoolPod;
use berth_plan::server::validate::ValidServer;
use berth_plan::session::build;
use berth_plan::session::place::{self, Decision, Observed, Wait};
use berth_plan::session::status::{Outcome, silent};
use berth_plan::session::validate::Binding;
use berth_plan::time::Moment;
use berth_wire::{EndPhase, RefusalReason, ScopeKey, SessionReport, SessionSpec};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::time::Duration;

/// Pods that are asked in one reconcile.
const TRIES: usize = 4;

/// One session at one server.
pub struct Binder<'a> {
    /// The session.
    pub session: &'a AgentSession,
    /// Its UID.
    pub uid: String,
    /// The server.
    pub server: &'a ValidServer,
    /// Pods that hold the session, exist and are not in the cache.
    pub strays: &'a [Stray],
    /// What the operator has at hand.
    pub ctx: &'a Context,
    /// Now.
    pub now: Moment,
}

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
    binding: Result<Binding, Outcome>,
    strays: &[Stray],
    ctx: &Context,
    now: Moment,
) -> Outcome {
    let binding = match binding {
        Ok(binding) => binding,
        Err(outcome) => {
            unconfirm(session, ctx);
            return outcome;
        }
    };
    let server = &binding.server;
    let binder = Binder { session, uid: session.uid().unwrap_or_default(), server, strays, ctx, now };
    let outcome = match (binding.headers, binding.tls) {
        (Ok(headers), Ok(tls)) => {
            let access = build::Access { headers, tls, scope_key: binder.scope_key() };
            binder.place(&build::spec(session, server, access)).await
        }
        (Err(refusal), _) | (_, Err(refusal)) => binder.withhold(refusal).await,
    };
    let stored = ctx.stores.servers.get(&ObjectRef::new(&server.key.name).within(&server.namespace));
    let stored = stored.filter(|stored| stored.metadata.uid.as_ref() == Some(&server.key.uid));
    let outcome = match stored {
        Some(stored) => outcome.explained(&stored),
        None => outcome,
    };
    strays.iter().fold(outcome, |outcome, stray| stray.noted(outcome))
}

/// Takes back that slots are confirmed at servers which are gone, or going: gateways are told of them no more, before the last
/// pod is away. The promise stays, so that an end asks that pod.
fn unconfirm(session: &AgentSession, ctx: &Context) {
    let lives = |uid: &str| {
        let of = |server: &McpServer| {
            server.metadata.uid.as_deref() == Some(uid) && server.metadata.deletion_timestamp.is_none()
        };
        ctx.stores.servers.find(of).is_some()
    };
    for (server_uid, pod) in ctx.slots.confirmed(&session.uid().unwrap_or_default()) {
        if !lives(&server_uid) {
            ctx.slots.pod_gone(&pod);
        }
    }
}

impl Binder<'_> {
    /// Finds a slot, or keeps the one that is held, as `spec` says.
    async fn place(&self, spec: &SessionSpec) -> Outcome {
        let mut refused_by = Vec::new();
        for _ in 0..TRIES {
            match self.decide(&refused_by) {
                Placed::Wait(wait) => return Outcome::Waiting(wait),
                Placed::Leave(pod) => {
                    if !self.leave(spec, &pod).await {
                        return Outcome::Waiting(Wait::Moving { server: self.server.key.name.clone() });
                    }
                }
                Placed::Keep(pod, report, sent) => match self.keep(spec, &pod, report, sent).await {
                    Some(outcome) => return outcome,
                    None => refused_by.push(pod.uid),
                },
                Placed::Take(pod) => match self.take(spec, &pod).await {
                    Some(outcome) => return outcome,
                    None => refused_by.push(pod.uid),
                },
            }
        }
        Outcome::Waiting(Wait::NoSlot { server: self.server.key.name.clone() })
    }

    /// Decides under the lock of the promises, and promises what was decided.
    fn decide(&self, refused_by: &[String]) -> Placed {
        let (uid, server) = (&self.uid, &self.server.key.uid);
        self.look(refused_by, |book, observed, promise| {
            match place::decide(self.server, observed, self.now) {
                Decision::Wait(wait) => {
                    book.release(uid, server);
                    Placed::Wait(wait)
                }
                Decision::Leave(pod) => Placed::Leave(pod.clone()),
                Decision::Keep(pod) => {
                    book.promise(uid, server, &pod.uid);
                    let report = observed.reports.iter().find(|(held_by, _)| *held_by == pod.uid);
                    let report = report.map(|(_, report)| report.clone());
                    Placed::Keep(pod.clone(), report, promise.and_then(|promise| promise.sent))
                }
                Decision::Take(pod) => {
                    book.promise(uid, server, &pod.uid);
                    Placed::Take(pod.clone())
                }
            }
        })
    }

    /// Looks at the pods under the lock of the promises; `step` decides, and promises.
    pub fn look<T>(
        &self,
        refused_by: &[String],
        step: impl FnOnce(&mut Book, &Observed<'_>, Option<Promise>) -> T,
    ) -> T {
        let Self { uid, server, ctx, .. } = self;
        ctx.slots.with(|book| {
            let mut pods = pool_pods(&server.namespace, &server.key.uid, ctx, book);
            // After the pods: what a sidecar that has told everything reports is among them.
            let reports = ctx.fleet.reports_of(uid).into_iter();
            let reports: Vec<(String, SessionReport)> =
                reports.map(|reported| (reported.pod, reported.report)).collect();
            let strays = self.strays.iter().filter(|stray| stray.server_uid == server.key.uid);
            let strays: Vec<_> =
                strays.filter(|stray| pods.iter().all(|pod| pod.uid != stray.pod.uid)).collect();
            pods.extend(strays.into_iter().map(|stray| stray.pod.clone()));
            let promise = book.promise_of(uid, &server.key.uid).cloned();
            let image = ctx.settings.sidecar.mark();
            let subject = &self.session.spec.subject;
            let observed = Observed {
                session: uid,
                pods: &pods,
                reports: &reports,
                promised: promise.as_ref().map(|promise| promise.pod.as_str()),
                refused_by,
                held: place::held_by_others(uid, &pods, |_| true),
                held_by_subject: place::held_by_others(uid, &pods, |held| {
                    book.subject_of(held) == Some(subject)
                }),
                image: &image,
                started: ctx.started,
            };
            step(book, &observed, promise.clone())
        })
    }

    /// The outcome of a slot that the session has; nothing when the sidecar will not have it any more.
    async fn keep(
        &self,
        spec: &SessionSpec,
        pod: &PoolPod,
        report: Option<SessionReport>,
        sent: Option<String>,
    ) -> Option<Outcome> {
        if !build::is_to_be_sent(spec, &pod.revision, report.as_ref(), sent.as_deref()) {
            return Some(Outcome::kept(self.server, pod, report));
        }
        match self.put_again(spec, pod, report.as_ref(), sent.as_deref()).await {
            Ok(report) => Some(Outcome::kept(self.server, pod, Some(report))),
            // An older version of the objects than one sent before: the caches will catch up.
            Err(ControlError::Refused(refusal)) if refusal.reason == RefusalReason::Stale => {
                Some(Outcome::kept(self.server, pod, report))
            }
            Err(ControlError::Refused(refusal)) => {
                self.refused(pod, &refusal);
                None
            }
            Err(ControlError::Invalid(error)) => Some(self.invalid(error)),
            Err(ControlError::Locked(text)) => {
                Some(silent(self.session, self.server, pod, report, &text).noted(&text))
            }
            Err(error) => Some(silent(self.session, self.server, pod, report, &error.to_string())),
        }
    }

    /// Sends `spec` to the sidecar of a pod that has the session's slot. One that takes the session now has lost it before if status
    /// says that it holds it, which this process has not seen, and its stream does not tell of it.
    pub async fn put_again(
        &self,
        spec: &SessionSpec,
        pod: &PoolPod,
        report: Option<&SessionReport>,
        sent: Option<&str>,
    ) -> Result<SessionReport, ControlError> {
        let mut entries = self.session.status.iter().flat_map(|status| &status.servers);
        let has_lost = report.is_none()
            && sent.is_none()
            && pod.occupancy.synced
            && entries.any(|entry| entry.pod_ref.as_ref().is_some_and(|held| held.uid == pod.uid));
        let taken = self.put(spec, pod).await?;
        if has_lost {
            self.ctx.fleet.note_lost(&pod.uid, &self.uid);
        }
        Ok(taken)
    }

    /// The outcome of a slot that was just promised; nothing when another pod has to be asked.
    async fn take(&self, spec: &SessionSpec, pod: &PoolPod) -> Option<Outcome> {
        match self.put(spec, pod).await {
            Ok(report) => Some(Outcome::kept(self.server, pod, Some(report))),
            Err(ControlError::Refused(refusal)) => {
                self.refused(pod, &refusal);
                None
            }
            Err(ControlError::Invalid(error)) => Some(self.invalid(error)),
            Err(ControlError::Unreachable(_) | ControlError::Locked(_)) => {
                self.release();
                None
            }
            // The sidecar may hold it: the promise stands, and the next look asks this one again.
            Err(ControlError::NoAnswer(error)) => Some(Outcome::Unconfirmed { error }),
        }
    }

    /// Sends `spec` to the sidecar of a pod, and notes that it was sent.
    async fn put(&self, spec: &SessionSpec, pod: &PoolPod) -> Result<SessionReport, ControlError> {
        let server = &self.server.key;
        let report = self.ctx.fleet.put(&pod.uid, spec).await.inspect_err(|error| {
            let (namespace, name) = (self.session.namespace().unwrap_or_default(), self.session.name_any());
            tracing::info!(namespace, session = name, server = server.name, pod = pod.name, %error, "slot not taken");
        })?;
        let sent = build::fingerprint(spec);
        self.ctx.slots.with(|book| book.sent(&self.uid, &server.uid, &pod.uid, sent));
        Ok(report)
    }

    /// Ends the session in a pod of an older revision; true when it is over there.
    async fn leave(&self, spec: &SessionSpec, pod: &PoolPod) -> bool {
        let span = Duration::from_millis;
        let (drain, close) = (span(spec.timeouts.drain_millis), span(spec.timeouts.close_millis));
        let request = build::end_request(drain, close, end::WAIT);
        let ended = self.ctx.fleet.end(&pod.uid, &self.uid, request).await;
        let over = ended.is_ok_and(|report| report.phase == EndPhase::Ended);
        if over {
            self.release();
        }
        over
    }

    /// Takes the promise back. A pod for a single session that is full was used, which only its sidecar still knew when this
    /// process started after that session: it takes nobody any more, and has to be replaced.
    fn refused(&self, pod: &PoolPod, refusal: &berth_wire::Refusal) {
        self.release();
        if pod.slots == 1 && refusal.reason == RefusalReason::Full {
            self.ctx.fleet.mark_used(&pod.uid);
        }
    }

    /// Takes the promise back: no sidecar would act on this, so the slot is for others until the objects change.
    fn invalid(&self, error: String) -> Outcome {
        self.release();
        Outcome::Invalid { server: self.server.key.name.clone(), error }
    }

    /// The key that seals the session ids of the session's clients at the server.
    pub fn scope_key(&self) -> ScopeKey {
        self.ctx.ca.scope_key(&self.uid, &self.server.key.uid)
    }

    /// Takes the promise back.
    pub fn release(&self) {
        self.ctx.slots.with(|book| book.release(&self.uid, &self.server.key.uid));
    }
}

#[cfg(test)]
pub mod tests;
