//! One session: its state, its client scopes, its one upstream connection, its end.
//!
//! [`machine`] decides, [`connect`] and [`end`] carry out. Nothing here runs while a session is idle: no task, no timer.

mod call;
mod connect;
mod desired;
mod end;
mod machine;
mod scope;

pub(crate) use call::{CallError, CallGuard};
pub(crate) use connect::Attempt;
pub(crate) use desired::Desired;
pub use desired::SpecError;
pub(crate) use end::Deadlines;
pub(crate) use scope::{Scope, fresh_id};

use crate::budget::Budget;
use crate::metrics::Metrics;
use crate::sync::lock;
use crate::upstream::{Carried, Connection, Credential, Dialer, Trouble};
use berth_net::feed::{Feed, Urgency};
use berth_wire::{Activity, EndReport, Failure, SessionReport};
use machine::{Effect, Event, Machine};
use rustls::crypto::SecureRandom;
use scope::Scopes;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What all sessions share.
pub(crate) struct Shared {
    pub dialer: Arc<Dialer>,
    pub budget: Budget,
    pub metrics: Metrics,
    pub feed: Feed,
    pub random: &'static dyn SecureRandom,
    /// Attempts and ends: they belong to no caller, and the pod's shutdown waits for them.
    pub tasks: TaskTracker,
}

/// One session that holds a slot.
pub(crate) struct Session {
    pub uid: Arc<str>,
    pub shared: Arc<Shared>,
    /// What its requests carry; replaced under the lock of `inner`.
    credential: Arc<Credential>,
    inner: Mutex<Inner>,
    /// Cancelled when the end begins: no new work, no reconnect.
    fence: CancellationToken,
    /// Cancelled when the drain is over: running calls stop.
    cancel: CancellationToken,
    /// Running calls and what they started.
    calls: TaskTracker,
    requests: AtomicU64,
    in_flight: AtomicU32,
    next_id: AtomicU64,
}

/// The part that changes under the lock.
struct Inner {
    machine: Machine,
    desired: Arc<Desired>,
    /// The attempt in flight.
    attempt: Option<Attempt>,
    connection: Option<Arc<Connection>>,
    /// Parameters of the `initialize` that made the last connection, for the next one.
    params: Option<Arc<str>>,
    trouble: Option<Trouble>,
    /// Lost connections whose upstream sessions or sockets are not known to be gone.
    unclosed: Vec<Arc<Connection>>,
    /// Something may be left at the upstream that nobody can name any more; the end reports it.
    unconfirmed: bool,
    scopes: Scopes,
    end: Option<EndReport>,
}

impl Session {
    pub(crate) fn new(uid: Arc<str>, desired: Desired, shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            uid,
            shared,
            credential: Credential::new(desired.carried.clone()),
            inner: Mutex::new(Inner {
                machine: Machine::new(),
                trouble: trouble_after(&desired.carried, None, None),
                desired: Arc::new(desired),
                attempt: None,
                connection: None,
                params: None,
                unclosed: Vec::new(),
                unconfirmed: false,
                scopes: Scopes::default(),
                end: None,
            }),
            fence: CancellationToken::new(),
            cancel: CancellationToken::new(),
            calls: TaskTracker::new(),
            requests: AtomicU64::new(0),
            in_flight: AtomicU32::new(0),
            next_id: AtomicU64::new(1),
        })
    }

    /// What is wanted now.
    pub(crate) fn desired(&self) -> Arc<Desired> {
        lock(&self.inner).desired.clone()
    }

    /// Takes up a newer wish. Calls that run keep the timeouts that they began with; whatever is sent from now on, for them too,
    /// carries what this wish says.
    pub(crate) fn update(&self, desired: Desired) {
        let mut inner = lock(&self.inner);
        self.credential.replace(desired.carried.clone());
        let trouble = inner.trouble.take();
        inner.trouble = trouble_after(&desired.carried, Some(&inner.desired.carried), trouble);
        inner.desired = Arc::new(desired);
        drop(inner);
        self.tell(Urgency::Now);
    }

    /// Whether the session still takes work.
    pub(crate) fn takes_work(&self) -> bool {
        lock(&self.inner).machine.takes_work()
    }

    /// Observed state.
    pub(crate) fn report(&self) -> SessionReport {
        let inner = lock(&self.inner);
        SessionReport {
            uid: self.uid.to_string(),
            generation: inner.desired.generation,
            state: inner.machine.state(),
            failure: inner.trouble.as_ref().map(|trouble| trouble.failure),
            message: inner.trouble.as_ref().map(|trouble| trouble.message.clone()),
            activity: Activity {
                requests: self.requests.load(Ordering::Relaxed),
                in_flight: self.in_flight.load(Ordering::Relaxed),
                connects: inner.machine.attempts(),
            },
            end: inner.end,
        }
    }

    /// Adds a client scope; none if the end began meanwhile or there is no randomness.
    pub(crate) fn open_scope(&self) -> Option<String> {
        let id = fresh_id(self.shared.random)?;
        let mut inner = lock(&self.inner);
        if !inner.machine.takes_work() {
            return None;
        }
        inner.scopes.add(id.clone(), &self.shared.metrics.scopes);
        Some(id)
    }

    /// The client scope `id`.
    pub(crate) fn scope(&self, id: &str) -> Option<Arc<Scope>> {
        lock(&self.inner).scopes.get(id)
    }

    /// Ends the client scope `id`; its running calls go on. False if there is none.
    pub(crate) fn close_scope(&self, id: &str) -> bool {
        lock(&self.inner).scopes.remove(id)
    }

    /// The connection, if there is one.
    pub(crate) fn established(&self) -> Option<Arc<Connection>> {
        lock(&self.inner).connection.clone()
    }

    /// Notes what the last exchange with the upstream says of it: trouble, or that it is well again.
    pub(crate) fn note(&self, trouble: Option<&Trouble>) {
        let mut inner = lock(&self.inner);
        if inner.trouble.as_ref() != trouble {
            inner.trouble = trouble.cloned();
            drop(inner);
            self.tell(Urgency::Now);
        }
    }

    /// Cancelled when running calls must stop.
    pub(crate) fn cancelled(&self) -> &CancellationToken {
        &self.cancel
    }

    /// An id that no other request of this session has had upstream.
    pub(crate) fn fresh_upstream_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn tell(&self, urgency: Urgency) {
        self.shared.feed.mark(&self.uid, urgency);
    }
}

/// What is known to be wrong once a session carries `now` instead of `before`. Trouble with a credential is over with it.
fn trouble_after(now: &Carried, before: Option<&Carried>, trouble: Option<Trouble>) -> Option<Trouble> {
    match (now, before) {
        (Carried::Withheld(withheld), _) => Some(Trouble::withheld(withheld)),
        (Carried::Headers(_), None | Some(Carried::Withheld(_))) => None,
        (Carried::Headers(now), Some(Carried::Headers(before))) => {
            trouble.filter(|trouble| trouble.failure != Failure::Unauthorized || now == before)
        }
    }
}
