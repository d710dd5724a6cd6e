//! A call without a result: what its client, its upstream and its session are told.

use super::{Call, notify};
use crate::budget::COPIES;
use crate::session::CallError;
use crate::upstream::{BodyError, Connection, SendError, Site, Step, Trouble, asked_to_wait, leaves_open};
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
        let mut held = self.held.take();
        // What was read of an answer is gone. An error is told, room for it or not.
        let _ = held.fit(COPIES * text.len());
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
    pub(super) fn refusal(&self, status: StatusCode, text: &str, headers: &HeaderMap) -> CallError {
        let trouble = self.site().refusal(status, text);
        let trouble = match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                asked_to_wait(trouble, headers)
            }
            _ => trouble,
        };
        if leaves_open(status, trouble.retry_after.is_some()) {
            self.unknown(trouble)
        } else {
            self.refused(trouble)
        }
    }

    pub(super) fn not_mcp(&self, text: &str) -> Trouble {
        self.site().trouble(Failure::ProtocolError, text)
    }

    /// The upstream did not carry the request out.
    pub(super) fn refused(&self, trouble: Trouble) -> CallError {
        self.note(&trouble);
        CallError::Trouble(trouble)
    }

    /// What the upstream said does not tell whether it carried the request out.
    pub(super) fn unknown(&self, trouble: Trouble) -> CallError {
        self.note(&trouble);
        CallError::OutcomeUnknown(trouble)
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
            BodyError::NotText => self.unknown(self.site().body(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Ids, Prepared, Reply};
    use super::*;
    use crate::fixture;
    use crate::relay::answer::Answer;
    use crate::session::{Desired, Session};
    use berth_mcp::frame::TokenKey;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn an_error_is_covered_for_its_own_size() {
        let shared = fixture::shared();
        let budget = shared.budget.clone();
        let desired = Desired::new(fixture::spec("Bearer first"), &shared.dialer).unwrap();
        let session = Session::new("s".into(), desired, shared);
        let scope = session.scope(&session.new_client("{}").unwrap().token).unwrap();
        let (guard, turn) = session.begin_call(scope, TokenKey::Number("1".into())).unwrap();
        let ids = Ids { client: "1".into(), token: None, upstream: "1".into() };
        let prepared = Prepared { ids, message: String::new(), subscription: None, charge: budget.charge() };
        let (head, answer) = oneshot::channel();
        let mut call = Call::new(guard, turn, prepared, Reply::new(head, true));
        call.held.cover(512 * 1024).unwrap();
        call.fail(CallError::TooLarge(256 * 1024)).await;
        let Ok(Answer::Json(text)) = answer.await else { panic!("an error") };
        assert!((1..=1024).contains(&(budget.whole() - budget.left())), "{} are left", budget.left());
        drop(text);
        assert_eq!(budget.left(), budget.whole());
    }
}
