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
    /// Whether it was carried out is unknown; it was not sent again.
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
    /// As many calls run and wait as these limits allow.
    TooMany(Limits),
    /// The upstream forgot the state that the client knows of, and the client is to begin anew.
    StateLost,
    /// Too many other clients are busy.
    TooManyClients,
    /// Too much is asked for by one client; the text names the limit.
    Refused(String),
}

impl CallError {
    /// The JSON-RPC error for the client whose raw request id is `id`.
    pub(crate) fn render(&self, server: &str, id: &str) -> String {
        let body = match self {
            Self::Trouble(Trouble { rpc_error: Some(raw), .. }) => {
                return format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{raw}}}"#);
            }
            Self::Trouble(trouble) => upstream_trouble(trouble),
            Self::OutcomeUnknown(trouble) => ErrorBody::new(
                error::OUTCOME_UNKNOWN,
                format!(
                    "{}; whether the request was carried out is unknown, it was not sent again",
                    trouble.message
                ),
            )
            .reason(trouble.failure.as_str()),
            Self::Ending => {
                ErrorBody::new(error::CANCELLED, "the session is ending; the request was cancelled")
            }
            Self::Cancelled => ErrorBody::new(error::CANCELLED, "the client cancelled the request"),
            Self::TimedOut(millis) => {
                let text =
                    format!("server {server:?} did not answer within {millis} ms; the request was cancelled");
                ErrorBody::new(error::TIMED_OUT, text)
            }
            Self::NoTurn(millis) => {
                let text = format!(
                    "the request waited {millis} ms for its turn and was not sent; wait for other requests of the \
                     session to finish, or raise limits of the McpServer"
                );
                ErrorBody::new(error::TIMED_OUT, text)
            }
            Self::TooLarge(limit) => {
                let text =
                    format!("the answer of server {server:?} is larger than the limit of {limit} bytes");
                ErrorBody::new(error::TOO_LARGE, text)
            }
            Self::HeadTooLarge => {
                let text = format!(
                    "server {server:?}: {}; the request was sent and may have been carried out",
                    SendError::HeadTooLarge
                );
                ErrorBody::new(error::TOO_LARGE, text)
            }
            Self::NoRoom(reason) => {
                let text = format!("{reason}; the request was sent and may have been carried out");
                ErrorBody::new(error::LIMIT_REACHED, text)
            }
            Self::TooMany(Limits { concurrent_calls, queued_calls, .. }) => {
                let text = format!(
                    "the session runs {concurrent_calls} requests already and {queued_calls} wait; \
                     wait for one to finish, or raise limits of the McpServer"
                );
                ErrorBody::new(error::LIMIT_REACHED, text)
            }
            Self::StateLost => {
                let text = "Session not found: the upstream forgot it; send initialize again without an Mcp-Session-Id";
                ErrorBody::new(error::SESSION_UNKNOWN, text)
            }
            Self::TooManyClients => {
                let text =
                    format!("the session serves {MAX_SCOPES} clients already; end one of them by DELETE");
                ErrorBody::new(error::LIMIT_REACHED, text)
            }
            Self::Refused(text) => ErrorBody::new(error::LIMIT_REACHED, text),
        };
        body.server(server).render(Some(id))
    }
}

fn upstream_trouble(trouble: &Trouble) -> ErrorBody {
    let body = ErrorBody::new(error::UPSTREAM_TROUBLE, &trouble.message).reason(trouble.failure.as_str());
    match trouble.retry_after {
        Some(wait) => body.retry_after_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        None => body,
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
    /// As many run and wait as may.
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
            // Under the lock, so that an end that begins now waits for this call.
            (inner.desired.clone(), self.calls.token())
        };
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
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
