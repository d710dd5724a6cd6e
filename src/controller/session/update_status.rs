//! Writes what a reconcile of an `AgentSession` found.

use crate::context::Context;
use crate::controller::status;
use berth_api::{AgentSession, AgentSessionStatus};
use berth_plan::end::Holding;
use berth_plan::end::record::remember;
use berth_plan::session::removed::entries;
use berth_plan::session::status::{Outcome, status as session_status};
use berth_plan::time::Moment;
use kube::ResourceExt;

/// Writes the status of a session that lives; `left` is what is held at servers that its spec does not name any more, `held`
/// every pod that holds the session or held it.
pub async fn update(
    session: &AgentSession,
    outcomes: &[Outcome],
    left: &[Holding],
    held: &[Holding],
    ctx: &Context,
    now: Moment,
) -> Result<(), status::Error> {
    let mut wanted = session_status(session, outcomes, &ctx.settings.gateway_url, now);
    wanted.servers.extend(entries(session, left));
    remember(&mut wanted, held);
    write(session, &wanted, ctx).await
}

/// Writes `wanted`.
pub async fn write(
    session: &AgentSession,
    wanted: &AgentSessionStatus,
    ctx: &Context,
) -> Result<(), status::Error> {
    let api = ctx.api::<AgentSession>(&session.namespace().unwrap_or_default());
    status::update(&api, session, session.status.as_ref(), wanted).await
}
