//! A session whose credential cannot be had: it takes no slot. One that it holds it keeps, and the sidecar is told to send the
//! credential no more.

use crate::controller::session::bind::Binder;
use crate::fleet::ControlError;
use berth_plan::session::validate::Refusal;
use berth_plan::session::{build, place, status::Outcome};
use berth_wire::RefusalReason;

impl Binder<'_> {
    /// What becomes of the binding while there is no credential, for the reason in `refusal`.
    pub async fn withhold(&self, refusal: Refusal) -> Outcome {
        let (uid, server) = (&self.uid, &self.server.key.uid);
        let held = self.look(&[], |book, observed, promise| {
            let Some(pod) = place::kept(self.server, observed, self.now) else {
                book.release(uid, server);
                return None;
            };
            book.promise(uid, server, &pod.uid);
            let report = observed.reports.iter().find(|(held_by, _)| *held_by == pod.uid);
            let report = report.map(|(_, report)| report.clone());
            Some((pod.clone(), report, promise.and_then(|promise| promise.sent)))
        });
        let Some((pod, report, sent)) = held else { return Outcome::Refused(refusal) };
        let spec = build::withheld(self.session, self.server, &pod.revision, &refusal, self.scope_key());
        if !build::is_to_be_sent(&spec, &pod.revision, report.as_ref(), sent.as_deref()) {
            return Outcome::withheld(self.server, &pod, refusal, true);
        }
        match self.put_again(&spec, &pod, report.as_ref(), sent.as_deref()).await {
            Ok(_) => Outcome::withheld(self.server, &pod, refusal, true),
            // The sidecar does not hold it any more, and would not again: it sends nothing.
            Err(ControlError::Refused(refused)) if refused.reason != RefusalReason::Stale => {
                self.release();
                Outcome::Refused(refusal)
            }
            Err(_) => Outcome::withheld(self.server, &pod, refusal, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::session::bind::bind;
    use crate::controller::session::bind::tests::stage;
    use crate::fixture::{deleted_session, store_of};
    use crate::fleet::stand::{pod, report, until};
    use berth_api::{AgentSession, label};
    use berth_plan::server::credential::{self, User};
    use berth_plan::server::validate::ValidServer;
    use berth_plan::session::place::Wait;
    use berth_plan::session::validate::Binding;
    use berth_wire::{Failure, Header, SessionReport, SessionState, WatchLine};
    use serde_json::json;

    fn refusal() -> Refusal {
        let refusal = credential::Refusal::NotPermitted { secret: "own".into(), user: User::Session };
        Refusal::Credential { server: "everything".into(), refusal }
    }

    fn without(server: &ValidServer) -> Binding {
        Binding { server: server.clone(), headers: Err(refusal()), tls: Ok(None) }
    }

    fn with(server: &ValidServer, value: &str) -> Binding {
        let header = Header { name: "Authorization".into(), value: value.into() };
        Binding { server: server.clone(), headers: Ok(vec![header]), tls: Ok(None) }
    }

    fn session(uid: &str) -> AgentSession {
        let mut session = deleted_session(&json!({}));
        session.metadata.uid = Some(uid.to_owned());
        session
    }

    /// Whether the sidecar is known to have been told; none if the binding holds no slot.
    fn told(outcome: &Outcome) -> Option<bool> {
        match outcome {
            Outcome::Withheld { pod, refusal: why, told, .. } => {
                assert_eq!((pod.uid.as_str(), why), ("pod", &refusal()));
                Some(*told)
            }
            Outcome::Refused(why) => {
                assert_eq!(why, &refusal());
                None
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_slot_stays_and_its_sidecar_is_told_once_when_the_credential_goes_and_when_it_is_back() {
        let (ctx, stand, server) = stage("127.0.81.1").await;
        let session = session("77-session");
        let look = |binding| bind(&session, Ok(binding), &[], &ctx, ctx.clock.now());
        for value in ["Bearer first", "Bearer second"] {
            for again in [false, true] {
                let outcome = look(with(&server, value)).await;
                assert!(matches!(outcome, Outcome::Held { .. }), "{outcome:?}");
                let sent: Vec<Vec<Header>> =
                    stand.specs().into_iter().map(|spec| spec.upstream.headers).collect();
                let header = Header { name: "Authorization".into(), value: value.into() };
                assert_eq!(sent, if again { vec![] } else { vec![vec![header]] }, "{value}");
            }
            for again in [false, true] {
                assert_eq!(told(&look(without(&server)).await), Some(true));
                let sent = stand.specs();
                assert!(sent.iter().all(|spec| spec.upstream.headers.is_empty()));
                let reasons: Vec<Failure> =
                    sent.into_iter().filter_map(|spec| Some(spec.upstream.withheld?.reason)).collect();
                assert_eq!(reasons, if again { vec![] } else { vec![Failure::RefNotPermitted] });
            }
        }
        assert_eq!(ctx.slots.promised_to("server", "pod"), ["77-session"]);
        assert_eq!(stand.ended(), []);
    }

    #[tokio::test]
    async fn a_credential_that_is_back_is_not_sent_to_an_older_revision_which_is_left_at_once() {
        let (mut ctx, stand, server) = stage("127.0.81.4").await;
        let mut older = pod("127.0.81.4");
        older.metadata.labels.get_or_insert_default().insert(label::REVISION.into(), "older".into());
        ctx.stores.pods = store_of(vec![older]);
        ctx.slots.with(|book| book.promise("77-session", "server", "pod"));
        let session = session("77-session");
        stand.say(&WatchLine::Session(report("77-session", SessionState::Connected)));
        until("held", || !ctx.fleet.reports_of("77-session").is_empty()).await;
        assert_eq!(told(&bind(&session, Ok(without(&server)), &[], &ctx, ctx.clock.now()).await), Some(true));
        assert_eq!(stand.specs().len(), 1);
        let failure = Some(Failure::RefNotPermitted);
        stand.say(&WatchLine::Session(SessionReport {
            failure,
            ..report("77-session", SessionState::Connected)
        }));
        let said = || ctx.fleet.reports_of("77-session").iter().any(|said| said.report.failure == failure);
        until("reported", said).await;

        let outcome = bind(&session, Ok(with(&server, "Bearer second")), &[], &ctx, ctx.clock.now()).await;
        assert!(matches!(outcome, Outcome::Waiting(Wait::NoSlot { .. })), "{outcome:?}");
        let ended: Vec<String> = stand.ended().into_iter().map(|(uid, _)| uid).collect();
        assert_eq!((ended, stand.specs().len()), (vec!["77-session".to_owned()], 0));
        assert!(ctx.slots.promised_to("server", "pod").is_empty());
    }

    #[tokio::test]
    async fn without_the_authorities_of_its_server_a_session_is_as_without_a_credential() {
        let (ctx, stand, server) = stage("127.0.81.5").await;
        let session = session("77-session");
        let look = |binding| bind(&session, Ok(binding), &[], &ctx, ctx.clock.now());
        let outcome = look(with(&server, "Bearer first")).await;
        assert!(matches!(outcome, Outcome::Held { .. }), "{outcome:?}");
        let first = stand.specs().remove(0);
        assert_eq!(first.scope_key, Some(ctx.ca.scope_key("77-session", "server")));
        let lost = Binding { tls: Err(refusal()), ..with(&server, "Bearer first") };
        assert_eq!(told(&look(lost).await), Some(true));
        let sent = stand.specs().remove(0);
        assert!(sent.upstream.headers.is_empty() && sent.upstream.withheld.is_some());
        assert_eq!(sent.scope_key, first.scope_key, "clients keep their ids");
    }

    #[tokio::test]
    async fn a_session_without_a_slot_takes_none() {
        let (ctx, stand, server) = stage("127.0.81.2").await;
        let outcome = bind(&session("77-session"), Ok(without(&server)), &[], &ctx, ctx.clock.now()).await;
        assert_eq!(told(&outcome), None);
        assert!(stand.held().is_empty() && ctx.slots.promised_to("server", "pod").is_empty());
    }

    #[tokio::test]
    async fn a_sidecar_that_cannot_be_told_is_asked_again_and_one_that_refuses_holds_nothing() {
        let (ctx, stand, server) = stage("127.0.81.3").await;
        let refused = session("one-too-many");
        ctx.slots.with(|book| book.promise("one-too-many", "server", "pod"));
        assert_eq!(told(&bind(&refused, Ok(without(&server)), &[], &ctx, ctx.clock.now()).await), None);
        assert!(ctx.slots.promised_to("server", "pod").is_empty());

        let held = session("77-session");
        bind(&held, Ok(with(&server, "Bearer first")), &[], &ctx, ctx.clock.now()).await;
        stand.cancel.cancel();
        stand.lines.send("end".into()).unwrap();
        until("lost", || !ctx.fleet.is_synced("pod")).await;
        for _ in 0..2 {
            assert_eq!(
                told(&bind(&held, Ok(without(&server)), &[], &ctx, ctx.clock.now()).await),
                Some(false)
            );
        }
        assert_eq!(ctx.slots.promised_to("server", "pod"), ["77-session"]);
    }
}
