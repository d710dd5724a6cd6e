//! One reconcile of an `AgentSession`: each of its bindings gets a slot, and status says which.

mod bind;
mod dereference;
mod end;
mod finalizer;
mod holdings;
mod removed;
mod update_status;

use crate::context::Context;
use crate::controller::{requeue, status};
use crate::event;
use berth_api::AgentSession;
use berth_plan::session::removed::next_look as after_removal;
use berth_plan::session::status::next_look;
use futures::future::join_all;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use std::sync::Arc;

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
    if session.metadata.deletion_timestamp.is_some() {
        return end::end(&session, ctx).await;
    }
    // The finalizer comes before anything is held: a crash in between then leaves a session to clean up, never a slot that
    // nobody will free. (Written at the same time as the PUTs it would cost one round less.)
    let Some(session) = finalizer::ensure(session, ctx).await? else {
        return Ok(finalizer::look_again());
    };
    if session.spec.end.is_some() {
        end::delete(&session, ctx).await?;
        return Ok(Action::await_change());
    }
    let now = ctx.clock.now();
    let bindings = dereference::bindings(&session, ctx).await;
    let binds = bindings.into_iter().map(|binding| bind::bind(&session, binding, ctx, now));
    let (outcomes, left) = futures::join!(join_all(binds), removed::leave(&session, ctx));
    update_status::update(&session, &outcomes, &left, ctx, now).await?;
    let next = [next_look(&session, &outcomes, now), after_removal(&left, now)].into_iter().flatten().min();
    Ok(requeue(&session.uid().unwrap_or_default(), next, now))
}
