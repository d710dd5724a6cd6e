//! Decides on a pool under the lock of the promises, then makes and deletes its pods.

use crate::api_error;
use crate::context::Context;
use crate::controller::server::dereference::{claims, pool_pods};
use crate::controller::stray::{self, Found};
use crate::namespace;
use berth_api::McpServer;
use berth_plan::pod::Trouble;
use berth_plan::server::build;
use berth_plan::server::pool::{self, Observed, Plan, PodId};
use berth_plan::server::status::{create_trouble, labels_lost, name_taken};
use berth_plan::server::validate::ValidServer;
use berth_plan::time::Moment;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};

/// A pod could not be made, looked at or deleted.
pub type Error = stray::Error;

/// What came of the wish to make a pod.
enum Made {
    /// It is there, or will not be and nobody is to be told.
    Done,
    /// Somebody has to mend something.
    Refused(Trouble),
    /// A pod of that name is not of this server.
    Taken(Trouble),
}

/// What came of a plan.
pub struct Applied {
    /// Why the API server would not make a pod, for status.
    pub refused: Option<Trouble>,
    /// The first failure that is not a refusal for status.
    pub result: Result<(), Error>,
}

/// Decides what to do. Pods that are to be deleted are promised to nobody from this moment on. None is when no other can be
/// made in its place, as something is `unprepared`.
pub fn decide(server: &McpServer, valid: &ValidServer, unprepared: bool, ctx: &Context, now: Moment) -> Plan {
    ctx.slots.with(|book| {
        let pods = pool_pods(&valid.namespace, &valid.key.uid, ctx, book);
        let claims = claims(&valid.namespace, server, ctx, book);
        let image = ctx.settings.sidecar.mark();
        let observed = Observed { pods: &pods, claims: &claims, image: &image };
        let mut plan = pool::plan(valid, &observed, now);
        if unprepared {
            plan.delete.clear();
        }
        plan.delete.iter().for_each(|pod| book.condemn(&pod.uid));
        plan
    })
}

/// Does what was decided. No pod is made when something is `unprepared`, which pods need before they run.
pub async fn apply(valid: &ValidServer, plan: &Plan, unprepared: Option<Trouble>, ctx: &Context) -> Applied {
    let api: Api<Pod> = ctx.api(&valid.namespace);
    let lost = recall(&valid.namespace, &valid.key.uid, ctx).await;
    // All at once: a plan holds a bounded number of each.
    let deleted = join_all(plan.delete.iter().map(|pod| delete(&api, pod, ctx))).await;
    let create_none = plan.create.is_empty()
        || unprepared.is_some()
        || ctx.lead.is_shutting_down()
        || namespace::is_terminating(&valid.namespace, &ctx.client).await;
    let names: &[String] = if create_none { &[] } else { &plan.create };
    let mut created = join_all(names.iter().map(|name| create(&api, valid, name, ctx))).await;
    // Another name does as well; who takes that one too has to be told of.
    let taken = created.iter().filter(|made| matches!(made, Ok(Made::Taken(_)))).count();
    if taken > 0 {
        created.retain(|made| !matches!(made, Ok(Made::Taken(_))));
        let instead = plan.alternatives.iter().take(taken);
        created.extend(join_all(instead.map(|name| create(&api, valid, name, ctx))).await);
    }
    let mut refused = unprepared.or(lost);
    let mut result: Result<(), Error> = deleted.into_iter().collect();
    for made in created {
        match made {
            Ok(Made::Refused(trouble) | Made::Taken(trouble)) => refused = Some(trouble),
            Err(error) if result.is_ok() => result = Err(error),
            Ok(Made::Done) | Err(_) => {}
        }
    }
    Applied { refused, result }
}

/// Looks for pods of a server that left the cache though nobody saw them end, and takes them back; says of one that cannot be.
/// Nobody else writes to them: sessions only put them in doubt.
pub async fn recall(namespace: &str, server_uid: &str, ctx: &Context) -> Option<Trouble> {
    let (api, mut trouble) = (ctx.api::<Pod>(namespace), None);
    for (uid, name) in ctx.fleet.take_doubted(server_uid) {
        match stray::look(&api, &name, &uid).await {
            Ok(Found::Gone) => ctx.fleet.gone(&uid),
            Ok(Found::Back) => ctx.fleet.found_stray(&uid, None),
            Ok(Found::Stray(why)) => {
                trouble = Some(labels_lost(&name, &why));
                ctx.fleet.found_stray(&uid, Some(why));
                ctx.fleet.put_in_doubt(server_uid, &uid, &name);
            }
            Err(error) => {
                tracing::warn!(namespace, %error, "cannot tell yet what became of a pod");
                ctx.fleet.put_in_doubt(server_uid, &uid, &name);
            }
        }
    }
    trouble
}

/// Makes a pod.
async fn create(api: &Api<Pod>, valid: &ValidServer, name: &str, ctx: &Context) -> Result<Made, Error> {
    let pod = build::pod(valid, &ctx.settings.sidecar, name);
    match api.create(&PostParams::default(), &pod).await {
        Ok(_) => {
            tracing::info!(namespace = valid.namespace, server = valid.key.name, pod = name, "pod created");
            Ok(Made::Done)
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() => existing(api, valid, name).await,
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
            tracing::info!(namespace = valid.namespace, pod = name, refused = status.message, "pod refused");
            Ok(create_trouble(&status.message).map_or(Made::Done, Made::Refused))
        }
        Err(source) => Err(Error { verb: "create", pod: name.to_owned(), source: Box::new(source) }),
    }
}

/// What it means that a pod of that name exists. Most often an earlier look made it, whose event has not come yet; it may have
/// lost its labels, or be of somebody else.
async fn existing(api: &Api<Pod>, valid: &ValidServer, name: &str) -> Result<Made, Error> {
    let error = |source| Error { verb: "read", pod: name.to_owned(), source: Box::new(source) };
    let Some(pod) = api.get_opt(name).await.map_err(error)? else { return Ok(Made::Done) };
    if !build::is_owned_by(&pod, &valid.key.uid) {
        let trouble = name_taken(name);
        tracing::warn!(namespace = valid.namespace, server = valid.key.name, "{}", trouble.message);
        return Ok(Made::Taken(trouble));
    }
    Ok(match stray::put_back(api, &pod).await? {
        Found::Gone | Found::Back => Made::Done,
        Found::Stray(why) => Made::Refused(labels_lost(name, &why)),
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{context, failure, server};
    use crate::memory_api::MemoryApi;
    use berth_api::Reason;
    use berth_plan::server::validate::accept;
    use serde_json::{Value, json};

    const PODS: &str = "/api/v1/namespaces/demo/pods";

    async fn stage() -> (Context, MemoryApi, ValidServer) {
        let api = MemoryApi::default();
        let (ctx, _) = context(|_| failure(500, "InternalError", "not this one")).await;
        let valid = accept(&server("everything", &json!({}))).unwrap();
        (Context { client: api.client(), ..ctx }, api, valid)
    }

    /// One pass over a pool whose cache has no pods.
    async fn pass(ctx: &Context, valid: &ValidServer) -> (Plan, Applied) {
        let plan = decide(&server("everything", &json!({})), valid, false, ctx, ctx.clock.now());
        let applied = apply(valid, &plan, None, ctx).await;
        (plan, applied)
    }

    fn foreign(name: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "demo", "uid": "foreign"}})
    }

    fn own(valid: &ValidServer, name: &str) -> Value {
        let mut pod = serde_json::to_value(build::pod(
            valid,
            &build::Sidecar { image: "berth:1".into(), ..build::Sidecar::default() },
            name,
        ))
        .unwrap();
        pod["metadata"]["uid"] = "own".into();
        pod
    }

    #[tokio::test]
    async fn a_name_that_somebody_else_has_is_passed_over_and_a_pool_that_finds_none_says_which() {
        let (ctx, api, valid) = stage().await;
        let plan = decide(&server("everything", &json!({})), &valid, false, &ctx, ctx.clock.now());
        let path = |name: &str| format!("{PODS}/{name}");
        api.put(&path(&plan.create[0]), foreign(&plan.create[0]));
        let (_, applied) = pass(&ctx, &valid).await;
        assert!(applied.result.is_ok() && applied.refused.is_none(), "{:?}", applied.refused);
        assert_eq!(api.get(&path(&plan.create[0])).unwrap()["metadata"]["uid"], "foreign", "not touched");
        assert!(api.get(&path(&plan.alternatives[0])).is_some());

        api.put(&path(&plan.alternatives[0]), foreign(&plan.alternatives[0]));
        let (_, applied) = pass(&ctx, &valid).await;
        let trouble = applied.refused.unwrap();
        assert_eq!(trouble.reason, Reason::PodForbidden);
        assert!(
            trouble.message.contains(&plan.alternatives[0]) && trouble.message.ends_with("delete it"),
            "{trouble:?}"
        );
    }

    #[tokio::test]
    async fn no_pod_goes_when_none_can_be_made_in_its_place() {
        let (mut ctx, _, valid) = stage().await;
        let mut dead = own(&valid, "everything-x-0");
        dead["status"] = json!({"phase": "Failed"});
        ctx.stores.pods = crate::fixture::store_of(vec![serde_json::from_value(dead).unwrap()]);
        let server = server("everything", &json!({}));
        let deleted = |unprepared| decide(&server, &valid, unprepared, &ctx, ctx.clock.now()).delete.len();
        assert_eq!((deleted(true), deleted(false)), (0, 1));
    }

    #[tokio::test]
    async fn a_pod_of_the_pool_that_lost_its_labels_gets_them_back_instead_of_a_second_one() {
        let (ctx, api, valid) = stage().await;
        let plan = decide(&server("everything", &json!({})), &valid, false, &ctx, ctx.clock.now());
        let name = &plan.create[0];
        let mut lost = own(&valid, name);
        lost["metadata"].as_object_mut().unwrap().remove("labels");
        api.put(&format!("{PODS}/{name}"), lost);
        let (_, applied) = pass(&ctx, &valid).await;
        assert!(applied.result.is_ok() && applied.refused.is_none());
        assert_eq!(api.paths(), [format!("{PODS}/{name}")]);
        assert_eq!(
            api.get(&format!("{PODS}/{name}")).unwrap()["metadata"]["labels"],
            own(&valid, name)["metadata"]["labels"]
        );
    }

    #[tokio::test]
    async fn a_pod_that_left_the_cache_unseen_is_looked_for_once_and_taken_back() {
        let (ctx, api, valid) = stage().await;
        // Its name is not one that would be made now.
        let mut lost = own(&valid, "everything-x-7");
        lost["metadata"].as_object_mut().unwrap().remove("labels");
        api.put(&format!("{PODS}/everything-x-7"), lost);
        ctx.fleet.put_in_doubt("server", "own", "everything-x-7");
        ctx.fleet.put_in_doubt("server", "was-deleted", "everything-x-8");
        pass(&ctx, &valid).await;
        let labels = |name: &str| api.get(&format!("{PODS}/{name}")).unwrap()["metadata"]["labels"].clone();
        assert_eq!(labels("everything-x-7"), own(&valid, "everything-x-7")["metadata"]["labels"]);
        assert!(ctx.fleet.is_gone("was-deleted") && !ctx.fleet.is_gone("own"));
        assert_eq!(ctx.fleet.take_doubted("server"), []);
    }

    #[tokio::test]
    async fn a_pod_that_cannot_be_taken_back_is_named_and_looked_for_again() {
        let (ctx, api, valid) = stage().await;
        let mut lost = own(&valid, "everything-x-7");
        lost["metadata"].as_object_mut().unwrap().remove("ownerReferences");
        api.put(&format!("{PODS}/everything-x-7"), lost);
        ctx.fleet.put_in_doubt("server", "own", "everything-x-7");
        for _ in 0..2 {
            let (_, applied) = pass(&ctx, &valid).await;
            let trouble = applied.refused.unwrap();
            assert!(trouble.message.contains("\"everything-x-7\"") && trouble.message.ends_with("delete it"));
        }
    }
}
