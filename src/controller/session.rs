//! One look at an `AgentSession`: each of its bindings gets a slot, and status says which.

mod bind;
mod dereference;
mod end;
mod finalizer;
mod update_status;

use crate::context::Context;
use crate::controller::{requeue, status};
use crate::event;
use berth_api::AgentSession;
use berth_plan::session::status::next_look;
use futures::future::join_all;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use std::sync::Arc;

/// Why a look failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something could not be read.
    #[error(transparent)]
    Dereference(#[from] dereference::Error),
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

/// One look at `session`.
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
    let bindings = dereference::bindings(&session, ctx).await?;
    let outcomes =
        join_all(bindings.into_iter().map(|binding| bind::bind(&session, binding, ctx, now))).await;
    update_status::update(&session, &outcomes, ctx, now).await?;
    Ok(requeue(&session.uid().unwrap_or_default(), next_look(&session, &outcomes, now), now))
}
