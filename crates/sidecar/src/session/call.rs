//! The books of one running call, and what can become of it.

use super::lanes::{Full, Turn};
use super::scope::{Flight, Running};
use super::scopes::MAX_SCOPES;
use super::{Desired, Scope, Session};
use crate::budget::{Charge, NoRoom};
use crate::sync::lock;
use crate::upstream::{Connection, SendError, Trouble};
use berth_mcp::error::{self, ErrorBody};
use berth_mcp::frame::TokenKey;
use berth_net::feed::Urgency;
use berth_net::metrics::Held;
use berth_wire::Limits;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{mpsc, watch};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Messages that wait for a call whose client is slow; more are lost.
const MAX_ASIDE: usize = 2048;

/// Why a call has no result of the upstream's.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// It was not carried out.
    Trouble(Trouble),
    /// The connection failed, or the answer ended, before the result.
    OutcomeUnknown(Trouble),
    /// The session's end cancelled it.
    Ending,
    /// The client cancelled it.
    Cancelled,
    /// It took too long, in milliseconds.
    TimedOut(u64),
    /// Its turn did not come in time, in milliseconds.
    NoTurn(u64),
    /// The answer was larger than so many bytes.
    TooLarge(usize),
    /// The answer had too large a head.
    HeadTooLarge,
    /// The sidecar has no memory for the answer now.
    NoRoom(NoRoom),
    /// There are as many calls as these limits let run and wait.
    TooMany(Limits),
    /// The upstream forgot the state that the client knows of, and the client is to begin anew.
    StateLost,
    /// Too many other clients are busy.
    TooManyClients,
    /// Too much is asked for by one client; the text names the limit.
    Refused(String),
}

/// Said of a request that was sent and has no answer.
const OUTCOME_UNKNOWN: &str = "; whether the request was carried out is unknown, it was not sent again";

impl CallError {
    /// The JSON-RPC error for the client whose raw request id is `id`. `was_sent` if the upstream may have carried the request out.
    pub(crate) fn render(&self, server: &str, id: &str, was_sent: bool) -> String {
        if let Self::Trouble(Trouble { rpc_error: Some(raw), .. }) = self {
            return format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{raw}}}"#);
        }
        let mut text = self.text(server);
        if was_sent && self.is_without_answer() {
            text.push_str(OUTCOME_UNKNOWN);
        }
        let mut body = ErrorBody::new(self.code(), text).server(server);
        if let Self::Trouble(trouble) | Self::OutcomeUnknown(trouble) = self {
            body = body.reason(trouble.failure.as_str());
            if let Some(wait) = trouble.retry_after {
                body = body.retry_after_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
            }
        }
        body.render(Some(id))
    }

    /// Whether it says nothing of what the upstream made of the request.
    fn is_without_answer(&self) -> bool {
        match self {
            Self::OutcomeUnknown(_)
            | Self::Ending
            | Self::Cancelled
            | Self::TimedOut(_)
            | Self::TooLarge(_)
            | Self::HeadTooLarge
            | Self::NoRoom(_) => true,
            Self::Trouble(_)
            | Self::NoTurn(_)
            | Self::TooMany(_)
            | Self::StateLost
            | Self::TooManyClients
            | Self::Refused(_) => false,
        }
    }

    fn code(&self) -> i32 {
        match self {
            Self::Trouble(_) => error::UPSTREAM_TROUBLE,
            Self::OutcomeUnknown(_) => error::OUTCOME_UNKNOWN,
            Self::Ending | Self::Cancelled => error::CANCELLED,
            Self::TimedOut(_) | Self::NoTurn(_) => error::TIMED_OUT,
            Self::TooLarge(_) | Self::HeadTooLarge => error::TOO_LARGE,
            Self::NoRoom(_) | Self::TooMany(_) | Self::TooManyClients | Self::Refused(_) => {
                error::LIMIT_REACHED
            }
            Self::StateLost => error::SESSION_UNKNOWN,
        }
    }

    fn text(&self, server: &str) -> String {
        match self {
            Self::Trouble(trouble) | Self::OutcomeUnknown(trouble) => trouble.message.clone(),
            Self::Ending => "the session is ending; the request was cancelled".to_owned(),
            Self::Cancelled => "the client cancelled the request".to_owned(),
            Self::TimedOut(millis) => {
                format!(
                    "server {server:?} did not answer, or the client did not read the answer, within {millis} ms; \
                     the request was cancelled"
                )
            }
            Self::NoTurn(millis) => format!(
                "the request waited {millis} ms for its turn and was not sent; wait for other requests of the session \
                 to finish, or raise limits of the McpServer"
            ),
            Self::TooLarge(limit) => {
                format!("the answer of server {server:?} is larger than the limit of {limit} bytes")
            }
            Self::HeadTooLarge => format!("server {server:?}: {}", SendError::HeadTooLarge),
            Self::NoRoom(reason) => reason.to_string(),
            Self::TooMany(Limits { concurrent_calls, queued_calls, .. }) => format!(
                "the session runs {concurrent_calls} requests already and {queued_calls} wait, for their turn or for \
                 clients that do not read; wait for one to finish, or raise limits of the McpServer"
            ),
            Self::StateLost => {
                "Session not found: the upstream forgot it; send initialize again without an Mcp-Session-Id"
                    .to_owned()
            }
            Self::TooManyClients => {
                format!("the session serves {MAX_SCOPES} clients already; end one of them by DELETE")
            }
            Self::Refused(text) => text.clone(),
        }
    }
}

/// A call in the books; dropping it takes it out again, on every path.
pub(crate) struct CallGuard {
    pub session: Arc<Session>,
    pub desired: Arc<Desired>,
    /// The request's id at the upstream.
    pub upstream_id: u64,
    /// Its client.
    pub scope: Arc<Scope>,
    /// Whether it was sent, and whether the client has cancelled it.
    pub flight: Arc<Flight>,
    /// How many requests of the server's wait for the client for its sake.
    pub asking: watch::Receiver<u32>,
    /// What the upstream says of it elsewhere than on its answer.
    pub aside: mpsc::Receiver<Aside>,
    id: TokenKey,
    _books: Books,
}

/// A message for a call's client that did not come on the call's own answer.
pub(crate) struct Aside {
    /// Progress of the call, as the upstream spelled it; else what goes to the client as it is.
    pub is_progress: bool,
    pub text: String,
    /// Covers the text.
    pub held: Charge,
}

/// What any request of a client's holds while it runs.
pub(crate) struct Books {
    session: Arc<Session>,
    _held: Held,
    _token: TaskTrackerToken,
}

/// Why a call was not entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotBegun {
    /// The session takes no new work.
    Ending,
    /// There are as many as may run and wait.
    Full(Limits),
}

impl Session {
    /// Enters a call of the client `scope`, who calls it `id`.
    pub(crate) fn begin_call(
        self: &Arc<Self>,
        scope: Arc<Scope>,
        id: TokenKey,
    ) -> Result<(CallGuard, Turn), NotBegun> {
        let (desired, books) = self.books().ok_or(NotBegun::Ending)?;
        let limits = desired.limits;
        let turn = self.lanes.enter(limits.concurrent_calls, limits.queued_calls);
        let turn = turn.map_err(|Full| NotBegun::Full(limits))?;
        let upstream_id = self.fresh_upstream_id();
        let flight = Arc::<Flight>::default();
        let (asking, asked) = watch::channel(0);
        scope.begin(id.clone(), Running { upstream_id, flight: flight.clone(), asking });
        let (sender, aside) = mpsc::channel(MAX_ASIDE);
        lock(&self.asides).insert(upstream_id, sender);
        let (session, asking) = (self.clone(), asked);
        let guard =
            CallGuard { session, desired, upstream_id, scope, flight, asking, aside, id, _books: books };
        Ok((guard, turn))
    }

    /// Enters an `initialize`; none if the session takes no new work. It uses nothing of the upstream but the connection, for
    /// which any number may wait.
    pub(crate) fn begin_initialize(self: &Arc<Self>) -> Option<(Arc<Desired>, Books)> {
        self.books()
    }

    fn books(self: &Arc<Self>) -> Option<(Arc<Desired>, Books)> {
        let (desired, token) = {
            let inner = lock(&self.inner);
            if !inner.link.takes_work() {
                return None;
            }
            // Under the lock, so that an end that begins now knows of this call and waits for it.
            self.in_flight.fetch_add(1, Ordering::Relaxed);
            (inner.desired.clone(), self.calls.token())
        };
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.tell(Urgency::Soon);
        let held = Held::new(&self.shared.metrics.requests_in_flight);
        Some((desired, Books { session: self.clone(), _held: held, _token: token }))
    }

    /// Gives a running call a message that did not come on its answer. False if it does not run any more, or its client does
    /// not keep up.
    pub(crate) fn aside(&self, upstream_id: u64, aside: Aside) -> bool {
        let sender = lock(&self.asides).get(&upstream_id).cloned();
        sender.is_some_and(|sender| sender.try_send(aside).is_ok())
    }

    /// The connection for a call of `scope`. If no client has opened one here yet, as the sidecar was replaced, it is made for
    /// what this client once said of itself. A client whose state is lost gets none if it is to begin anew.
    pub(crate) async fn connection_for(
        self: &Arc<Self>,
        scope: &Scope,
    ) -> Result<Arc<Connection>, CallError> {
        let known = lock(&self.inner).params.is_some();
        let connection = self.connection((!known).then_some(&scope.profile.params)).await?;
        if self.is_shut_out(scope, &connection) { Err(CallError::StateLost) } else { Ok(connection) }
    }

    /// Calls that run.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Runs `work` as a part of the session: its end waits for it.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.calls.spawn(work);
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let mut asides = lock(&self.session.asides);
        asides.remove(&self.upstream_id);
        if asides.is_empty() {
            *asides = HashMap::new();
        }
        drop(asides);
        self.scope.finish(&self.id, self.upstream_id);
    }
}

impl Drop for Books {
    fn drop(&mut self) {
        self.session.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.session.tell(Urgency::Soon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{Site, Step};
    use berth_wire::Failure;

    #[test]
    fn who_has_no_answer_to_what_was_sent_is_told_so_and_nobody_else() {
        let trouble = Site { server: "s", step: Step::Request }.trouble(Failure::ProtocolError, "no MCP");
        let limits = Limits::default();
        for (error, code, is_open) in [
            (CallError::Trouble(trouble.clone()), error::UPSTREAM_TROUBLE, false),
            (CallError::OutcomeUnknown(trouble), error::OUTCOME_UNKNOWN, true),
            (CallError::Ending, error::CANCELLED, true),
            (CallError::Cancelled, error::CANCELLED, true),
            (CallError::TimedOut(1), error::TIMED_OUT, true),
            (CallError::NoTurn(1), error::TIMED_OUT, false),
            (CallError::TooLarge(1), error::TOO_LARGE, true),
            (CallError::HeadTooLarge, error::TOO_LARGE, true),
            (CallError::NoRoom(NoRoom), error::LIMIT_REACHED, true),
            (CallError::TooMany(limits), error::LIMIT_REACHED, false),
            (CallError::StateLost, error::SESSION_UNKNOWN, false),
            (CallError::TooManyClients, error::LIMIT_REACHED, false),
            (CallError::Refused("no".into()), error::LIMIT_REACHED, false),
        ] {
            for was_sent in [false, true] {
                let text = error.render("s", "1", was_sent);
                let says = text.contains(OUTCOME_UNKNOWN);
                assert_eq!(says, was_sent && is_open, "{text}");
                assert!(text.contains(&format!(r#""code":{code},"#)), "{text}");
            }
        }
    }
}
