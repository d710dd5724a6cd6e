//! Messages of a client that want no answer: notifications, and responses to the server's requests.

use crate::session::{Outgoing, Scope, Session};
use crate::upstream::{Connection, Loss, REFUSAL_LIMIT, SendError, session_loss};
use berth_mcp::frame::{Frame, splice};
use berth_mcp::method;
use bytes::Bytes;
use http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long the upstream may take to accept a message.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(30);

/// Passes `text`, which is `frame`, to the upstream if it is connected: no such message is a reason to connect. An answer goes
/// to the connection that asked, once. 202 if there is nothing more to do, 502 if the upstream did not take it, 503 if too many
/// messages are on their way already.
pub(super) async fn pass(session: &Arc<Session>, scope: &Scope, text: &str, frame: &Frame<'_>) -> StatusCode {
    let noted = match frame {
        Frame::Response { id: Some(_), .. } => None,
        _ => match outbound(scope, text, frame) {
            Some(message) => Some(message),
            None => return StatusCode::ACCEPTED,
        },
    };
    // Before a request of the server's counts as answered.
    let Ok(Some(going)) = timeout(ACCEPT_TIMEOUT, session.outgoing(text.len())).await else {
        session.shared.metrics.outgoing_dropped.inc();
        return StatusCode::SERVICE_UNAVAILABLE;
    };
    let (message, connection) = match frame {
        Frame::Response { id: Some(id), .. } => {
            let Some(asked) = scope.answer(&id.key()) else {
                tracing::debug!(session = %session.uid, "an answer to nothing that the server asks was dropped");
                return StatusCode::ACCEPTED;
            };
            (Some(splice(text, [(id.span(), &asked.id)])), Some(asked.connection))
        }
        _ => (noted, session.established()),
    };
    let (Some(message), Some(connection)) = (message, connection) else { return StatusCode::ACCEPTED };
    let (done, status) = oneshot::channel();
    let delivery = deliver(session.clone(), connection, message, going);
    // A client that leaves has still said it.
    session.spawn(async move {
        let _ = done.send(delivery.await);
    });
    status.await.unwrap_or(StatusCode::BAD_GATEWAY)
}

/// The message for the upstream; none if it ends here.
fn outbound(scope: &Scope, text: &str, frame: &Frame<'_>) -> Option<String> {
    match frame {
        // An error about a message of the server's that the client could not read: nobody knows which.
        Frame::Response { .. } => None,
        // The sidecar has said so itself.
        Frame::Notification { method, .. } if method == method::INITIALIZED => None,
        Frame::Notification { method, subject } if method == method::CANCELLED => {
            let subject = subject.as_ref()?;
            let running = scope.running(&subject.key())?;
            running.flight.cancelled.notify_one();
            // The upstream must not be told of an id that it never saw.
            running
                .flight
                .sent
                .load(Ordering::Acquire)
                .then(|| splice(text, [(subject.span(), &running.upstream_id.to_string())]))
        }
        _ => Some(text.to_owned()),
    }
}

async fn deliver(
    session: Arc<Session>,
    connection: Arc<Connection>,
    message: String,
    _going: Outgoing,
) -> StatusCode {
    let _user = connection.users.token();
    let sent = timeout(ACCEPT_TIMEOUT, async {
        let mut response = connection.post(Bytes::from(message)).await?;
        let status = response.status();
        let text = if status.is_success() {
            response.body_mut().finish(REFUSAL_LIMIT).await;
            String::new()
        } else {
            response.body_mut().text(REFUSAL_LIMIT).await.unwrap_or_default()
        };
        Ok::<_, SendError>((status, text))
    });
    let sent = tokio::select! {
        sent = sent => sent,
        () = session.cancelled().cancelled() => return StatusCode::BAD_GATEWAY,
    };
    match sent {
        Ok(Ok((status, _))) if status.is_success() => StatusCode::ACCEPTED,
        Ok(Ok((status, text))) => {
            if let Some(loss) = session_loss(status, &text).filter(|_| connection.has_session_id()) {
                session.lost(&connection, loss == Loss::Gone);
            }
            StatusCode::BAD_GATEWAY
        }
        Ok(Err(error)) => {
            if connection.is_lost_by(&error) {
                session.lost(&connection, false);
            }
            StatusCode::BAD_GATEWAY
        }
        Err(_) => StatusCode::BAD_GATEWAY,
    }
}
