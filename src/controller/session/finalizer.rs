//! The finalizer of an `AgentSession`: written before anything is held, dropped when the end is told.
//!
//! Both are JSON patches that test what they change, so that a stale cache changes nothing: 404 and 422 then mean that
//! somebody else was faster, and the next look sets it right.

use crate::api_error;
use crate::context::Context;
use berth_api::{AgentSession, label::SESSION_FINALIZER};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use std::sync::Arc;

/// The finalizer could not be written.
#[derive(Debug, thiserror::Error)]
#[error("failed to {verb} the finalizer of session {session:?}: {}", api_error::text(source))]
pub struct Error {
    verb: &'static str,
    session: String,
    source: Box<kube::Error>,
}

/// The session with its finalizer; nothing when this process saw an old version of it. After a patch it is the live object,
/// which may have been deleted meanwhile.
pub async fn ensure(session: Arc<AgentSession>, ctx: &Context) -> Result<Option<Arc<AgentSession>>, Error> {
    if has(&session) {
        return Ok(Some(session));
    }
    let patched = patch("add", &session, addition(&session), ctx).await?;
    // Whatever the answer is: nothing may be held before the finalizer is seen on this very object.
    let guards = |live: &AgentSession| live.uid() == session.uid() && has(live);
    Ok(patched.filter(guards).map(Arc::new))
}

/// Whether the session has its finalizer.
pub fn has(session: &AgentSession) -> bool {
    session.finalizers().iter().any(|held| held == SESSION_FINALIZER)
}

/// Drops the finalizer. True when this patch did it; false when it was gone, or this process saw an old version.
pub async fn remove(session: &AgentSession, ctx: &Context) -> Result<bool, Error> {
    let Some(operations) = removal(session) else { return Ok(false) };
    Ok(patch("drop", session, operations, ctx).await?.is_some())
}

async fn patch(
    verb: &'static str,
    session: &AgentSession,
    operations: Value,
    ctx: &Context,
) -> Result<Option<AgentSession>, Error> {
    let api: Api<AgentSession> = ctx.api(&session.namespace().unwrap_or_default());
    let error = |source| Error { verb, session: session.name_any(), source: Box::new(source) };
    let operations =
        serde_json::from_value(operations).map_err(|source| error(kube::Error::SerdeError(source)))?;
    match api.patch(&session.name_any(), &PatchParams::default(), &Patch::Json::<()>(operations)).await {
        Ok(patched) => Ok(Some(patched)),
        Err(refused) if api_error::is_outdated(&refused) => {
            tracing::debug!(session = session.name_any(), verb, "the finalizer's patch came too late");
            Ok(None)
        }
        Err(source) => Err(error(source)),
    }
}

/// The patch that adds the finalizer.
fn addition(session: &AgentSession) -> Value {
    let uid = json!({"op": "test", "path": "/metadata/uid", "value": session.uid()});
    if session.finalizers().is_empty() {
        return json!([
            uid,
            {"op": "test", "path": "/metadata/finalizers", "value": null},
            {"op": "add", "path": "/metadata/finalizers", "value": [SESSION_FINALIZER]},
        ]);
    }
    json!([
        uid,
        {"op": "test", "path": "/metadata/finalizers", "value": session.finalizers()},
        {"op": "add", "path": "/metadata/finalizers/-", "value": SESSION_FINALIZER},
    ])
}

/// The patch that drops the finalizer; none when it is not there.
fn removal(session: &AgentSession) -> Option<Value> {
    let index = session.finalizers().iter().position(|held| held == SESSION_FINALIZER)?;
    let path = format!("/metadata/finalizers/{index}");
    Some(json!([
        {"op": "test", "path": "/metadata/uid", "value": session.uid()},
        {"op": "test", "path": path, "value": SESSION_FINALIZER},
        {"op": "remove", "path": path},
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{context, deleted_session, failure};

    fn with_finalizers(finalizers: &[&str]) -> AgentSession {
        let mut session = deleted_session(&json!({}));
        session.metadata.deletion_timestamp = None;
        session.metadata.finalizers = Some(finalizers.iter().map(|text| (*text).to_owned()).collect());
        session
    }

    #[tokio::test]
    async fn adding_tests_what_this_process_saw() {
        let (ctx, log) =
            context(|_| (200, serde_json::to_value(with_finalizers(&[SESSION_FINALIZER])).unwrap())).await;
        ensure(Arc::new(with_finalizers(&[])), &ctx).await.unwrap().unwrap();
        ensure(Arc::new(with_finalizers(&["a"])), &ctx).await.unwrap().unwrap();
        ensure(Arc::new(with_finalizers(&["a", SESSION_FINALIZER])), &ctx).await.unwrap().unwrap();
        let bodies: Vec<Value> = log.take().into_iter().map(|seen| seen.body).collect();
        let uid = json!({"op": "test", "path": "/metadata/uid", "value": "77-session"});
        assert_eq!(
            bodies,
            [
                json!([
                    uid,
                    {"op": "test", "path": "/metadata/finalizers", "value": null},
                    {"op": "add", "path": "/metadata/finalizers", "value": [SESSION_FINALIZER]},
                ]),
                json!([
                    uid,
                    {"op": "test", "path": "/metadata/finalizers", "value": ["a"]},
                    {"op": "add", "path": "/metadata/finalizers/-", "value": SESSION_FINALIZER},
                ]),
            ]
        );
    }

    #[tokio::test]
    async fn an_answer_without_the_finalizer_or_of_another_object_guards_nothing() {
        let mut other = with_finalizers(&[SESSION_FINALIZER]);
        other.metadata.uid = Some("another".into());
        for answer in [with_finalizers(&["a"]), other] {
            let answer = serde_json::to_value(answer).unwrap();
            let (ctx, _) = context(move |_| (200, answer.clone())).await;
            assert!(ensure(Arc::new(with_finalizers(&[])), &ctx).await.unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn a_patch_that_comes_too_late_is_no_error() {
        for (code, reason) in [(404, "NotFound"), (409, "Conflict"), (422, "Invalid")] {
            let (ctx, _) = context(move |_| failure(code, reason, "the server rejected our request")).await;
            assert!(ensure(Arc::new(with_finalizers(&[])), &ctx).await.unwrap().is_none(), "{reason}");
            assert!(!remove(&deleted_session(&json!({})), &ctx).await.unwrap(), "{reason}");
        }
        let (ctx, _) = context(|_| failure(500, "InternalError", "etcd is away")).await;
        let error = ensure(Arc::new(with_finalizers(&[])), &ctx).await.unwrap_err();
        assert_eq!(error.to_string(), "failed to add the finalizer of session \"chat\": etcd is away");
    }

    #[tokio::test]
    async fn dropping_takes_ours_and_leaves_others() {
        let (ctx, log) = context(|_| (200, serde_json::to_value(deleted_session(&json!({}))).unwrap())).await;
        assert!(remove(&deleted_session(&json!({})), &ctx).await.unwrap());
        assert_eq!(
            log.take()[0].body,
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "77-session"},
                {"op": "test", "path": "/metadata/finalizers/1", "value": SESSION_FINALIZER},
                {"op": "remove", "path": "/metadata/finalizers/1"},
            ])
        );
        assert!(!remove(&with_finalizers(&["a"]), &ctx).await.unwrap());
    }
}
