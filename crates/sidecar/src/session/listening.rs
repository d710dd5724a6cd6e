//! The streams of a session's clients, and whether the upstream has one for them.

use super::Session;
use super::scope::Scope;
use super::stream::{Keep, Offer, Policy, Seen, StreamStep};
use crate::sync::lock;
use berth_net::metrics::Held;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Books of the streams.
#[derive(Default)]
pub(crate) struct Listening {
    state: Mutex<State>,
    /// Tells the one who keeps the upstream's stream that something changed.
    changed: Notify,
    /// Grows when the upstream said whether it has a stream.
    offers: watch::Sender<u64>,
    next: AtomicU64,
    /// Number of the last connection on which subscriptions were made again.
    resubscribed: AtomicU64,
}

#[derive(Default)]
struct State {
    policy: Policy,
    listeners: usize,
    left: Option<Instant>,
    /// Somebody keeps the upstream's stream.
    kept: bool,
}

/// A client's stream in the books, until this is dropped.
pub(crate) struct Listener {
    session: Arc<Session>,
    pub scope: Arc<Scope>,
    /// Names the stream within its session.
    pub id: u64,
    _held: Held,
}

impl Session {
    /// Enters a stream of `scope`. True if the caller has to see to it that the upstream's stream is kept.
    pub(crate) fn listen(self: &Arc<Self>, scope: Arc<Scope>) -> (Listener, bool) {
        let id = self.listening.next.fetch_add(1, Ordering::Relaxed);
        let held = Held::new(&self.shared.metrics.client_streams);
        let mut state = lock(&self.listening.state);
        state.listeners += 1;
        state.left = None;
        let to_keep = !std::mem::replace(&mut state.kept, true);
        drop(state);
        self.listening.wake();
        (Listener { session: self.clone(), scope, id, _held: held }, to_keep)
    }

    /// Cancelled when the end begins.
    pub(crate) fn fenced(&self) -> &CancellationToken {
        &self.fence
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.scope.close_stream(self.id);
        let mut state = lock(&self.session.listening.state);
        state.listeners -= 1;
        if state.listeners == 0 {
            state.left = Some(Instant::now());
        }
        drop(state);
        self.session.listening.wake();
    }
}

impl State {
    fn seen(&self, connection: Option<u64>) -> Seen {
        Seen { now: Instant::now(), connection, listeners: self.listeners, left: self.left }
    }
}

impl Listening {
    /// Something changed: who listens, the connection, or what requests carry.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Returns when something changed since the last look.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What to do while no stream is open; `usable` if the upstream may be asked for one at all. After [`StreamStep::Stop`]
    /// nobody keeps the stream any more.
    pub(crate) fn step(&self, session: &Session, usable: bool) -> StreamStep {
        let connection = session.established().filter(|_| usable).map(|connection| connection.epoch);
        let mut state = lock(&self.state);
        let seen = state.seen(connection);
        let step = state.policy.step(seen);
        if step == StreamStep::Stop {
            state.kept = false;
        }
        step
    }

    /// What to do with the open stream of connection `epoch`.
    pub(crate) fn keep(&self, session: &Session, epoch: u64) -> Keep {
        let connection = session.established().map(|connection| connection.epoch);
        Policy::keep(lock(&self.state).seen(connection), epoch)
    }

    /// Nobody keeps the stream any more, as the session ends or the task that did has panicked.
    pub(crate) fn abandon(&self) {
        lock(&self.state).kept = false;
    }

    /// The upstream said whether it has a stream.
    pub(crate) fn answered(&self, epoch: u64, offer: Offer) {
        lock(&self.state).policy.answered(epoch, offer);
        self.offers.send_modify(|count| *count += 1);
    }

    /// A stream ended, or could not be opened.
    pub(crate) fn ended(&self, asked: Option<Duration>, random: u32) {
        lock(&self.state).policy.ended(Instant::now(), asked, random);
    }

    /// True once for each connection: whoever asks makes the subscriptions again on it.
    pub(crate) fn begins(&self, epoch: u64) -> bool {
        self.resubscribed.fetch_max(epoch, Ordering::AcqRel) < epoch
    }

    /// Whether the upstream of connection `epoch` has a stream; waits for its word.
    pub(crate) async fn offer(&self, epoch: u64) -> Offer {
        let mut offers = self.offers.subscribe();
        loop {
            let offer = lock(&self.state).policy.offer(epoch);
            if offer != Offer::Unknown || offers.changed().await.is_err() {
                return offer;
            }
        }
    }
}
