//! One reconcile of an `McpServer`: its pool is brought to what it should be, and status says what was found.

mod apply;
pub mod authorities;
mod dereference;
mod network;
mod update_status;

pub use apply::recall;
pub use authorities::ConfigMaps;
pub use dereference::{Error as SecretError, Found, named_secret, pool_pods};
pub use network::Policies;

use crate::context::Context;
use crate::controller::requeue;
use crate::{api_error, ca, controller::status};
use authorities::{Age, LOOK};
use berth_api::McpServer;
use berth_plan::pod::Trouble;
use berth_plan::server::pool;
use berth_plan::server::status::prepare_trouble;
use berth_plan::server::validate::{ValidServer, validate};
use berth_plan::time::{Moment, spread};
use kube::ResourceExt;
use kube::runtime::controller::Action;
use std::time::Duration;

/// A pool that is not as it should be is looked at again after this, whatever events come.
const UNSETTLED: Duration = Duration::from_secs(15);

/// A server that cannot be acted on is looked at again after this, [`spread`]. A Secret without the label comes and goes unseen, on
/// which a text depends and no more: one that gains the label is an event.
const REFUSED: Duration = Duration::from_mins(2);

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
    /// The network policy could not be kept.
    #[error(transparent)]
    Network(#[from] network::Error),
    /// The status could not be written.
    #[error(transparent)]
    Status(#[from] status::Error),
}

impl Error {
    /// What this means for a pool whose pods need what could not be had.
    fn trouble(&self) -> Trouble {
        let code = match self {
            Self::Certificate(ca::Error::Api { source, .. })
            | Self::Network(network::Error::Api { source, .. }) => api_error::code(source),
            _ => None,
        };
        let what = matches!(code, Some(403 | 422)).then(|| self.to_string());
        prepare_trouble(what.as_deref())
    }
}

/// One reconcile of `server`.
pub async fn reconcile(server: &McpServer, ctx: &Context) -> Result<Action, Error> {
    if server.metadata.deletion_timestamp.is_some() {
        // The children go by their owner references.
        return Ok(Action::await_change());
    }
    let now = ctx.clock.now();
    let secret = dereference::secret_state(server, ctx).await?;
    let ca = authorities::find(server, Age::New, ctx).await?;
    let valid = validate(server, secret.state(), ca.state());
    let unseen = authorities::is_to_be_looked_at(server);
    let Ok(valid) = valid else {
        update_status::refused(server, &valid, ctx, now).await?;
        let uid = server.uid().unwrap_or_default();
        recall(&server.namespace().unwrap_or_default(), &uid, ctx).await;
        return Ok(requeue(&uid, Some(now.plus(spread(if unseen { LOOK } else { REFUSED }, &uid))), now));
    };
    let prepared = prepare(&valid, ctx, now).await;
    if matches!(prepared, Ok(false)) {
        return Ok(Action::await_change());
    }
    let unprepared = prepared.as_ref().err().map(Error::trouble);
    let plan = apply::decide(server, &valid, unprepared.is_some(), ctx, now);
    let applied = apply::apply(&valid, &plan, unprepared, ctx).await;
    update_status::found(server, &valid, &plan, &applied, ctx, now).await?;
    wake(&plan, ctx);
    prepared?;
    applied.result?;
    let settled = plan.create.is_empty() && plan.delete.is_empty() && plan.waiting == 0 && !plan.silent;
    let uid = &valid.key.uid;
    let next = if settled { unseen.then(|| spread(LOOK, uid)) } else { Some(UNSETTLED) };
    Ok(requeue(uid, next.map(|span| now.plus(span)), now))
}

/// Makes what pods need before they run. False when nothing can be made in the namespace any more, which is being deleted, the
/// server with it.
async fn prepare(valid: &ValidServer, ctx: &Context, now: Moment) -> Result<bool, Error> {
    if ctx.lead.is_shutting_down() {
        // What is there stays until it is deleted, and nothing is made any more.
        return Ok(true);
    }
    let named = ca::Server { namespace: &valid.namespace, name: &valid.key.name, uid: &valid.key.uid };
    match ctx.ca.ensure_server(named, now).await {
        Err(error) if error.is_terminating_namespace() => return Ok(false),
        made => made?,
    }
    match ctx.policies.ensure(valid, &ctx.client, now).await {
        Err(error) if error.is_terminating_namespace() => Ok(false),
        made => Ok(made.map(|()| true)?),
    }
}

fn wake(plan: &pool::Plan, ctx: &Context) {
    for session in plan.wake.iter().filter_map(|uid| ctx.slots.object(uid)) {
        ctx.triggers.sessions.fire(session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Log, context, failure, server};
    use crate::memory_api::MemoryApi;
    use http::Method;
    use serde_json::json;

    /// A look at a server without pods, in a namespace that is being deleted or not.
    async fn look(terminating: bool, shutting_down: bool) -> (Result<Action, Error>, Log) {
        let (ctx, log) = context(move |seen| match (&seen.method, seen.path.contains("networkpolicies")) {
            (&Method::GET, _) => failure(404, "NotFound", "no"),
            (&Method::PATCH, true) if terminating => {
                let (code, mut status) = failure(403, "Forbidden", "being terminated");
                status["details"] = json!({"causes": [{"reason": "NamespaceTerminating"}]});
                (code, status)
            }
            (&Method::PATCH, false) => (200, json!(server("everything", &json!({})))),
            _ => (201, seen.body.clone()),
        })
        .await;
        let ctx = Context { policies: Policies::new(Some(callers())), ..ctx };
        ctx.lead.set_shutting_down(shutting_down);
        (reconcile(&server("everything", &json!({})), &ctx).await, log)
    }

    fn callers() -> berth_plan::server::network::Callers {
        berth_plan::server::network::Callers { namespace: "berth".into(), labels: [].into() }
    }

    /// A look at a server of which the API server refuses to write the policy or the certificate, and the requests but for Secrets.
    async fn refused_look(kind: &'static str, code: u16) -> (Result<Action, Error>, Log) {
        let no = move || failure(code, "Forbidden", "a policy says no");
        let (ctx, log) = context(move |seen| match (&seen.method, seen.path.contains(kind)) {
            (&Method::GET, _) => failure(404, "NotFound", "no"),
            (&Method::PATCH, true) => no(),
            (&Method::PATCH, false) => (200, json!(server("everything", &json!({})))),
            _ => (201, seen.body.clone()),
        })
        .await;
        let secrets = MemoryApi::default();
        secrets.rule(move |method, path| (*method == Method::PATCH && path.contains(kind)).then(no));
        let ca = ca::Ca::open(secrets.client(), "berth", ctx.clock.now()).await.unwrap();
        let ctx = Context { ca, policies: Policies::new(Some(callers())), ..ctx };
        (reconcile(&server("everything", &json!({})), &ctx).await, log)
    }

    /// Kinds of what was written, in that order. The fixture leaves Secrets out.
    fn written(log: &Log) -> Vec<&'static str> {
        let kinds = ["networkpolicies", "pods", "mcpservers"];
        let kind = |line: String| kinds.into_iter().find(|kind| line.contains(&format!("/{kind}"))).unwrap();
        log.lines().into_iter().filter(|line| !line.starts_with("GET")).map(kind).collect()
    }

    #[tokio::test]
    async fn a_pool_gets_its_policy_before_its_pods() {
        let (result, log) = look(false, false).await;
        result.unwrap();
        assert_eq!(written(&log), ["networkpolicies", "pods", "mcpservers"]);
    }

    /// CASES.md 34.
    #[tokio::test]
    async fn a_cache_that_does_not_show_the_pod_yet_makes_no_second_one() {
        let api = MemoryApi::default();
        let status = json!(server("everything", &json!({})));
        api.rule(move |method, path| {
            (method == Method::PATCH && path.ends_with("/status")).then(|| (200, status.clone()))
        });
        let (ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
        let ctx = Context { client: api.client(), ..ctx };
        for _ in 0..5 {
            reconcile(&server("everything", &json!({})), &ctx).await.unwrap();
        }
        let posts = api.writes().into_iter().filter(|line| line.starts_with("POST")).count();
        let pods = api.paths().into_iter().filter(|path| path.contains("/pods/")).count();
        assert_eq!((posts, pods), (5, 1));
    }

    #[tokio::test]
    async fn nothing_is_made_while_berth_is_being_uninstalled() {
        let (result, log) = look(false, true).await;
        result.unwrap();
        assert_eq!(written(&log), ["mcpservers"], "the status alone");
    }

    #[tokio::test]
    async fn a_missing_secret_is_looked_for_seldom_and_one_that_is_about_to_be_known_is_not_refused() {
        for (secret, refused) in [("missing", true), ("labelled", false)] {
            let named = json!({"secretKeyRef": {"name": secret, "key": "token"}});
            let server = server("everything", &json!({"auth": {"type": "Shared", "shared": named}}));
            let stored = json!(server);
            let (ctx, log) = context(move |_| (200, stored.clone())).await;
            let result = reconcile(&server, &ctx).await;
            if refused {
                assert_eq!(result.unwrap(), Action::requeue(spread(Duration::from_mins(2), "server")));
                assert_eq!(written(&log), ["mcpservers"]);
            } else {
                assert!(matches!(result, Err(Error::Dereference(SecretError::Behind { .. }))), "{result:?}");
                assert_eq!(written(&log), [""; 0], "the status stays as it was");
            }
        }
    }

    #[tokio::test]
    async fn a_config_map_with_authorities_is_looked_at_again_whether_it_is_there_or_not() {
        let tls = json!({"caRef": {"kind": "ConfigMap", "name": "corp", "key": "ca.crt"}});
        let http = json!({"url": "https://a.test/mcp", "tls": tls});
        let server = server("everything", &json!({"transport": {"type": "Http", "http": http}}));
        let stored = json!(server);
        let (ctx, log) = context(move |seen| match seen.method {
            Method::GET => failure(404, "NotFound", "no"),
            _ => (200, stored.clone()),
        })
        .await;
        let action = reconcile(&server, &ctx).await.unwrap();
        assert_eq!(action, Action::requeue(spread(LOOK, "server")));
        let seen = log.take();
        let status = &seen.last().unwrap().body[1]["value"];
        let resolved =
            status["conditions"].as_array().unwrap().iter().find(|held| held["type"] == "ResolvedRefs");
        let resolved = resolved.unwrap();
        assert_eq!((&resolved["status"], &resolved["reason"]), (&json!("False"), &json!("RefNotFound")));
        assert!(resolved["message"].as_str().unwrap().starts_with("configmap \"corp\" does not exist"));
        assert!(seen.iter().all(|seen| !seen.path.contains("/pods")), "no pods without them");
    }

    #[tokio::test]
    async fn a_server_that_cannot_be_acted_on_looks_for_its_pods_all_the_same() {
        let named = json!({"secretKeyRef": {"name": "missing", "key": "token"}});
        let server = server("everything", &json!({"auth": {"type": "Shared", "shared": named}}));
        let stored = json!(server);
        let (ctx, _) = context(move |seen| {
            if seen.path.contains("/pods/") { failure(404, "NotFound", "no") } else { (200, stored.clone()) }
        })
        .await;
        ctx.fleet.put_in_doubt("server", "pod", "everything-x-0");
        reconcile(&server, &ctx).await.unwrap();
        assert!(ctx.fleet.is_gone("pod"));
    }

    #[tokio::test]
    async fn a_namespace_that_is_being_deleted_is_no_error_and_gets_no_pods() {
        let (result, log) = look(true, false).await;
        result.unwrap();
        assert_eq!(written(&log), ["networkpolicies"], "the attempt that was refused");
    }

    #[tokio::test]
    async fn what_pods_need_and_cannot_have_is_said_in_status_and_tried_again() {
        for (kind, code, reason) in [
            ("networkpolicies", 403, "PodForbidden"),
            ("secrets", 422, "PodForbidden"),
            ("networkpolicies", 500, "PoolStarting"),
        ] {
            let (result, log) = refused_look(kind, code).await;
            let error = result.unwrap_err().to_string();
            assert!(error.contains("a policy says no"), "{kind}: {error}");
            let seen = log.take();
            let status = &seen.last().expect("status is written").body[1]["value"];
            let conditions = status["conditions"].as_array().unwrap();
            let ready = conditions.iter().find(|held| held["type"] == "Ready").unwrap();
            assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!(reason)), "{kind}");
            // What nobody has to mend may be told in other words each time, and each would be a write.
            assert_eq!(
                ready["message"].as_str().unwrap().contains(&error),
                matches!(code, 403 | 422),
                "{ready}"
            );
            assert!(seen.iter().all(|seen| !seen.path.contains("/pods")), "no pod is made without it");
        }
    }
}
