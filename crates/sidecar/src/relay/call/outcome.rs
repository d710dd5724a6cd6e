//! A call without a result: what its client, its upstream and its session are told.

use super::{Call, notify};
use crate::session::CallError;
use crate::upstream::{BodyError, Connection, SendError, Site, Step, Trouble, asked_to_wait};
use berth_mcp::method;
use berth_wire::Failure;
use http::{HeaderMap, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long a client may take to accept the last message once the call's time is over.
const LAST_WORD: Duration = Duration::from_secs(1);

impl Call {
    /// Tells the client why there is no result, and the upstream that none is wanted any more.
    pub(super) async fn fail(mut self, error: CallError) {
        let text = error.render(&self.guard.desired.server.name, &self.ids.client, self.sent.is_some());
        let held = self.held.take();
        let _ = match error {
            CallError::StateLost => timeout(LAST_WORD, self.reply.begin_anew(text, held)).await,
            _ => timeout(LAST_WORD, self.reply.last(text, held)).await,
        };
        let stop = matches!(
            error,
            CallError::TimedOut(_)
                | CallError::Ending
                | CallError::TooLarge(_)
                | CallError::HeadTooLarge
                | CallError::NoRoom(_)
        );
        if let (true, Some(connection)) = (stop, self.sent.take()) {
            let message = format!(
                r#"{{"jsonrpc":"2.0","method":"{}","params":{{"requestId":{}}}}}"#,
                method::CANCELLED,
                self.ids.upstream
            );
            notify(self.session().clone(), connection, message).await;
        }
    }

    fn site(&self) -> Site<'_> {
        Site { server: &self.guard.desired.server.name, step: Step::Request }
    }

    /// A status other than success; one that says "later" says when.
    pub(super) fn refusal(&self, status: StatusCode, text: &str, headers: &HeaderMap) -> Trouble {
        let trouble = self.site().refusal(status, text);
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                asked_to_wait(trouble, headers)
            }
            _ => trouble,
        }
    }

    pub(super) fn not_mcp(&self, text: &str) -> Trouble {
        self.site().trouble(Failure::ProtocolError, text)
    }

    pub(super) fn refused(&self, trouble: Trouble) -> CallError {
        self.note(&trouble);
        CallError::Trouble(trouble)
    }

    /// Tells the session of trouble that is more than this call's.
    fn note(&self, trouble: &Trouble) {
        if trouble.outlasts_a_call() {
            self.session().note(Some(trouble));
        }
    }

    /// The answer ended before the result.
    pub(super) fn broken(&self, connection: &Arc<Connection>, error: Option<&SendError>) -> CallError {
        match error {
            Some(error) => self.lost(connection, error),
            None => CallError::OutcomeUnknown(self.not_mcp("the stream ended without a result")),
        }
    }

    /// The request fails, as it must not be sent twice, and the connection is taken out of use if it failed with it.
    pub(super) fn lost(&self, connection: &Arc<Connection>, error: &SendError) -> CallError {
        if connection.is_lost_by(error) {
            self.session().lost(connection, false);
        }
        let told = match error {
            // That is of this call alone.
            SendError::HeadTooLarge => return CallError::HeadTooLarge,
            SendError::NotSent(_) | SendError::Withheld(_) => CallError::Trouble,
            SendError::Lost(_) => CallError::OutcomeUnknown,
        };
        let trouble = self.site().send(error);
        self.note(&trouble);
        told(trouble)
    }

    pub(super) fn unreadable(&self, connection: &Arc<Connection>, error: &BodyError) -> CallError {
        match error {
            BodyError::Lost(error) => self.lost(connection, error),
            BodyError::TooLarge(limit) => CallError::TooLarge(*limit),
            BodyError::NoRoom(reason) => CallError::NoRoom(*reason),
            BodyError::NotText => self.refused(self.site().body(error)),
        }
    }
}
