//! Ends a session that lives at the servers which were taken out of its spec.

use crate::context::Context;
use crate::controller::session::strays::Stray;
use crate::controller::session::{end, holdings};
use berth_api::AgentSession;
use berth_plan::end::{Holding, State, unasked};
use berth_plan::session::build;
use berth_plan::session::removed::removed;
use kube::ResourceExt;
use std::time::Duration;

/// Asks every sidecar that holds the session for a server which its spec does not name to end it, and gives back the slots of
/// those where it is over. What is returned is left.
pub async fn leave(session: &AgentSession, strays: &[Stray], ctx: &Context) -> Vec<Holding> {
    let mut held = removed(session, holdings::holdings(session, strays, ctx));
    if held.is_empty() || is_behind(session, ctx) {
        return held;
    }
    let (drain, close) = end::bounds(session, held.iter().map(|holding| holding.server.as_str()), ctx);
    let request = build::end_request(drain, close, end::WAIT);
    let asked = unasked(&held);
    holdings::close(session, request, Duration::MAX, &mut held, &asked, ctx).await;
    // One that is out of reach now may be back later, or gone.
    for holding in held.iter_mut().filter(|holding| holding.state == State::Stray) {
        holding.state = State::Silent;
    }
    release(session, &held, ctx);
    held.retain(|holding| !holding.is_over());
    held
}

/// Whether a sidecar was given a later spec of the session than this one, which a cache that lags behind shows: what it does not
/// name may have come to it since.
fn is_behind(session: &AgentSession, ctx: &Context) -> bool {
    let generation = session.metadata.generation.unwrap_or_default();
    let reports = ctx.fleet.reports_of(&session.uid().unwrap_or_default());
    reports.iter().any(|reported| reported.report.generation.session > generation)
}

fn release(session: &AgentSession, held: &[Holding], ctx: &Context) {
    let uid = session.uid().unwrap_or_default();
    let over = |pod: &str| held.iter().any(|holding| holding.is_over() && holding.pod_uid == pod);
    for (server, pod) in ctx.slots.promises_of(&uid) {
        if over(&pod) {
            ctx.slots.with(|book| book.release(&uid, &server));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::session::reconcile;
    use crate::fixture::{Seen, context, deleted_session, failure, store_of};
    use crate::fleet::stand::{Stand, pod, report, until};
    use berth_wire::SessionState;
    use serde_json::{Value, json};
    use std::sync::Arc;

    /// A session that lives, holds a slot of `everything` by its status, and names only `other` in its spec.
    fn session() -> AgentSession {
        let pod =
            json!({"name": "everything-x-0", "uid": "pod", "address": "127.0.0.1", "serverUid": "server"});
        let status = json!({"servers": [{"name": "everything", "state": "Bound", "podRef": pod}]});
        let mut session = deleted_session(&status);
        session.metadata.deletion_timestamp = None;
        session.spec.end = None;
        session.spec.servers[0].name = "other".into();
        session
    }

    fn accepts(_: &Seen) -> (u16, Value) {
        (200, serde_json::to_value(session()).unwrap())
    }

    #[tokio::test]
    async fn a_server_that_was_taken_out_of_the_spec_loses_the_session_and_its_slot_is_free() {
        let (mut ctx, log) = context(accepts).await;
        let stand = Stand::start(&ctx.ca, "127.0.79.1", vec![]).await;
        stand.hold("77-session");
        ctx.stores.pods = store_of(vec![pod("127.0.79.1")]);
        ctx.fleet.follow(&pod("127.0.79.1"));
        until("synced", || ctx.fleet.is_synced("pod")).await;
        reconcile(Arc::new(session()), &ctx).await.unwrap();
        let ended: Vec<String> = stand.ended().into_iter().map(|(uid, _)| uid).collect();
        assert_eq!(ended, ["77-session"]);
        assert_eq!(ctx.slots.promised_to("server", "pod"), Vec::<String>::new());
        let status = &log.take()[0].body[1]["value"];
        let servers = status["servers"].as_array().unwrap();
        assert_eq!((servers[0]["name"].as_str(), servers.len()), (Some("other"), 1));
        assert_eq!(
            status.get("unconfirmed"),
            None,
            "its sidecar has confirmed it, though its stream told nothing"
        );
        // Nobody is asked twice, whichever status the cache shows by then.
        reconcile(Arc::new(session()), &ctx).await.unwrap();
        assert_eq!(stand.ended(), []);
    }

    #[tokio::test]
    async fn a_server_that_only_a_later_spec_than_the_cached_one_names_is_not_left() {
        for (generation, asked) in [(4, 0), (5, 1)] {
            let (mut ctx, _) = context(accepts).await;
            let mut held = report("77-session", SessionState::Idle);
            held.generation.session = 5;
            let address = format!("127.0.79.2{generation}");
            let stand = Stand::start(&ctx.ca, &address, vec![held]).await;
            ctx.stores.pods = store_of(vec![pod(&address)]);
            ctx.fleet.follow(&pod(&address));
            until("synced", || ctx.fleet.is_synced("pod")).await;
            let mut session = session();
            session.metadata.generation = Some(generation);
            reconcile(Arc::new(session), &ctx).await.unwrap();
            assert_eq!(stand.ended().len(), asked, "generation {generation}");
        }
    }

    #[tokio::test]
    async fn a_pod_that_is_out_of_reach_is_not_taken_for_left() {
        let out_of_reach = |seen: &Seen| {
            if seen.path.contains("/pods/") { failure(403, "Forbidden", "no") } else { accepts(seen) }
        };
        let (ctx, log) = context(out_of_reach).await;
        reconcile(Arc::new(session()), &ctx).await.unwrap();
        let servers = &log.take().pop().unwrap().body[1]["value"]["servers"];
        assert_eq!((&servers[1]["state"], &servers[1]["podRef"]["uid"]), (&json!("Ending"), &json!("pod")));
    }

    #[tokio::test]
    async fn a_sidecar_that_gives_no_answer_is_remembered_and_asked_again() {
        let (mut ctx, log) = context(accepts).await;
        ctx.stores.pods = store_of(vec![pod("127.0.79.2")]);
        let again = reconcile(Arc::new(session()), &ctx).await.unwrap();
        assert_eq!(again, kube::runtime::controller::Action::requeue(std::time::Duration::from_secs(2)));
        assert_eq!(ctx.slots.promised_to("server", "pod"), ["77-session"]);
        let servers = &log.take()[0].body[1]["value"]["servers"];
        assert_eq!((&servers[1]["state"], &servers[1]["podRef"]["uid"]), (&json!("Ending"), &json!("pod")));
        // Its end waits for that pod too, should the whole session be deleted now.
        assert!(holdings::unheard(&session(), &ctx));
    }
}
