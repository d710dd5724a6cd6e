//! What clients learn of an upstream session that was lost with what was bound to it.
//!
//! The upstream's state is numbered within a session: it grows by one with each connection that is lost and had a session id. A
//! client scope remembers the state that its client knows of; a [`Connection`] has the one that it began.

use super::{CallGuard, Scope, Session};
use crate::sync::lock;
use crate::upstream::{Connection, FIRST_STATE};
use berth_mcp::frame::mark_reinitialized;
use berth_wire::OnStateLost;
use std::sync::atomic::{AtomicU64, Ordering};

/// The state of the upstream's that a client knows of.
#[derive(Debug)]
pub(crate) struct Known(AtomicU64);

impl Known {
    /// That of a client whose scope is opened now, on `connection`.
    pub(crate) fn of(connection: &Connection) -> Self {
        Self(AtomicU64::new(connection.state))
    }

    /// That of a client whose scope outlived the sidecar in which it was opened: older than any here.
    pub(crate) fn none() -> Self {
        Self(AtomicU64::new(0))
    }

    /// That of a client which knows of `state`.
    pub(super) fn of_state(state: u64) -> Self {
        Self(AtomicU64::new(state))
    }

    /// The number of the state.
    pub(super) fn state(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether what the client knows is gone, as `connection` began anew.
    fn is_lost_on(&self, connection: &Connection) -> bool {
        connection.has_session_id() && self.0.load(Ordering::Acquire) < connection.state
    }

    /// The client is told of the state of `connection`; true for the first who has to tell.
    fn learn(&self, connection: &Connection) -> bool {
        connection.has_session_id() && self.0.fetch_max(connection.state, Ordering::AcqRel) < connection.state
    }
}

impl CallGuard {
    /// The last message of this call, as its client gets it: the first result after a loss is marked.
    pub(crate) fn mark(&self, connection: &Connection, text: String) -> String {
        if !self.scope.known.is_lost_on(connection) {
            return text;
        }
        match mark_reinitialized(&text) {
            Some(marked) if self.scope.known.learn(connection) => marked,
            // It is an error, or another call has told already.
            _ => text,
        }
    }
}

impl Session {
    /// Whether the client of `scope` has to begin anew before it may use `connection`.
    pub(crate) fn is_shut_out(&self, scope: &Scope, connection: &Connection) -> bool {
        self.desired().on_state_lost == OnStateLost::Fail && scope.known.is_lost_on(connection)
    }

    /// Whether the client of `scope` has to begin anew, as far as can be told without a connection.
    pub(crate) fn has_lost_state_of(&self, scope: &Scope) -> bool {
        let inner = lock(&self.inner);
        inner.desired.on_state_lost == OnStateLost::Fail
            && inner.states > FIRST_STATE
            && scope.known.0.load(Ordering::Acquire) < inner.states
    }
}
