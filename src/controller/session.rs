//! One reconcile of an `AgentSession`: each of its bindings gets a slot, and status says which.

mod bind;
mod dereference;
mod end;
mod finalizer;
mod holdings;
mod moved;
mod removed;
mod strays;
mod update_status;
mod withhold;

use crate::context::Context;
use crate::controller::{look_again, requeue, status};
use crate::event;
use berth_api::AgentSession;
use berth_plan::session::removed::next_look as after_leaving;
use berth_plan::session::status::next_look;
use futures::future::join_all;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use std::sync::Arc;
use std::time::Duration;

/// While Berth is being uninstalled no session is placed; one is looked at again after this, should that be called off.
const SHUTTING_DOWN: Duration = Duration::from_secs(15);

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The finalizer could not be written.
    #[error(transparent)]
    Finalizer(#[from] finalizer::Error),
    /// The session could not be deleted.
    #[error(transparent)]
    Delete(#[from] end::DeleteError),
    /// The Event could not be posted.
    #[error(transparent)]
    Event(#[from] event::Error),
    /// The status could not be written.
    #[error(transparent)]
    Status(#[from] status::Error),
}

/// One reconcile of `session`.
pub async fn reconcile(session: Arc<AgentSession>, ctx: &Context) -> Result<Action, Error> {
    ctx.slots.know(&session);
    let uid = session.uid().unwrap_or_default();
    if session.metadata.deletion_timestamp.is_some() {
        return end::end(&session, ctx).await;
    }
    // While Berth is being uninstalled no session gets a finalizer that nobody may be left to drop. One that has it and is
    // to end goes on.
    let now = ctx.clock.now();
    let ends = session.spec.end.is_some() && finalizer::has(&session);
    if ctx.lead.is_shutting_down() && !ends {
        return Ok(requeue(&uid, Some(now.plus(SHUTTING_DOWN)), now));
    }
    // The finalizer comes before anything is held: a crash in between then leaves a session to clean up, never a slot that
    // nobody will free. (Written at the same time as the PUTs it would cost one round less.)
    let Some(session) = finalizer::ensure(session, ctx).await? else {
        return Ok(look_again());
    };
    if session.metadata.deletion_timestamp.is_some() {
        return end::end(&session, ctx).await;
    }
    // What this process knows by now outweighs the version that it began with: nothing is held for a session that is over
    // or gone, since nobody would look at it again.
    if ctx.slots.is_over(&uid) || ctx.slots.object(&uid).is_none() {
        return Ok(look_again());
    }
    if session.spec.end.is_some() {
        end::delete(&session, ctx).await?;
        return Ok(Action::await_change());
    }
    let now = ctx.clock.now();
    // It may have begun meanwhile.
    if ctx.lead.is_shutting_down() {
        return Ok(requeue(&uid, Some(now.plus(SHUTTING_DOWN)), now));
    }
    let strays = strays::look(&session, ctx).await;
    let bindings = dereference::bindings(&session, ctx).await;
    let binds = bindings.into_iter().map(|binding| bind::bind(&session, binding, &strays, ctx, now));
    let (outcomes, left) = futures::join!(join_all(binds), removed::leave(&session, &strays, ctx));
    let behind = moved::leave(&session, &outcomes, &strays, ctx).await;
    // What was held before is known best when all who leave have been asked.
    let held = holdings::holdings(&session, &strays, ctx);
    update_status::update(&session, &outcomes, &left, &held, ctx, now).await?;
    let looks = [
        next_look(&session, &outcomes, now),
        after_leaving(&left, now),
        after_leaving(&behind, now),
        strays::next_look(&strays, now),
    ];
    Ok(requeue(&uid, looks.into_iter().flatten().min(), now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, Log, Seen, deleted_session, failure, store_of};
    use crate::fleet::stand::{Stand, pod, until};
    use berth_api::label;
    use berth_plan::server::validate::accept;
    use http::Method;
    use serde_json::{Value, json};
    use std::sync::OnceLock;

    /// A session that was just made, without a finalizer.
    fn created() -> AgentSession {
        let mut session = deleted_session(&json!({}));
        session.metadata.deletion_timestamp = None;
        session.metadata.finalizers = None;
        session.spec.end = None;
        session
    }

    fn guarded() -> AgentSession {
        let finalizers = Some(vec![label::SESSION_FINALIZER.to_owned()]);
        let session = created();
        AgentSession { metadata: kube::api::ObjectMeta { finalizers, ..session.metadata.clone() }, ..session }
    }

    /// An operator with a free slot for the session; the API server answers as `answer` says.
    async fn stage(
        address: &str,
        answer: impl Fn(&Seen, &Context) -> (u16, Value) + Clone + Send + Sync + 'static,
    ) -> (Arc<Context>, Log, Stand) {
        let shared: Arc<OnceLock<Arc<Context>>> = Arc::default();
        let held = shared.clone();
        let (mut ctx, log) = fixture::context(move |seen| match held.get() {
            Some(ctx) => answer(seen, ctx),
            None => failure(404, "NotFound", "no"),
        })
        .await;
        let server = fixture::server("everything", &json!({}));
        let revision = accept(&server).unwrap().key.revision;
        let stand = Stand::start(&ctx.ca, address, vec![]).await;
        let mut pod = pod(address);
        pod.metadata.labels.get_or_insert_default().insert(label::REVISION.into(), revision);
        ctx.stores.servers = store_of(vec![server]);
        ctx.stores.pods = store_of(vec![pod.clone()]);
        ctx.fleet.follow(&pod);
        until("synced", || ctx.fleet.is_synced("pod")).await;
        let ctx = Arc::new(ctx);
        assert!(shared.set(ctx.clone()).is_ok());
        (ctx, log, stand)
    }

    fn to_api(session: &AgentSession) -> (u16, Value) {
        (200, serde_json::to_value(session).unwrap())
    }

    #[tokio::test]
    async fn a_new_session_gets_its_finalizer_then_its_slot() {
        let (ctx, log, stand) = stage("127.0.80.1", |_, _| to_api(&guarded())).await;
        reconcile(Arc::new(created()), &ctx).await.unwrap();
        assert_eq!(stand.held(), ["77-session"]);
        assert_eq!(log.take()[0].body[2]["value"], json!([label::SESSION_FINALIZER]));
    }

    #[tokio::test]
    async fn nothing_is_held_while_the_finalizer_may_not_be_there() {
        for (address, code) in [("127.0.80.2", 404), ("127.0.80.3", 422), ("127.0.80.4", 500)] {
            let (ctx, ..) = stage(address, move |_, _| failure(code, "No", "no")).await;
            let _ = reconcile(Arc::new(created()), &ctx).await;
            assert!(
                ctx.fleet.reports_of("77-session").is_empty()
                    && ctx.slots.promises_of("77-session").is_empty()
            );
        }
    }

    #[tokio::test]
    async fn during_an_uninstall_no_session_gets_a_finalizer_and_one_that_is_to_end_ends() {
        let (ctx, log, stand) = stage("127.0.80.8", |_, _| to_api(&guarded())).await;
        ctx.lead.set_shutting_down(true);
        let wish = deleted_session(&json!({})).spec.end;
        assert!(wish.is_some());
        let ending = |mut session: AgentSession| {
            session.spec.end.clone_from(&wish);
            session
        };
        for waits in [created(), ending(created()), guarded()] {
            reconcile(Arc::new(waits), &ctx).await.unwrap();
            assert!(log.take().is_empty() && stand.held().is_empty());
        }
        reconcile(Arc::new(ending(guarded())), &ctx).await.unwrap();
        let methods: Vec<Method> = log.take().into_iter().map(|seen| seen.method).collect();
        assert_eq!(methods, [Method::DELETE]);
        ctx.lead.set_shutting_down(false);
        reconcile(Arc::new(created()), &ctx).await.unwrap();
        assert_eq!(stand.held(), ["77-session"]);
    }

    #[tokio::test]
    async fn a_session_that_is_deleted_when_its_finalizer_is_written_ends_and_holds_nothing() {
        let answer = |seen: &Seen, _: &Context| match seen.method {
            Method::PATCH => to_api(&deleted_session(&json!({}))),
            _ => (201, seen.body.clone()),
        };
        let (ctx, log, stand) = stage("127.0.80.5", answer).await;
        reconcile(Arc::new(created()), &ctx).await.unwrap();
        assert_eq!(stand.held(), Vec::<String>::new());
        let methods: Vec<Method> = log.take().into_iter().map(|seen| seen.method).collect();
        assert_eq!(methods, [Method::PATCH, Method::POST, Method::PATCH]);
    }

    #[tokio::test]
    async fn a_session_that_is_over_or_gone_by_now_holds_nothing_whatever_an_old_version_says() {
        let gone = |_: &Seen, ctx: &Context| {
            ctx.slots.forget("77-session");
            to_api(&guarded())
        };
        let (ctx, _, stand) = stage("127.0.80.6", gone).await;
        reconcile(Arc::new(created()), &ctx).await.unwrap();
        assert_eq!(stand.held(), Vec::<String>::new());
        let (ctx, _, stand) = stage("127.0.80.7", |_, _| to_api(&guarded())).await;
        ctx.slots.know(&guarded());
        ctx.slots.finish("77-session");
        reconcile(Arc::new(guarded()), &ctx).await.unwrap();
        assert_eq!(stand.held(), Vec::<String>::new());
    }
}
