//! One client request on its way to the upstream and back.
//!
//! A client that leaves does not cancel it, the session's end waits for it. [`outcome`] is what becomes of one without a result.

mod outcome;

use super::clock::Clock;
use super::map::{Ids, Inbound};
use super::reply::Reply;
use super::resume::Resume;
use super::{ask, fan};
use crate::bounds::millis;
use crate::budget::{COPIES, Charge};
use crate::session::{Aside, CallError, CallGuard, Session, Turn, Via};
use crate::upstream::{
    Body, Connection, Loss, REFUSAL_LIMIT, SendError, is_session_lost_message, session_loss,
};
use berth_mcp::{error, header, sse};
use bytes::Bytes;
use http::{Response, StatusCode, header::CONTENT_TYPE};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// How long the upstream may take to accept news: a cancellation, or the answer to its ping.
const NOTICE: Duration = Duration::from_secs(5);
/// How long and how far an answer is read on after its last message, so that its socket can be used again.
const LINGER: (Duration, usize) = (Duration::from_secs(1), 64 * 1024);

/// So many messages that came on the side are passed on before the answer gets its turn.
const ASIDES: usize = 64;

/// A call that runs.
pub(super) struct Call {
    guard: CallGuard,
    /// Its turn, until that has come.
    turn: Option<Turn>,
    ids: Ids,
    /// The request, mapped.
    message: Bytes,
    clock: Clock,
    reply: Reply,
    /// The resource that it subscribes the client to.
    subscription: Option<Box<str>>,
    /// Covers the request.
    _request: Charge,
    /// Covers what is held of the answer and is not yet on its way to the client.
    held: Charge,
    /// Where it was sent, unless it is known that it was not carried out there.
    sent: Option<Arc<Connection>>,
}

/// A request that is ready to be relayed.
pub(super) struct Prepared {
    pub ids: Ids,
    /// The request, mapped.
    pub message: String,
    /// The resource that it subscribes the client to, if it was not before.
    pub subscription: Option<Box<str>>,
    /// Covers the request.
    pub charge: Charge,
}

/// What happened while a call waited.
enum Woken {
    Aside(Aside),
    /// What the call waits for is not there yet, after many messages of others.
    WorkHadItsTurn,
    /// The client was asked something, or has answered.
    Asking,
    /// The client left while it was asked.
    Left,
}

impl Call {
    pub(super) fn new(guard: CallGuard, turn: Turn, prepared: Prepared, reply: Reply) -> Self {
        let Prepared { ids, message, subscription, charge } = prepared;
        let timeouts = guard.desired.timeouts;
        let (silence, whole) = (millis(timeouts.request_millis), millis(timeouts.request_max_millis));
        let clock = Clock::start(Instant::now(), silence, whole);
        let held = guard.session.shared.budget.charge();
        let (turn, message) = (Some(turn), Bytes::from(message));
        Self { guard, turn, ids, message, clock, reply, subscription, _request: charge, held, sent: None }
    }

    /// Runs it to its end.
    pub(super) async fn run(mut self) {
        let relayed = self.relay().await;
        self.give_up_asking();
        match relayed {
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
        if let Some(mut turn) = self.turn.take() {
            self.attended(turn.come()).await.map_err(|error| match error {
                CallError::TimedOut(millis) => CallError::NoTurn(millis),
                other => other,
            })?;
            self.reply.begin(turn);
        }
        let mut resent = false;
        loop {
            let (session, scope) = (self.session().clone(), self.guard.scope.clone());
            let connection = self.attended(session.connection_for(&scope)).await??;
            let _user = connection.users.token();
            self.sent = Some(connection.clone());
            self.guard.flight.sent.store(true, Ordering::Release);
            let posted = self.attended(connection.post(self.message.clone())).await?;
            let mut response = posted.map_err(|error| self.lost(&connection, &error))?;
            let status = response.status();
            let loss = if status.is_success() {
                match self.answer(&connection, response).await? {
                    Some(rest) => return Ok(rest),
                    None => Loss::Gone,
                }
            } else {
                let text = self.attended(response.body_mut().text(REFUSAL_LIMIT)).await?.unwrap_or_default();
                match session_loss(status, &text).filter(|_| connection.has_session_id()) {
                    Some(loss) => loss,
                    None => return Err(self.refusal(status, &text, response.headers())),
                }
            };
            // The upstream refused the request for the sake of its session: it was not carried out.
            self.sent = None;
            session.lost(&connection, loss == Loss::Gone);
            if std::mem::replace(&mut resent, true) {
                let text =
                    "the upstream forgot its session twice; check whether requests reach different replicas";
                return Err(self.refused(self.not_mcp(text)));
            }
        }
    }

    /// Relays an answer; none if it says no more than that the upstream does not know its session.
    async fn answer(
        &mut self,
        connection: &Arc<Connection>,
        response: Response<Body>,
    ) -> Result<Option<Body>, CallError> {
        let status = response.status();
        let content_type = response.headers().get(CONTENT_TYPE);
        let is_stream = header::is_event_stream(content_type);
        let is_json = header::is_json(content_type) && status != StatusCode::ACCEPTED;
        let mut body = response.into_body();
        if is_stream {
            self.reply.open_stream();
            match self.stream(connection, body).await? {
                Some(rest) => body = rest,
                None => return Ok(None),
            }
        } else if is_json {
            let mut held = self.held.take();
            let text = body.text_covered(self.limit(), |bytes| held.cover(COPIES * bytes));
            let text = self.attended(text).await?;
            let text = text.map_err(|error| self.unreadable(connection, &error))?;
            let Inbound::Last { text, is_result } = self.ids.inbound(text) else {
                return Err(self.unknown(self.not_mcp("the answer is not a response to the request")));
            };
            if !is_result && connection.has_session_id() && is_session_lost_message(&text, false) {
                return Ok(None);
            }
            self.last(connection, text, is_result, held).await?;
        } else {
            return Err(self.unknown(self.not_mcp("the answer is neither JSON nor an event stream")));
        }
        self.session().note(None);
        Ok(Some(body))
    }

    /// Relays the events of an answer in their order, the result last. A stream that ends before is taken up again where it
    /// was, if its events have ids. None as for [`Self::answer`].
    async fn stream(
        &mut self,
        connection: &Arc<Connection>,
        mut body: Body,
    ) -> Result<Option<Body>, CallError> {
        let mut resume = Resume::default();
        let mut is_first = connection.has_session_id();
        loop {
            let mut decoder = sse::Decoder::new(self.limit());
            let ended = loop {
                let chunk = match self.attended(body.chunk()).await? {
                    Ok(Some(chunk)) => chunk,
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                };
                self.held.cover(COPIES * (decoder.held() + chunk.len())).map_err(CallError::NoRoom)?;
                decoder.feed(&chunk);
                while let Some(event) = decoder.next_event() {
                    let event = event.map_err(|error| CallError::TooLarge(error.limit))?;
                    resume.note(&event);
                    if event.data.is_empty() {
                        continue;
                    }
                    let is_error = event.event.as_deref() == Some("error");
                    if std::mem::take(&mut is_first) && is_session_lost_message(&event.data, is_error) {
                        return Ok(None);
                    }
                    if self.event(connection, event.data).await? {
                        return Ok(Some(body));
                    }
                }
            };
            body = match self.attended(resume.resume(connection)).await? {
                Some(body) => body,
                None => return Err(self.broken(connection, ended.as_ref())),
            };
        }
    }

    /// Relays one event; true if it was the last.
    async fn event(&mut self, connection: &Arc<Connection>, data: String) -> Result<bool, CallError> {
        let mut held = self.held.take();
        held.fit(COPIES * data.len()).map_err(CallError::NoRoom)?;
        let session = self.session().clone();
        match self.ids.inbound(data) {
            Inbound::Last { text, is_result } => {
                self.last(connection, text, is_result, held).await?;
                return Ok(true);
            }
            Inbound::Forward { text, alive } => {
                if alive {
                    self.clock.progress(Instant::now());
                }
                self.forward(text, held).await?;
            }
            Inbound::News(text) => {
                let has_it = self.reply.takes_stream().then_some(&self.guard.scope);
                fan::tell_others(&session, has_it, &text);
                self.forward(text, held).await?;
            }
            Inbound::Ask(text) => self.ask(connection, &text, held).await?,
            Inbound::Withdraw(text) => fan::withdraw(&session, connection, &text, held),
            Inbound::Ping(id) => ask::answer(&session, connection, error::render_result(&id, "{}")),
            Inbound::Drop(reason) => {
                tracing::debug!(session = %session.uid, reason, "a message of the upstream's was dropped");
            }
        }
        Ok(false)
    }

    /// Sends the client a message; false if it has left.
    async fn forward(&mut self, text: String, held: Charge) -> Result<bool, CallError> {
        self.reply.open_stream();
        let deadline = self.deadline();
        bounded(&self.guard, self.clock, deadline, self.reply.event(text, held)).await
    }

    /// Sends the client the last message, after all that came on the side.
    async fn last(
        &mut self,
        connection: &Connection,
        text: String,
        is_result: bool,
        held: Charge,
    ) -> Result<(), CallError> {
        // Not what comes while these go: it could be without end.
        for _ in 0..self.guard.aside.len() {
            let Ok(aside) = self.guard.aside.try_recv() else { break };
            self.beside(aside).await?;
        }
        if is_result {
            self.subscription = None;
        }
        let text = self.guard.mark(connection, text);
        let deadline = self.deadline();
        bounded(&self.guard, self.clock, deadline, self.reply.last(text, held)).await
    }

    /// Passes on what came for the client elsewhere than on the call's answer.
    async fn beside(&mut self, aside: Aside) -> Result<(), CallError> {
        let text = match aside.is_progress.then(|| self.ids.inbound(aside.text.clone())) {
            None => aside.text,
            Some(Inbound::Forward { text, .. }) => text,
            Some(_) => return Ok(()),
        };
        self.clock.progress(Instant::now());
        if !self.forward(text, aside.held).await? {
            self.give_up_asking();
        }
        Ok(())
    }

    /// Hands the client a request of the server's.
    async fn ask(&mut self, connection: &Arc<Connection>, text: &str, held: Charge) -> Result<(), CallError> {
        self.clock.progress(Instant::now());
        let via = Via::Call(self.guard.upstream_id);
        let is_there = self.reply.takes_stream();
        if let Some(text) = ask::hand(self.session(), &self.guard.scope, connection, text, via, is_there)
            && !self.forward(text, held).await?
        {
            self.give_up_asking();
        }
        Ok(())
    }

    /// Answers what the server asked for this call's sake: its client will not.
    fn give_up_asking(&self) {
        if self.is_asked() {
            ask::client_left(self.session(), &self.guard.scope, Via::Call(self.guard.upstream_id));
        }
    }

    /// Whether the server waits for the client for this call's sake.
    fn is_asked(&self) -> bool {
        *self.guard.asking.borrow() > 0
    }

    fn session(&self) -> &Arc<Session> {
        &self.guard.session
    }

    /// Largest answer, or event of one, in bytes.
    fn limit(&self) -> usize {
        usize::try_from(self.guard.desired.limits.response_bytes).unwrap_or(usize::MAX)
    }

    /// When the call has to end, as things stand: its clock stands still while the client is asked something.
    fn deadline(&self) -> Instant {
        if self.is_asked() { self.clock.hard_end() } else { self.clock.deadline() }
    }

    /// Waits for `work` as long as the call may go on, and passes on what comes for the client meanwhile. Neither who always has
    /// something for the client nor work that is always ready keeps the call past its end, or the one from the other.
    async fn attended<T>(&mut self, work: impl Future<Output = T>) -> Result<T, CallError> {
        let mut work = std::pin::pin!(work);
        let mut asides = 0_usize;
        loop {
            let deadline = self.deadline();
            if Instant::now() >= deadline {
                return Err(CallError::TimedOut(self.clock.millis_until(deadline)));
            }
            let is_asked = self.is_asked();
            let guard = &mut self.guard;
            let news = tokio::select! {
                biased;
                () = guard.session.cancelled().cancelled() => return Err(CallError::Ending),
                () = guard.flight.cancelled.notified() => return Err(CallError::Cancelled),
                Some(aside) = guard.aside.recv(), if asides < ASIDES => Woken::Aside(aside),
                value = &mut work => return Ok(value),
                () = std::future::ready(()), if asides >= ASIDES => Woken::WorkHadItsTurn,
                Ok(()) = guard.asking.changed() => Woken::Asking,
                () = self.reply.left(), if is_asked => Woken::Left,
                () = sleep_until(deadline) => return Err(CallError::TimedOut(self.clock.millis_until(deadline))),
            };
            match news {
                Woken::Aside(aside) => {
                    asides += 1;
                    self.beside(aside).await?;
                }
                Woken::WorkHadItsTurn => asides = 0,
                Woken::Asking => self.clock.progress(Instant::now()),
                Woken::Left => self.give_up_asking(),
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(uri) = self.subscription.take() {
            self.guard.scope.unsubscribe(&uri);
        }
    }
}

/// Waits for `work` as long as the call may go on.
async fn bounded<T>(
    guard: &CallGuard,
    clock: Clock,
    deadline: Instant,
    work: impl Future<Output = T>,
) -> Result<T, CallError> {
    tokio::select! {
        biased;
        () = guard.session.cancelled().cancelled() => Err(CallError::Ending),
        () = guard.flight.cancelled.notified() => Err(CallError::Cancelled),
        value = work => Ok(value),
        () = sleep_until(deadline) => Err(CallError::TimedOut(clock.millis_until(deadline))),
    }
}

/// Sends the upstream a message that nothing depends on.
pub(super) async fn notify(session: Arc<Session>, connection: Arc<Connection>, message: String) {
    let sent = timeout(NOTICE, async {
        let mut response = connection.post(Bytes::from(message)).await?;
        response.body_mut().finish(REFUSAL_LIMIT).await;
        Ok::<_, SendError>(())
    });
    if !matches!(sent.await, Ok(Ok(()))) {
        tracing::debug!(session = %session.uid, "a message to the upstream was not accepted");
    }
}
