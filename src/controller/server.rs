//! One reconcile of an `McpServer`: its pool is brought to what it should be, and status says what was found.

mod apply;
mod dereference;
mod update_status;

pub use dereference::{pool_pods, secret_state};

use crate::context::Context;
use crate::controller::requeue;
use crate::{ca, controller::status};
use berth_api::McpServer;
use berth_plan::server::pool;
use berth_plan::server::validate::validate;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use std::time::Duration;

/// A pool that is not as it should be is looked at again after this, whatever events come.
const UNSETTLED: Duration = Duration::from_secs(15);

/// A server that cannot be acted on is looked at again after this: a Secret without the label comes and goes unseen.
const REFUSED: Duration = Duration::from_secs(15);

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something could not be read.
    #[error(transparent)]
    Dereference(#[from] dereference::Error),
    /// A pod could not be made or deleted.
    #[error(transparent)]
    Apply(#[from] apply::Error),
    /// The serving certificate could not be had.
    #[error(transparent)]
    Certificate(#[from] ca::Error),
    /// The status could not be written.
    #[error(transparent)]
    Status(#[from] status::Error),
}

/// One reconcile of `server`.
pub async fn reconcile(server: &McpServer, ctx: &Context) -> Result<Action, Error> {
    if server.metadata.deletion_timestamp.is_some() {
        // The children go by their owner references.
        return Ok(Action::await_change());
    }
    let now = ctx.clock.now();
    let secret = secret_state(server, ctx).await?;
    let valid = validate(server, secret.state());
    let Ok(valid) = valid else {
        update_status::refused(server, &valid, ctx, now).await?;
        return Ok(requeue(&server.uid().unwrap_or_default(), Some(now.plus(REFUSED)), now));
    };
    let named = ca::Server { namespace: &valid.namespace, name: &valid.key.name, uid: &valid.key.uid };
    ctx.ca.ensure_server(named, now).await?;
    let plan = apply::decide(server, &valid, ctx, now);
    let applied = apply::apply(&valid, &plan, ctx).await;
    update_status::found(server, &valid, &plan, &applied, ctx, now).await?;
    wake(&plan, ctx);
    applied.result?;
    let settled = plan.create.is_empty() && plan.delete.is_empty() && plan.waiting == 0;
    Ok(requeue(&valid.key.uid, (!settled).then(|| now.plus(UNSETTLED)), now))
}

fn wake(plan: &pool::Plan, ctx: &Context) {
    for session in plan.wake.iter().filter_map(|uid| ctx.slots.object(uid)) {
        ctx.triggers.sessions.fire(session);
    }
}
