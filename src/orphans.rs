//! Orphans: sessions that a sidecar holds though their `AgentSession` is gone.
//!
//! They come from an end that was told by its bound, a finalizer that was removed by hand, or a PUT that arrived late. Nobody
//! would ever end them, and they would hold their slots for ever. A cache may lag behind, so only a live and complete list
//! of the namespace decides; it is asked for only when a report names a UID that the cache does not have.

mod pods;

use crate::api_error;
use crate::background::uids;
use crate::context::Context;
use crate::fleet::Living;
use crate::pages;
use berth_api::{AgentSession, Timeouts};
use berth_plan::session::build;
use futures::{StreamExt, stream};
use kube::{Api, ResourceExt};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Namespaces that are listed in one sweep; the next one goes on.
const MAX_NAMESPACES: usize = 16;
/// Orphans that are ended at once: sidecars have others to answer too.
const AT_ONCE: usize = 16;
/// How long a sweep waits for one sidecar: the end goes on without it.
const WAIT: Duration = Duration::from_millis(500);

/// Ends every orphan that is found, and every pod that belongs to no server any more.
pub async fn end(ctx: &Context) {
    pods::end(ctx).await;
    // What sidecars hold is listed before the objects: an object is there before any sidecar hears of it.
    let living = ctx.fleet.living();
    let known = uids(&ctx.stores.sessions);
    // The order of this map is another one each time, so that every namespace has its turn.
    let mut suspects: HashMap<String, Vec<Living>> = HashMap::new();
    for suspect in living.into_iter().filter(|living| !known.contains(&living.session)) {
        suspects.entry(suspect.namespace.clone()).or_default().push(suspect);
    }
    for (namespace, suspects) in suspects.into_iter().take(MAX_NAMESPACES) {
        match existing(&namespace, ctx).await {
            Ok(existing) => {
                let orphans = suspects.iter().filter(|suspect| !existing.contains(&suspect.session));
                stream::iter(orphans).for_each_concurrent(AT_ONCE, |orphan| end_one(orphan, ctx)).await;
            }
            Err(error) => {
                tracing::warn!(
                    namespace,
                    error = api_error::text(&error),
                    "cannot tell whether sidecars hold orphans"
                );
            }
        }
    }
}

/// UIDs of all sessions of a namespace, from the API server itself.
async fn existing(namespace: &str, ctx: &Context) -> Result<HashSet<String>, kube::Error> {
    let api: Api<AgentSession> = ctx.api(namespace);
    Ok(pages::metadata(&api).await?.iter().filter_map(ResourceExt::uid).collect())
}

/// Ends one orphan. Nobody waits for its calls any more, so they are not drained.
async fn end_one(orphan: &Living, ctx: &Context) {
    let close = Timeouts::default().close.to_std().unwrap_or_default();
    let request = build::end_request(Duration::ZERO, close, WAIT);
    let Living { session, pod, namespace } = orphan;
    match ctx.fleet.end(pod, session, request).await {
        Ok(report) => {
            ctx.metrics.orphan_ended();
            ctx.fleet.forget(session);
            tracing::warn!(namespace, session, pod, phase = ?report.phase, "orphan ended: its AgentSession is gone");
        }
        Err(error) => tracing::warn!(namespace, session, pod, %error, "cannot end an orphan yet"),
    }
}

#[cfg(test)]
mod tests;
