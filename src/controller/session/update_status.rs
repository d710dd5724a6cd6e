//! Writes what a look at an `AgentSession` found.

use crate::context::Context;
use crate::controller::status;
use berth_api::{AgentSession, AgentSessionStatus};
use berth_plan::session::status::{Outcome, status as session_status};
use berth_plan::time::Moment;
use kube::ResourceExt;

/// Writes the status of a session that lives.
pub async fn update(
    session: &AgentSession,
    outcomes: &[Outcome],
    ctx: &Context,
    now: Moment,
) -> Result<(), status::Error> {
    write(session, &session_status(session, outcomes, &ctx.settings.gateway_url, now), ctx).await
}

/// Writes `wanted`.
pub async fn write(
    session: &AgentSession,
    wanted: &AgentSessionStatus,
    ctx: &Context,
) -> Result<(), status::Error> {
    let api = ctx.api::<AgentSession>(&session.namespace().unwrap_or_default());
    status::update(&api, &session.name_any(), session.status.as_ref(), wanted).await
}
