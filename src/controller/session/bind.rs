//! Gives one binding its slot: decide and promise in one step, then ask the sidecar, which has the last word.

use crate::context::Context;
use crate::controller::server::pool_pods;
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
/// How long a reconcile waits for a session to leave a pod of an older revision.
const LEAVE_WAIT: Duration = Duration::from_millis(500);

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
            let counts = |pod: &str| pods.iter().any(|held| held.uid == pod && held.is_alive());
            let image = ctx.settings.sidecar.mark();
            let of_subject = book.of_subject(&server.key.uid, &self.session.spec.subject, uid, counts);
            let observed = Observed {
                session: uid,
                pods: &pods,
                reports: &reports,
                promised: promise.as_ref().map(|promise| promise.pod.as_str()),
                refused_by,
                held: place::held_by_others(uid, &pods),
                held_by_subject: u32::try_from(of_subject).unwrap_or(u32::MAX),
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
        let request = build::end_request(drain, close, LEAVE_WAIT);
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
pub mod tests {
    use super::*;
    use crate::fixture;
    use crate::fleet::stand::{Stand, pod, report, until};
    use berth_api::label;
    use berth_plan::server::validate::accept;
    use berth_plan::session::validate::Refusal;
    use berth_wire::SessionState;
    use serde_json::json;

    /// A sidecar at `address` whose pod is ready, and the server of that pod.
    pub async fn stage(address: &str) -> (Context, Stand, ValidServer) {
        let (mut ctx, _) = fixture::context(|_| fixture::failure(404, "NotFound", "no")).await;
        let spec = json!({"pool": {"sessionsPerPod": 1}});
        let server = accept(&fixture::server("everything", &spec)).unwrap();
        let stand = Stand::start(&ctx.ca, address, vec![]).await;
        let mut ready = pod(address);
        let revision = server.key.revision.clone();
        ready.metadata.labels.get_or_insert_default().insert(label::REVISION.into(), revision);
        ctx.stores.pods = fixture::store_of(vec![ready.clone()]);
        ctx.fleet.follow(&ready);
        until("synced", || ctx.fleet.is_synced("pod")).await;
        (ctx, stand, server)
    }

    fn open(server: &ValidServer) -> Binding {
        Binding { server: server.clone(), headers: Ok(vec![]), tls: Ok(None) }
    }

    #[tokio::test]
    async fn a_slot_at_a_server_that_is_gone_or_going_is_told_to_gateways_no_more() {
        let going = {
            let mut going = fixture::server("everything", &json!({}));
            going.metadata.deletion_timestamp =
                fixture::deleted_session(&json!({})).metadata.deletion_timestamp;
            going
        };
        let there = fixture::server("everything", &json!({}));
        let cases =
            [("127.0.79.11", vec![], 0), ("127.0.79.12", vec![going], 0), ("127.0.79.13", vec![there], 1)];
        for (address, servers, confirmed) in cases {
            let (mut ctx, _stand, server) = stage(address).await;
            ctx.stores.servers = fixture::store_of(servers);
            let session = fixture::deleted_session(&json!({}));
            let held = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
            assert!(matches!(held, Outcome::Held { .. }), "{held:?}");
            assert_eq!(ctx.slots.confirmed("77-session").len(), 1);
            let refusal = Refusal::ServerNotFound { server: "everything".into(), namespace: "demo".into() };
            let refused = Outcome::Refused(refusal);
            assert_eq!(bind(&session, Err(refused.clone()), &[], &ctx, ctx.clock.now()).await, refused);
            assert_eq!(ctx.slots.confirmed("77-session").len(), confirmed, "{address}");
            assert_eq!(ctx.slots.promises_of("77-session").len(), 1, "an end asks that pod");
        }
    }

    #[tokio::test]
    async fn a_slot_in_a_pod_that_obeys_nobody_serves_on_and_says_what_to_do_and_none_is_taken_there() {
        let (ctx, _stand, server) = stage("127.0.79.14").await;
        let mut session = fixture::deleted_session(&json!({}));
        session.metadata.uid = Some("old-term".into());
        let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
        assert!(matches!(outcome, Outcome::Waiting(Wait::NoSlot { .. })), "{outcome:?}");
        assert_eq!(ctx.slots.promises_of("old-term"), []);
        let pod =
            json!({"name": "everything-x-0", "uid": "pod", "address": "127.0.79.14", "serverUid": "server"});
        let status = json!({"servers": [{"name": "everything", "state": "Bound", "podRef": pod}]});
        session.status = serde_json::from_value(status).unwrap();
        ctx.slots.with(|book| book.promise("old-term", "server", "pod"));
        let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
        let Outcome::Held { note: Some(note), .. } = outcome else { panic!("{outcome:?}") };
        assert!(note.contains("\"everything-x-0\"") && note.contains("delete the pod, or set"), "{note}");
        let trouble = ctx.slots.with(|book| pool_pods("demo", "server", &ctx, book)[0].trouble.clone());
        assert_eq!(trouble.unwrap().message, note);
    }

    #[tokio::test]
    async fn a_session_that_only_a_silent_sidecar_knows_of_gets_no_second_slot_from_the_next_operator() {
        let (mut ctx, stand, server) = stage("127.0.79.17").await;
        let session = fixture::deleted_session(&json!({}));
        let held = report("77-session", SessionState::Idle);
        let _holder = Stand::start(&ctx.ca, "127.0.79.18", vec![held]).await;
        let mut holds = ctx.stores.pods.state()[0].as_ref().clone();
        holds.metadata.uid = Some("holds".into());
        holds.metadata.name = Some("everything-x-1".into());
        holds.status.get_or_insert_default().pod_ip = Some("127.0.79.18".into());
        ctx.stores.pods = fixture::store_of(vec![ctx.stores.pods.state()[0].as_ref().clone(), holds.clone()]);
        ctx.started = ctx.clock.now();
        let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
        assert!(matches!(outcome, Outcome::Waiting(Wait::Unheard { .. })), "{outcome:?}");
        ctx.fleet.follow(&holds);
        until("synced", || ctx.fleet.is_synced("holds")).await;
        let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
        let Outcome::Held { pod, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!((pod.uid.as_str(), stand.held()), ("holds", vec![]));
    }

    #[tokio::test]
    async fn a_session_that_waits_says_what_its_server_says_is_wrong_with_the_pool() {
        let (mut ctx, stand, server) = stage("127.0.79.16").await;
        let mut session = fixture::deleted_session(&json!({}));
        session.metadata.uid = Some("one-too-many".into());
        let mut stored = fixture::server("everything", &json!({}));
        let ready = json!({"type": "Ready", "status": "False", "reason": "QuotaExceeded", "message": "q is used up",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 3});
        let status = json!({"conditions": [ready], "pods": 0, "readyPods": 0, "sessions": 0, "freeSlots": 0});
        stored.status = serde_json::from_value(status).unwrap();
        let mut anew = stored.clone();
        anew.metadata.uid = Some("another-of-that-name".into());
        let plain = "waits for a free slot of server \"everything\"";
        for (servers, reason, text) in [
            (
                vec![stored],
                "QuotaExceeded",
                format!("{plain}: its pool says QuotaExceeded, see kubectl describe mcpserver everything"),
            ),
            (vec![anew], "Pending", plain.to_owned()),
            (vec![], "Pending", plain.to_owned()),
        ] {
            ctx.stores.servers = fixture::store_of(servers);
            let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
            let Outcome::Waiting(wait) = outcome else { panic!("{outcome:?}") };
            assert_eq!((wait.reason().as_str(), wait.to_string()), (reason, text));
        }
        assert_eq!(stand.held(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_sidecar_that_seems_to_have_told_everything_is_seen_with_all_that_it_reports() {
        let (ctx, _stand, server) = stage("127.0.79.15").await;
        let session = fixture::deleted_session(&json!({}));
        let (uid, now) = ("77-session".to_owned(), ctx.clock.now());
        let binder = Binder { session: &session, uid, server: &server, strays: &[], ctx: &ctx, now };
        let look =
            || binder.look(&[], |_, observed, _| (observed.pods[0].occupancy.synced, observed.reports.len()));
        for _ in 0..100 {
            ctx.fleet.tell("pod", false, &[]);
            std::thread::scope(|scope| {
                // The stream tells everything while a look that has begun waits for the book.
                let looking = ctx.slots.with(|_| {
                    let (sender, begun) = std::sync::mpsc::channel();
                    let looking = scope.spawn(move || {
                        sender.send(()).unwrap();
                        look()
                    });
                    begun.recv().unwrap();
                    ctx.fleet.tell("pod", true, &[report("77-session", SessionState::Idle)]);
                    looking
                });
                assert_eq!(looking.join().unwrap(), (true, 1));
            });
        }
    }

    #[tokio::test]
    async fn what_a_sidecar_cannot_act_on_is_invalid_at_every_look_and_holds_no_slot() {
        let (ctx, _stand, server) = stage("127.0.79.5").await;
        let mut session = fixture::deleted_session(&json!({}));
        session.metadata.uid = Some("invalid".into());
        for _ in 0..2 {
            let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
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
        let outcome = bind(&session, Ok(open(&server)), &[], &ctx, ctx.clock.now()).await;
        assert!(matches!(outcome, Outcome::Waiting(Wait::NoSlot { .. })), "{outcome:?}");
        assert_eq!(free(), 0);
        assert!(ctx.fleet.occupancy("pod", vec![]).used);
        assert_eq!(stand.ended(), []);
    }
}
