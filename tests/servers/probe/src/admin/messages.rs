//! Messages that a test has sent to clients, each on the newest GET stream of its session.

use std::sync::Arc;

use axum::{Json, extract::State, response::IntoResponse};
use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::refuse;
use crate::{Probe, ask as question, notify::Notice, session::Session};

/// One session, or all.
fn of<'a>(probe: &Probe, id: Option<&'a String>) -> impl Iterator<Item = Arc<Session>> + use<'a> {
    probe.sessions.all().into_iter().filter(move |session| id.is_none_or(|id| *id == session.id))
}

/// Body of `POST /push`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Push {
    /// Only to this session; else to all.
    session: Option<String>,
    /// Sent byte for byte, line breaks apart.
    message: Box<RawValue>,
}

/// `POST /push`: sends a message on the newest GET stream of each session, and says how many took it.
pub async fn push(State(probe): State<Arc<Probe>>, body: String) -> impl IntoResponse {
    let push: Push = match serde_json::from_str(&body) {
        Ok(push) => push,
        Err(error) => return refuse(&error.to_string()).into_response(),
    };
    // Line breaks in JSON are only between tokens, and would end the event.
    let message = push.message.get().replace(['\r', '\n'], " ");
    let sent = of(&probe, push.session.as_ref()).filter(|session| session.push(&message)).count();
    Json(json!({ "sent": sent })).into_response()
}

/// Body of `POST /notify`.
#[derive(Debug, Deserialize)]
struct Notify {
    /// Only to this session; else to all.
    session: Option<String>,
    #[serde(flatten)]
    notice: Notice,
}

/// `POST /notify`: sends notifications, and says how many were taken in all.
pub async fn notify(State(probe): State<Arc<Probe>>, body: String) -> impl IntoResponse {
    let notify: Notify = match serde_json::from_str(&body) {
        Ok(notify) => notify,
        Err(error) => return refuse(&error.to_string()).into_response(),
    };
    let mut sent = 0;
    for session in of(&probe, notify.session.as_ref()) {
        sent += session.push_all(&notify.notice.messages(&session)).await;
    }
    Json(json!({ "sent": sent })).into_response()
}

/// Body of `POST /ask`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask {
    /// Only this session; else all.
    session: Option<String>,
    /// What is asked.
    #[serde(default)]
    kind: question::Kind,
    /// Text of the question.
    message: Option<String>,
    /// Also of a client that did not declare that it can be asked.
    #[serde(default)]
    force: bool,
}

/// `POST /ask`: asks the client of each session, and says under which ids; the answers will be in the books.
pub async fn ask(State(probe): State<Arc<Probe>>, body: String) -> impl IntoResponse {
    let ask: Ask = match serde_json::from_str(&body) {
        Ok(ask) => ask,
        Err(error) => return refuse(&error.to_string()).into_response(),
    };
    let mut asked = Vec::new();
    for session in of(&probe, ask.session.as_ref()) {
        if !ask.force && ask.kind.check(&session.capabilities).is_err() {
            continue;
        }
        let id = session.ask_for_the_books(ask.kind.method());
        if session.push(&ask.kind.request(id, ask.message.as_deref())) {
            asked.push(json!({"session": session.id, "id": id}));
        }
    }
    Json(json!({ "asked": asked })).into_response()
}
