//! The server's requests to clients: each is handed to one client, or refused at once in its stead.

use super::call::notify;
use crate::session::{Refused, Scope, Session, Via};
use crate::upstream::Connection;
use berth_mcp::error::ErrorBody;
use berth_mcp::frame::Frame;
use std::sync::Arc;

/// Enters the server's request `text` as handed to `scope`, and gives it as the client is to have it. If the client cannot
/// take it, or `is_there` says that nobody is there, the server is told so.
pub(super) fn hand(
    session: &Arc<Session>,
    scope: &Scope,
    connection: &Arc<Connection>,
    text: &str,
    via: Via,
    is_there: bool,
) -> Option<String> {
    let handed = if is_there { scope.hand(connection, text, via) } else { Err(Refused::nobody()) };
    session.shared.metrics.count_server_request(handed.is_ok());
    match handed {
        Ok(text) => Some(text),
        Err(refused) => {
            if let Ok(Frame::Request { id, .. }) = Frame::parse(text) {
                refuse(session, connection, id.raw(), &refused);
            }
            None
        }
    }
}

/// Tells the server that no client can take its request `text`.
pub(super) fn refuse_for_all(
    session: &Arc<Session>,
    connection: &Arc<Connection>,
    text: &str,
    refused: &Refused,
) {
    session.shared.metrics.count_server_request(false);
    if let Ok(Frame::Request { id, .. }) = Frame::parse(text) {
        refuse(session, connection, id.raw(), refused);
    }
}

/// Tells the server that its request `id` is not answered by any client.
fn refuse(session: &Arc<Session>, connection: &Arc<Connection>, id: &str, refused: &Refused) {
    let message = ErrorBody::new(refused.code, &refused.message).render(Some(id));
    answer(session, connection, message);
}

/// Sends the server an answer of the sidecar's own. One that asks more than it takes answers for gets none.
pub(super) fn answer(session: &Arc<Session>, connection: &Arc<Connection>, message: String) {
    let Some(going) = session.outgoing_now(message.len()) else {
        session.shared.metrics.outgoing_dropped.inc();
        tracing::debug!(session = %session.uid, "an answer was dropped, as too many messages to the upstream are on their way");
        return;
    };
    let sent = notify(session.clone(), connection.clone(), message);
    session.spawn(async move {
        let _going = going;
        sent.await;
    });
}

/// The client of `scope` left what the server's requests came on: they get no answer.
pub(super) fn client_left(session: &Arc<Session>, scope: &Scope, via: Via) {
    for asked in scope.abandon(via) {
        refuse(session, &asked.connection, &asked.id, &Refused::left());
    }
}

/// The client of `scope` ended it: its streams end, and what it was asked gets no answer.
pub(super) fn client_ended(session: &Arc<Session>, scope: &Scope) {
    for asked in scope.close() {
        refuse(session, &asked.connection, &asked.id, &Refused::left());
    }
}
