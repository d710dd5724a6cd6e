//! GET of a client: a stream for what the server says outside of calls.

use super::answer::{kept_alive, refuse, stream};
use super::{accepts_stream, ask, scope_for_work, source};
use crate::session::{Inbox, Listener, Offer, Scope, Session, Via};
use axum::response::Response;
use berth_mcp::error;
use futures::{StreamExt, stream as streams};
use http::header::ALLOW;
use http::{HeaderMap, HeaderValue, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long a client waits for the upstream's word whether it has a stream. Some say nothing before their first event.
const WORD: Duration = Duration::from_secs(5);
/// How long a client whose stream broke has to come back, before what it was asked counts as unanswered.
const COME_BACK: Duration = Duration::from_secs(5);

/// Opens the stream. 405 if the upstream has none.
pub(super) async fn open(session: &Arc<Session>, headers: &HeaderMap) -> Response {
    let scope = match scope_for_work(session, headers, None) {
        Ok(scope) => scope,
        Err(response) => return *response,
    };
    if !accepts_stream(headers) {
        let text = "the answer to a GET is an event stream: accept text/event-stream";
        return refuse(StatusCode::NOT_ACCEPTABLE, error::INVALID_REQUEST, text, None);
    }
    let (listener, to_keep) = session.listen(scope);
    if to_keep {
        session.spawn(source::keep(session.clone()));
    }
    let inbox = listener.scope.open_stream(listener.id);
    let open = Open { session: session.clone(), listener, inbox };
    if let Some(connection) = session.established() {
        let word = timeout(WORD, session.listening.offer(connection.epoch)).await;
        if word == Ok(Offer::Declined) {
            return no_stream();
        }
    }
    let fenced = session.fenced().clone().cancelled_owned();
    let events = streams::unfold(open, async |mut open| open.inbox.next().await.map(|event| (event, open)));
    stream(kept_alive(events.take_until(fenced)))
}

fn no_stream() -> Response {
    let text = "the upstream has no stream of its own";
    let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, error::METHOD_NOT_FOUND, text, None);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST, DELETE"));
    response
}

/// A stream that is open, until this is dropped.
struct Open {
    session: Arc<Session>,
    listener: Listener,
    inbox: Inbox,
}

impl Drop for Open {
    fn drop(&mut self) {
        let via = Via::Stream(self.listener.id);
        let scope = &self.listener.scope;
        scope.close_stream(self.listener.id);
        scope.hand_on(self.inbox.unread());
        if scope.is_asked(via) && tokio::runtime::Handle::try_current().is_ok() {
            self.session.spawn(came_back(self.session.clone(), scope.clone(), via));
        }
    }
}

/// Waits for the client to listen again; if it does not, what it was asked gets no answer.
async fn came_back(session: Arc<Session>, scope: Arc<Scope>, via: Via) {
    tokio::select! {
        () = sleep(COME_BACK) => {}
        () = session.fenced().cancelled() => {}
    }
    match scope.stream() {
        Some(newest) => scope.rehome(via, Via::Stream(newest)),
        None => ask::client_left(&session, &scope, via),
    }
}
