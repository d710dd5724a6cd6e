//! Decides on a pool under the lock of the promises, then makes and deletes its pods.

use crate::api_error;
use crate::context::Context;
use crate::controller::server::dereference::{claims, pool_pods};
use berth_api::McpServer;
use berth_plan::pod::Trouble;
use berth_plan::server::build;
use berth_plan::server::pool::{self, Observed, Plan, PodId};
use berth_plan::server::status::create_trouble;
use berth_plan::server::validate::ValidServer;
use berth_plan::time::Moment;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};

/// A pod could not be made or deleted.
#[derive(Debug, thiserror::Error)]
#[error("failed to {verb} pod {pod:?}: {}", api_error::text(source))]
pub struct Error {
    verb: &'static str,
    pod: String,
    source: Box<kube::Error>,
}

/// What came of a plan.
pub struct Applied {
    /// Why the API server would not make a pod, for status.
    pub refused: Option<Trouble>,
    /// The first failure that is not a refusal for status.
    pub result: Result<(), Error>,
}

/// Decides what to do. Pods that are to be deleted are promised to nobody from this moment on.
pub fn decide(server: &McpServer, valid: &ValidServer, ctx: &Context, now: Moment) -> Plan {
    ctx.slots.with(|book| {
        let pods = pool_pods(&valid.namespace, &valid.key.uid, ctx, book);
        let claims = claims(&valid.namespace, server, ctx, book);
        let observed = Observed { pods: &pods, claims: &claims, image: &ctx.settings.sidecar_image };
        let plan = pool::plan(valid, &observed, now);
        plan.delete.iter().for_each(|pod| book.condemn(&pod.uid));
        plan
    })
}

/// Does what was decided.
pub async fn apply(valid: &ValidServer, plan: &Plan, ctx: &Context) -> Applied {
    let api: Api<Pod> = ctx.api(&valid.namespace);
    // All at once: a plan holds a bounded number of each.
    let deleted = join_all(plan.delete.iter().map(|pod| delete(&api, pod, ctx))).await;
    let create_none =
        plan.create.is_empty() || ctx.lead.is_shutting_down() || is_terminating(&valid.namespace, ctx).await;
    let names: &[String] = if create_none { &[] } else { &plan.create };
    let created = join_all(names.iter().map(|name| create(&api, valid, name, ctx))).await;
    let mut refused = None;
    let mut result: Result<(), Error> = deleted.into_iter().collect();
    for created in created {
        match created {
            Ok(None) => {}
            Ok(trouble) => refused = trouble,
            Err(error) if result.is_ok() => result = Err(error),
            Err(_) => {}
        }
    }
    Applied { refused, result }
}

/// Whether a namespace is being deleted: nothing is made there any more. Where that cannot be learnt, making shows it.
async fn is_terminating(namespace: &str, ctx: &Context) -> bool {
    match Api::<Namespace>::all(ctx.client.clone()).get_metadata_opt(namespace).await {
        Ok(found) => found.is_some_and(|found| found.metadata.deletion_timestamp.is_some()),
        Err(error) => {
            tracing::debug!(
                namespace,
                error = api_error::text(&error),
                "cannot tell whether the namespace is being deleted"
            );
            false
        }
    }
}

/// Makes a pod. A pod of that name was made by an earlier look whose event has not come yet.
async fn create(
    api: &Api<Pod>,
    valid: &ValidServer,
    name: &str,
    ctx: &Context,
) -> Result<Option<Trouble>, Error> {
    let pod = build::pod(valid, &ctx.settings.sidecar_image, name);
    match api.create(&PostParams::default(), &pod).await {
        Ok(_) => {
            tracing::info!(namespace = valid.namespace, server = valid.key.name, pod = name, "pod created");
            Ok(None)
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
            tracing::info!(namespace = valid.namespace, pod = name, refused = status.message, "pod refused");
            Ok(create_trouble(&status.message))
        }
        Err(source) => Err(Error { verb: "create", pod: name.to_owned(), source: Box::new(source) }),
    }
}

async fn delete(api: &Api<Pod>, pod: &PodId, ctx: &Context) -> Result<(), Error> {
    let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&pod.name, &params).await {
        Ok(_) => {
            tracing::info!(pod = pod.name, "pod deleted");
            Ok(())
        }
        Err(error) if api_error::is_outdated(&error) => Ok(()),
        Err(source) => {
            ctx.slots.with(|book| book.spare(&pod.uid));
            Err(Error { verb: "delete", pod: pod.name.clone(), source: Box::new(source) })
        }
    }
}
