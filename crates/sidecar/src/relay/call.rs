//! One client request on its way to the upstream and back.
//!
//! It runs as a task of the session's: a client that leaves does not cancel it, the session's end waits for it.

use super::clock::Clock;
use super::map::{Ids, Inbound};
use super::reply::Reply;
use crate::bounds::millis;
use crate::budget::Charge;
use crate::session::{CallError, CallGuard, Session};
use crate::upstream::{
    Body, BodyError, Connection, REFUSAL_LIMIT, RESPONSE_LIMIT, SendError, Site, Step, Trouble,
    is_session_lost,
};
use berth_mcp::{error, header, method, sse};
use berth_wire::Failure;
use bytes::Bytes;
use http::{Response, StatusCode, header::CONTENT_TYPE};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// How long a client may take to accept the last message once the call's time is over.
const LAST_WORD: Duration = Duration::from_secs(1);
/// How long the upstream may take to accept news: a cancellation, or the answer to its ping.
const NOTICE: Duration = Duration::from_secs(5);
/// How long and how far an answer is read on after its last message, so that its socket can be used again.
const LINGER: (Duration, usize) = (Duration::from_secs(1), 64 * 1024);

/// How often an answer is held for a moment: as it came, and as it goes to the client.
const COPIES: usize = 2;

/// A call that runs.
pub(super) struct Call {
    guard: CallGuard,
    ids: Ids,
    /// The request, mapped.
    message: Bytes,
    clock: Clock,
    reply: Reply,
    /// Covers the request.
    _request: Charge,
    /// Covers what is held of the answer and is not yet on its way to the client.
    held: Charge,
    /// Where it was sent.
    sent: Option<Arc<Connection>>,
}

impl Call {
    pub(super) fn new(guard: CallGuard, ids: Ids, message: String, request: Charge, reply: Reply) -> Self {
        let timeouts = guard.desired.timeouts;
        let (silence, whole) = (millis(timeouts.request_millis), millis(timeouts.request_max_millis));
        let clock = Clock::start(Instant::now(), silence, whole);
        let held = guard.session.shared.budget.charge();
        Self { guard, ids, message: Bytes::from(message), clock, reply, _request: request, held, sent: None }
    }

    /// Runs it to its end.
    pub(super) async fn run(mut self) {
        match self.relay().await {
            Ok(mut body) => {
                let session = self.session().clone();
                // The call is over for its client and for the books.
                drop(self);
                tokio::select! {
                    _ = timeout(LINGER.0, body.finish(LINGER.1)) => {}
                    () = session.cancelled().cancelled() => {}
                }
            }
            Err(error) => self.fail(error).await,
        }
    }

    /// Relays until the last message has gone to the client; gives back what is left of the answer.
    async fn relay(&mut self) -> Result<Body, CallError> {
        let mut resent = false;
        loop {
            let session = self.session().clone();
            let connection = self.bounded(session.connection(None)).await??;
            let _user = connection.users.token();
            self.sent = Some(connection.clone());
            let posted = self.bounded(connection.post(self.message.clone())).await?;
            let mut response = posted.map_err(|error| self.lost(&connection, &error))?;
            if response.status().is_success() {
                return self.answer(&connection, response).await;
            }
            let status = response.status();
            let text = self.bounded(response.body_mut().text(REFUSAL_LIMIT)).await?.unwrap_or_default();
            if !(connection.has_session_id() && is_session_lost(status, &text)) {
                return Err(self.refused(self.site().refusal(status, &text)));
            }
            // The upstream refused the request because it does not know the session: it was not carried out.
            session.lost(&connection, true);
            if std::mem::replace(&mut resent, true) {
                let text =
                    "the upstream forgot its session twice; check whether requests reach different replicas";
                return Err(self.refused(self.site().trouble(Failure::ProtocolError, text)));
            }
        }
    }

    async fn answer(
        &mut self,
        connection: &Arc<Connection>,
        response: Response<Body>,
    ) -> Result<Body, CallError> {
        let status = response.status();
        let media_type =
            response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let is_stream = header::is_media_type(media_type, header::EVENT_STREAM);
        let is_json = header::is_media_type(media_type, header::JSON) && status != StatusCode::ACCEPTED;
        let mut body = response.into_body();
        if is_stream {
            self.reply.open_stream();
            self.stream(connection, &mut body).await?;
        } else if is_json {
            let mut held = self.held.take();
            let text = body.text_covered(RESPONSE_LIMIT, |bytes| held.cover(COPIES * bytes));
            let text = self.bounded(text).await?;
            let text = text.map_err(|error| self.unreadable(connection, &error))?;
            let Inbound::Last(text) = self.ids.inbound(text) else {
                return Err(self.refused(self.not_mcp("the answer is not a response to the request")));
            };
            self.reply.last(text, held).await;
        } else {
            return Err(self.refused(self.not_mcp("the answer is neither JSON nor an event stream")));
        }
        self.session().note(None);
        Ok(body)
    }

    /// Relays the events of an answer in their order, the result last.
    async fn stream(&mut self, connection: &Arc<Connection>, body: &mut Body) -> Result<(), CallError> {
        let mut decoder = sse::Decoder::new(RESPONSE_LIMIT);
        loop {
            let chunk = self.bounded(body.chunk()).await?.map_err(|error| self.lost(connection, &error))?;
            let Some(chunk) = chunk else {
                return Err(CallError::OutcomeUnknown(self.not_mcp("the stream ended without a result")));
            };
            decoder.feed(&chunk);
            self.held.cover(COPIES * decoder.held()).map_err(CallError::NoRoom)?;
            while let Some(event) = decoder.next_event() {
                let event = event.map_err(|error| CallError::TooLarge(error.limit))?;
                if !event.data.is_empty() && self.event(connection, event.data).await? {
                    return Ok(());
                }
            }
        }
    }

    /// Relays one event; true if it was the last.
    async fn event(&mut self, connection: &Arc<Connection>, data: String) -> Result<bool, CallError> {
        let mut held = self.held.take();
        held.cover(COPIES * data.len()).map_err(CallError::NoRoom)?;
        match self.ids.inbound(data) {
            Inbound::Last(text) => {
                let clock = self.clock;
                let session = self.session().clone();
                bounded(&session, &self.guard, clock, self.reply.last(text, held)).await?;
                return Ok(true);
            }
            Inbound::Forward { text, alive } => {
                if alive {
                    self.clock.progress(Instant::now());
                }
                let clock = self.clock;
                let session = self.session().clone();
                bounded(&session, &self.guard, clock, self.reply.event(text, held)).await?;
            }
            Inbound::Ping(id) => {
                let pong = error::render_result(&id, "{}");
                self.session().spawn(notify(self.session().clone(), connection.clone(), pong));
            }
            Inbound::Drop(reason) => {
                tracing::debug!(session = %self.session().uid, reason, "a message of the upstream's was dropped");
            }
        }
        Ok(false)
    }

    /// Tells the client why there is no result, and the upstream that none is wanted any more.
    async fn fail(mut self, error: CallError) {
        let text = error.render(&self.guard.desired.server.name, &self.ids.client);
        let _ = timeout(LAST_WORD, self.reply.last(text, self.held.take())).await;
        let stop = matches!(
            error,
            CallError::TimedOut(_) | CallError::Ending | CallError::TooLarge(_) | CallError::NoRoom(_)
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

    fn session(&self) -> &Arc<Session> {
        &self.guard.session
    }

    fn site(&self) -> Site<'_> {
        Site { server: &self.guard.desired.server.name, step: Step::Request }
    }

    fn not_mcp(&self, text: &str) -> Trouble {
        self.site().trouble(Failure::ProtocolError, text)
    }

    fn refused(&self, trouble: Trouble) -> CallError {
        // A JSON-RPC error of the upstream's own is an answer to this request, no trouble with the upstream.
        self.session().note(Some(&trouble).filter(|trouble| trouble.rpc_error.is_none()));
        CallError::Trouble(trouble)
    }

    /// The connection failed: it is taken out of use, and the request fails, as it must not be sent twice. A credential that is
    /// withheld says nothing of the connection.
    fn lost(&self, connection: &Arc<Connection>, error: &SendError) -> CallError {
        if !matches!(error, SendError::Withheld(_)) {
            self.session().lost(connection, false);
        }
        let trouble = self.site().send(error);
        self.session().note(Some(&trouble));
        match error {
            SendError::NotSent(_) | SendError::Withheld(_) => CallError::Trouble(trouble),
            SendError::Lost(_) => CallError::OutcomeUnknown(trouble),
        }
    }

    fn unreadable(&self, connection: &Arc<Connection>, error: &BodyError) -> CallError {
        match error {
            BodyError::Lost(error) => self.lost(connection, error),
            BodyError::TooLarge(limit) => CallError::TooLarge(*limit),
            BodyError::NoRoom(reason) => CallError::NoRoom(*reason),
            BodyError::NotText => self.refused(self.site().body(error)),
        }
    }

    async fn bounded<T>(&self, work: impl Future<Output = T>) -> Result<T, CallError> {
        bounded(self.session(), &self.guard, self.clock, work).await
    }
}

/// Waits for `work` as long as the call may go on.
async fn bounded<T>(
    session: &Session,
    guard: &CallGuard,
    clock: Clock,
    work: impl Future<Output = T>,
) -> Result<T, CallError> {
    tokio::select! {
        biased;
        value = work => Ok(value),
        () = session.cancelled().cancelled() => Err(CallError::Ending),
        () = guard.cancelled.notified() => Err(CallError::Cancelled),
        () = sleep_until(clock.deadline()) => Err(CallError::TimedOut(clock.allowed_millis())),
    }
}

/// Sends the upstream a message that nothing depends on.
async fn notify(session: Arc<Session>, connection: Arc<Connection>, message: String) {
    let sent = timeout(NOTICE, async {
        let mut response = connection.post(Bytes::from(message)).await?;
        response.body_mut().finish(REFUSAL_LIMIT).await;
        Ok::<_, SendError>(())
    });
    if !matches!(sent.await, Ok(Ok(()))) {
        tracing::debug!(session = %session.uid, "a message to the upstream was not accepted");
    }
}
