//! A client's request, from its message to the call that relays it.

use super::answer::{Answer, json, not_held, respond};
use super::attached::Attached;
use super::call::{Call, Prepared};
use super::map::Ids;
use super::outside::uri;
use super::reply::Reply;
use crate::budget::Charge;
use crate::session::{CallError, NotBegun, Scope, Session};
use axum::response::Response;
use berth_mcp::error::{self, render_result};
use berth_mcp::frame::Token;
use berth_mcp::method;
use http::StatusCode;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A request other than `initialize` and `ping`.
pub(super) struct Request<'a> {
    /// The whole message.
    pub text: &'a str,
    pub id: &'a Token<'a>,
    pub method: &'a str,
    /// The client wants progress under this token.
    pub token: Option<&'a Token<'a>>,
    /// Covers the message.
    pub charge: Charge,
}

impl Request<'_> {
    /// Relays it; gives the response, which may be a stream that has just begun.
    pub(super) async fn relay(
        self,
        session: &Arc<Session>,
        scope: Arc<Scope>,
        accepts_stream: bool,
    ) -> Response {
        let desired = session.desired();
        let refused = |error: &CallError| {
            json(StatusCode::OK, error.render(&desired.server.name, self.id.raw(), false))
        };
        if self.method == method::UNSUBSCRIBE && self.is_kept_subscribed(session, &scope) {
            return json(StatusCode::OK, render_result(self.id.raw(), "{}"));
        }
        let (guard, turn) = match session.begin_call(scope.clone(), self.id.key()) {
            Ok(begun) => begun,
            Err(NotBegun::Ending) => return not_held(),
            Err(NotBegun::Full(limits)) => return refused(&CallError::TooMany(limits)),
        };
        let subscription = match self.subscribe(&scope) {
            Ok(subscription) => subscription,
            Err(error) => return refused(&error),
        };
        let ids = Ids::new(self.id, self.token, guard.upstream_id);
        let message = ids.outbound(self.text, self.id, self.token);
        let (head, answer) = oneshot::channel();
        let prepared = Prepared { ids, message, subscription, charge: self.charge };
        let call = Call::new(guard, turn, prepared, Reply::new(head, accepts_stream)).run();
        let call = Attached::new(session.clone(), call);
        let id = self.id.raw().to_owned();
        let answer = async move {
            call.until(answer).await.unwrap_or_else(|| {
                // Only a panic of the call leaves it unanswered.
                let text = "the sidecar failed; the outcome is unknown";
                let body = error::ErrorBody::new(error::INTERNAL, text).server(&desired.server.name);
                Answer::Json(body.render(Some(&id)).into())
            })
        };
        respond(answer, accepts_stream, None).await
    }

    /// The resource that the request subscribes its client to, if the client was not before.
    fn subscribe(&self, scope: &Scope) -> Result<Option<Box<str>>, CallError> {
        if self.method != method::SUBSCRIBE {
            return Ok(None);
        }
        let Some(uri) = uri(self.text) else { return Ok(None) };
        let is_new = scope.subscribe(&uri).map_err(|error| CallError::Refused(error.to_string()))?;
        Ok(is_new.then(|| uri.into()))
    }

    /// Takes the client's subscription back. True if another client has the same one, which the upstream knows only once.
    fn is_kept_subscribed(&self, session: &Session, scope: &Arc<Scope>) -> bool {
        let Some(uri) = uri(self.text) else { return false };
        scope.unsubscribe(&uri);
        session.scopes().iter().any(|other| other.is_subscribed(&uri))
    }
}
