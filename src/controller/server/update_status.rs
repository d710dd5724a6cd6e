//! Writes what a reconcile of an `McpServer` found.

use crate::context::Context;
use crate::controller::server::apply::Applied;
use crate::controller::server::dereference::pool_pods;
use crate::controller::status;
use berth_api::McpServer;
use berth_plan::server::pool::Plan;
use berth_plan::server::status::{Found, status as server_status};
use berth_plan::server::validate::{Refusal, ValidServer};
use berth_plan::time::Moment;
use kube::ResourceExt;

/// A server that cannot be acted on: its pods stay as they are.
pub async fn refused(
    server: &McpServer,
    valid: &Result<ValidServer, Refusal>,
    ctx: &Context,
    now: Moment,
) -> Result<(), status::Error> {
    write(server, valid.as_ref(), 0, None, ctx, now).await
}

/// A server whose pool was looked after.
pub async fn found(
    server: &McpServer,
    valid: &ValidServer,
    plan: &Plan,
    applied: &Applied,
    ctx: &Context,
    now: Moment,
) -> Result<(), status::Error> {
    write(server, Ok(valid), plan.waiting, applied.refused.as_ref(), ctx, now).await
}

async fn write(
    server: &McpServer,
    valid: Result<&ValidServer, &Refusal>,
    waiting: u32,
    refused: Option<&berth_plan::pod::Trouble>,
    ctx: &Context,
    now: Moment,
) -> Result<(), status::Error> {
    let namespace = server.namespace().unwrap_or_default();
    let pods = ctx.slots.with(|book| pool_pods(&namespace, &server.uid().unwrap_or_default(), ctx, book));
    let image = ctx.settings.sidecar.mark();
    let found = Found { server: valid, pods: &pods, waiting, refused, image: &image };
    let wanted = server_status(server, &found, now);
    status::update(&ctx.api::<McpServer>(&namespace), server, server.status.as_ref(), &wanted).await
}
