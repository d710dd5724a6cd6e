//! The books of one running call, and what can become of it.

use super::scope::Running;
use super::{Desired, Scope, Session};
use crate::budget::NoRoom;
use crate::sync::lock;
use crate::upstream::Trouble;
use berth_mcp::error::{self, ErrorBody};
use berth_mcp::frame::TokenKey;
use berth_net::feed::Urgency;
use berth_net::metrics::Held;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::Notify;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Calls that a session runs at once.
const MAX_CALLS: u32 = 64;

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
    /// The answer was larger than so many bytes.
    TooLarge(usize),
    /// The sidecar has no memory for the answer now.
    NoRoom(NoRoom),
    /// Too many calls run.
    TooMany,
}

impl CallError {
    /// The JSON-RPC error for the client whose raw request id is `id`.
    pub(crate) fn render(&self, server: &str, id: &str) -> String {
        let body = match self {
            Self::Trouble(Trouble { rpc_error: Some(raw), .. }) => {
                return format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{raw}}}"#);
            }
            Self::Trouble(trouble) => {
                ErrorBody::new(error::UPSTREAM_TROUBLE, &trouble.message).reason(trouble.failure.as_str())
            }
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
            Self::TooLarge(limit) => {
                let text =
                    format!("the answer of server {server:?} is larger than the limit of {limit} bytes");
                ErrorBody::new(error::TOO_LARGE, text)
            }
            Self::NoRoom(reason) => {
                let text = format!("{reason}; the request was sent and may have been carried out");
                ErrorBody::new(error::LIMIT_REACHED, text)
            }
            Self::TooMany => {
                let text = format!("the session runs {MAX_CALLS} requests already; wait for one to finish");
                ErrorBody::new(error::LIMIT_REACHED, text)
            }
        };
        body.server(server).render(Some(id))
    }
}

/// A call in the books; dropping it takes it out again, on every path.
pub(crate) struct CallGuard {
    pub session: Arc<Session>,
    pub desired: Arc<Desired>,
    /// The request's id at the upstream.
    pub upstream_id: u64,
    /// Told when the client has cancelled it.
    pub cancelled: Arc<Notify>,
    scope: Option<(Arc<Scope>, TokenKey)>,
    _held: Held,
    _token: TaskTrackerToken,
}

impl Session {
    /// Enters a call; none if the session takes no new work. `scope` is its client and the client's id for it.
    pub(crate) fn begin_call(self: &Arc<Self>, scope: Option<(Arc<Scope>, TokenKey)>) -> Option<CallGuard> {
        let (desired, token) = {
            let inner = lock(&self.inner);
            if !inner.machine.takes_work() {
                return None;
            }
            // Under the lock, so that an end that begins now waits for this call.
            (inner.desired.clone(), self.calls.token())
        };
        let upstream_id = self.fresh_upstream_id();
        let cancelled = Arc::new(Notify::new());
        if let Some((scope, id)) = &scope {
            scope.begin(id.clone(), Running { upstream_id, cancelled: cancelled.clone() });
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.tell(Urgency::Soon);
        let held = Held::new(&self.shared.metrics.requests_in_flight);
        Some(CallGuard {
            session: self.clone(),
            desired,
            upstream_id,
            cancelled,
            scope,
            _held: held,
            _token: token,
        })
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

impl CallGuard {
    /// Whether this call is one too many.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.session.in_flight() > MAX_CALLS
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if let Some((scope, id)) = &self.scope {
            scope.finish(id, self.upstream_id);
        }
        self.session.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.session.tell(Urgency::Soon);
    }
}
