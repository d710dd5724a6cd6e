//! The one Event of a session's end.
//!
//! Its name comes from the session's UID, so that it exists once however often it is posted, by whatever process.

use crate::api_error;
use crate::context::Context;
use berth_api::AgentSession;
use berth_plan::end::report::Telling;
use berth_plan::name;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Resource, ResourceExt};

/// Who reports.
const CONTROLLER: &str = "berth.dev/operator";
/// What was done.
const ACTION: &str = "End";

/// The Event could not be posted, and may be later.
#[derive(Debug, thiserror::Error)]
#[error("failed to post the event of session {session:?}: {}", api_error::text(source))]
pub struct Error {
    session: String,
    source: Box<kube::Error>,
}

/// Whether a refusal is of the Event itself, and the same whenever it is posted again: not one that passes, as that of a token
/// which is about to be renewed.
fn is_final(code: u16) -> bool {
    (400..500).contains(&code) && !matches!(code, 401 | 408 | 429)
}

/// Posts the Event. One that is there already is as good; one that the API server refuses, as it does in a namespace that
/// is being deleted, is logged and counted and holds nothing up.
pub async fn tell(session: &AgentSession, telling: &Telling, ctx: &Context) -> Result<(), Error> {
    let namespace = session.namespace().unwrap_or_default();
    let event = event(session, telling, ctx.clock.now().0);
    let api: Api<Event> = ctx.api(&namespace);
    match api.create(&PostParams::default(), &event).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(kube::Error::Api(status)) if is_final(status.code) => {
            ctx.metrics.event_refused();
            tracing::info!(
                namespace,
                session = session.name_any(),
                reason = telling.reason,
                note = telling.note,
                refused = status.message,
                "the event of this end was refused"
            );
            Ok(())
        }
        Err(source) => Err(Error { session: session.name_any(), source: Box::new(source) }),
    }
}

fn event(session: &AgentSession, telling: &Telling, now_millis: i64) -> Event {
    let mut regarding = session.object_ref(&());
    // The Event speaks of the session, not of one version of it.
    regarding.resource_version = None;
    Event {
        metadata: ObjectMeta {
            name: Some(name::end_event(&session.uid().unwrap_or_default())),
            namespace: session.namespace(),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(Timestamp::from_millisecond(now_millis).unwrap_or(Timestamp::UNIX_EPOCH))),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(berth_api::label::MANAGER.to_owned()),
        action: Some(ACTION.to_owned()),
        reason: Some(telling.reason.to_owned()),
        type_: Some(telling.type_.to_owned()),
        note: Some(telling.note.clone()),
        regarding: Some(regarding),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Seen, context, deleted_session, failure};
    use serde_json::{Value, json};

    fn telling() -> Telling {
        Telling { type_: "Normal", reason: "Completed", note: "all is released".into() }
    }

    async fn told(
        answer: impl Fn(&Seen) -> (u16, Value) + Clone + Send + Sync + 'static,
    ) -> (bool, Vec<Seen>) {
        let (ctx, log) = context(answer).await;
        (tell(&deleted_session(&json!({})), &telling(), &ctx).await.is_ok(), log.take())
    }

    #[tokio::test]
    async fn the_event_has_one_name_for_ever_and_speaks_of_the_session() {
        let (done, seen) = told(|seen| (201, seen.body.clone())).await;
        assert!(done);
        assert_eq!(seen[0].path, "/apis/events.k8s.io/v1/namespaces/demo/events");
        let body = &seen[0].body;
        assert_eq!(body["metadata"]["name"], "session-ended-77-session");
        assert_eq!(
            (&body["type"], &body["reason"], &body["action"]),
            (&json!("Normal"), &json!("Completed"), &json!("End"))
        );
        assert_eq!(body["regarding"]["uid"], "77-session");
        assert_eq!(body["regarding"]["resourceVersion"], Value::Null);
    }

    #[tokio::test]
    async fn an_event_that_is_there_or_is_refused_holds_nothing_up() {
        for (code, reason) in
            [(409, "AlreadyExists"), (403, "Forbidden"), (404, "NotFound"), (422, "Invalid")]
        {
            let (done, seen) = told(move |_| failure(code, reason, "no")).await;
            assert!(done && seen.len() == 1, "{reason}");
        }
    }

    #[tokio::test]
    async fn an_api_server_in_trouble_is_asked_again() {
        for code in [401, 408, 429, 500, 503] {
            assert!(!told(move |_| failure(code, "Trouble", "later")).await.0, "{code}");
        }
    }
}
