//! One session: its state, its client scopes, its one upstream connection, its end.
//!
//! [`machine`] and [`gate`] decide, [`connect`], [`attempt`] and [`end`] carry out, [`recover`] tells clients of what was lost.
//! [`clients`] are known by tokens that [`seal`] makes; a [`scope`] is what is held of one, [`lanes`] is who may call, [`stream`]
//! and [`listening`] are about what the server says outside of calls, [`own`] and [`outgoing`] bound what a session tries and sends.
//! Nothing here runs while a session is idle and nobody listens: no task, no timer.

mod asked;
mod attempt;
mod call;
mod clients;
mod connect;
mod desired;
mod end;
mod gate;
mod lanes;
mod link;
mod listening;
mod machine;
mod outbox;
mod outgoing;
mod own;
mod profile;
mod recover;
mod scope;
mod scopes;
mod seal;
mod storm;
mod stream;

pub(crate) use asked::Via;
pub(crate) use call::{Aside, CallError, CallGuard, NotBegun};
pub(crate) use clients::NoScope;
pub(crate) use desired::Desired;
pub use desired::SpecError;
pub(crate) use end::Deadlines;
pub(crate) use gate::Gate;
pub(crate) use lanes::{Lanes, Turn};
pub(crate) use listening::Listener;
pub(crate) use outbox::Inbox;
pub(crate) use outgoing::Outgoing;
pub(crate) use scope::{Refused, Scope};
pub(crate) use seal::Key;
pub(crate) use storm::{LIST_NEWS_PAUSE, ListNews};
pub(crate) use stream::{Keep, Offer, StreamStep};

use crate::budget::Budget;
use crate::metrics::Metrics;
use crate::sync::lock;
use crate::upstream::{Carried, Connection, Credential, Dialer, FIRST_STATE, Trouble};
use attempt::Attempt;
use berth_net::feed::{Feed, Urgency};
use berth_wire::{Activity, EndReport, Failure, SessionReport};
use gate::Moment;
use link::Link;
use listening::Listening;
use machine::Effect;
use outgoing::Places;
use rustls::crypto::SecureRandom;
use scopes::Scopes;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use storm::Storms;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What all sessions share.
pub(crate) struct Shared {
    pub dialer: Arc<Dialer>,
    /// Whether attempts to connect may be made: what is wrong with the server is wrong for all.
    pub gate: Mutex<Gate>,
    pub budget: Budget,
    pub metrics: Metrics,
    pub feed: Feed,
    pub random: &'static dyn SecureRandom,
    /// Seals the session ids of clients whose session brings no key. None if there is no randomness.
    pub scope_key: Option<Key>,
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
    /// Watchers know that the counts above have changed, and have not looked yet.
    counts_told: AtomicBool,
    next_id: AtomicU64,
    lanes: Arc<Lanes>,
    places: Places,
    /// Where running calls take what does not come on their answers, by their ids upstream.
    asides: Mutex<HashMap<u64, mpsc::Sender<Aside>>>,
    /// The streams for what the server says outside of calls.
    pub listening: Listening,
    /// News of the upstream's lists.
    pub storms: Storms,
}

/// The part that changes under the lock.
struct Inner {
    link: Link,
    desired: Arc<Desired>,
    /// Attempts that are not over: the one in flight last, and those before it that are still being cleaned up after.
    attempts: Vec<Attempt>,
    connection: Option<Arc<Connection>>,
    /// Parameters of the `initialize` that made the last connection, for the next one.
    params: Option<Arc<str>>,
    /// Which state of the upstream's the next connection begins; see [`recover`].
    states: u64,
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
            credential: Credential::new(desired.carried.clone(), desired.target.trust.clone()),
            inner: Mutex::new(Inner {
                link: Link::new(),
                trouble: trouble_after(&desired.carried, None, None),
                desired: Arc::new(desired),
                attempts: Vec::new(),
                connection: None,
                params: None,
                states: FIRST_STATE,
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
            counts_told: AtomicBool::new(false),
            next_id: AtomicU64::new(1),
            lanes: Arc::default(),
            places: Places::default(),
            asides: Mutex::default(),
            listening: Listening::default(),
            storms: Storms::default(),
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
        self.credential.replace(desired.carried.clone(), desired.target.trust.clone());
        let mut trouble = inner.trouble.take();
        if desired.target.trust != inner.desired.target.trust {
            lock(&self.shared.gate).trust_changed();
            trouble = trouble.filter(|trouble| trouble.failure != Failure::TLSUntrusted);
        }
        inner.trouble = trouble_after(&desired.carried, Some(&inner.desired.carried), trouble);
        if !desired.has_access_of(&inner.desired) {
            inner.link.changed();
        }
        inner.desired = Arc::new(desired);
        drop(inner);
        self.tell(Urgency::Now);
    }

    /// Whether the session still takes work.
    pub(crate) fn takes_work(&self) -> bool {
        lock(&self.inner).link.takes_work()
    }

    /// Observed state.
    pub(crate) fn report(&self) -> SessionReport {
        // Before the counts are read: one that changes after that is told again.
        self.counts_told.swap(false, Ordering::AcqRel);
        let inner = lock(&self.inner);
        SessionReport {
            uid: self.uid.to_string(),
            generation: inner.desired.generation,
            state: inner.link.reported(),
            failure: inner.trouble.as_ref().map(|trouble| trouble.failure),
            message: inner.trouble.as_ref().map(|trouble| trouble.message.clone()),
            next_retry_unix_millis: inner
                .link
                .is_backing_off()
                .then(|| inner.link.next_try(&self.shared.gate, Instant::now()))
                .flatten(),
            activity: Activity {
                requests: self.requests.load(Ordering::Relaxed),
                in_flight: self.in_flight.load(Ordering::Relaxed),
                connects: inner.link.attempts(),
            },
            end: inner.end,
        }
    }

    /// The connection, if there is one.
    pub(crate) fn established(&self) -> Option<Arc<Connection>> {
        lock(&self.inner).connection.clone()
    }

    /// Notes what the last exchange with the upstream says of it: trouble, or that it is well again.
    pub(crate) fn note(&self, trouble: Option<&Trouble>) {
        if lock(&self.inner).note(trouble) {
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

    /// Any number, for the jitter of pauses; without randomness there is none.
    pub(crate) fn random(&self) -> u32 {
        let mut random = [0; 4];
        let _ = self.shared.random.fill(&mut random);
        u32::from_ne_bytes(random)
    }

    fn tell(&self, urgency: Urgency) {
        match urgency {
            Urgency::Now => self.listening.wake(),
            Urgency::Soon if self.counts_told.swap(true, Ordering::AcqRel) => return,
            Urgency::Soon => {}
        }
        self.shared.feed.mark(&self.uid, urgency);
    }
}

impl Inner {
    /// Notes what the upstream said last; true if that is news. As long as the credential is withheld, that is the trouble, whatever
    /// becomes of what was sent before.
    fn note(&mut self, trouble: Option<&Trouble>) -> bool {
        let is_withheld = matches!(self.desired.carried, Carried::Withheld(_));
        if is_withheld || self.trouble.as_ref() == trouble {
            return false;
        }
        self.trouble = trouble.cloned();
        true
    }
}

impl Moment {
    /// Now, with what `session` has of randomness.
    fn new(session: &Session) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            now: Instant::now(),
            unix_millis: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
            random: session.random(),
        }
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
