//! One attempt to connect: a task that belongs to no caller.
//!
//! It is settled first, within the connect timeout, which is what callers wait for; what it may have opened is ended after that.

use super::link::Failure;
use super::{Effect, Moment, Session};
use crate::fault;
use crate::metrics::ConnectResult;
use crate::sync::lock;
use crate::upstream::handshake::{Failed, Handshake};
use crate::upstream::{Connection, Transport, Trouble};
use berth_net::feed::Urgency;
use berth_wire::{Failure as Reason, Outcome};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

/// An attempt in flight, or how it ended.
#[derive(Clone)]
pub(crate) struct Attempt {
    pub(super) epoch: u64,
    progress: watch::Receiver<Progress>,
}

/// How far an attempt is.
#[derive(Clone, Default)]
struct Progress {
    /// How it ended.
    ended: Option<Ended>,
    /// What it left behind at the upstream, once that is known.
    leftover: Option<Outcome>,
}

/// How an attempt ended.
#[derive(Clone)]
pub(super) enum Ended {
    Connected(Arc<Connection>),
    Failed(Trouble),
    /// The session began to end; so the upstream session, if one was opened, is closed again.
    Late,
}

impl Attempt {
    /// Waits until it has ended; `None` if it panicked.
    pub(super) async fn ended(&mut self) -> Option<Ended> {
        let progress = self.progress.wait_for(|progress| progress.ended.is_some()).await;
        progress.ok().and_then(|progress| progress.ended.clone())
    }

    /// Waits until nothing of it runs any more, and says what it leaves behind.
    pub(super) async fn leftover(&mut self) -> Outcome {
        let progress = self.progress.wait_for(|progress| progress.leftover.is_some()).await;
        // Of one that panicked nobody knows how far it came.
        progress.ok().and_then(|progress| progress.leftover).unwrap_or(Outcome::Unconfirmed)
    }
}

/// An attempt that runs. Dropped before it is over, by a panic, it counts as failed.
pub(super) struct Running {
    session: Arc<Session>,
    epoch: u64,
    progress: watch::Sender<Progress>,
    is_over: bool,
}

impl Running {
    /// The attempt `epoch`, to be run, and to be waited for.
    pub(super) fn new(session: Arc<Session>, epoch: u64) -> (Self, Attempt) {
        let (sender, progress) = watch::channel(Progress::default());
        (Self { session, epoch, progress: sender, is_over: false }, Attempt { epoch, progress })
    }

    pub(super) async fn run(mut self, params: Arc<str>) {
        let handshake = self.handshake(&params);
        let access = self.session.desired();
        match handshake.run().await {
            Ok(connection) => self.established(Arc::new(connection), params).await,
            Err((failed, rest)) => {
                let ended = match failed {
                    Failed::Abandoned => self.abandoned(),
                    Failed::Trouble(trouble) => self.failed(trouble, &access),
                };
                self.progress.send_modify(|progress| progress.ended = Some(ended));
                let leftover = rest.clean_up().await;
                self.over(leftover);
            }
        }
    }

    fn handshake(&self, params: &Arc<str>) -> Handshake {
        let session = &self.session;
        let shared = &session.shared;
        let (desired, state) = {
            let inner = lock(&session.inner);
            (inner.desired.clone(), inner.states)
        };
        Handshake {
            epoch: self.epoch,
            state,
            server: desired.server.name.clone(),
            transport: Transport::new(
                shared.dialer.clone(),
                desired.target.clone(),
                session.credential.clone(),
                shared.metrics.connections.clone(),
            ),
            id: session.fresh_upstream_id(),
            params: params.clone(),
            connect: desired.connect(),
            close: desired.close(),
            fence: session.fence.clone(),
        }
    }

    async fn established(&mut self, connection: Arc<Connection>, params: Arc<str>) {
        fault::point("publish");
        let session = &self.session;
        let published = {
            let mut inner = lock(&session.inner);
            let effect = inner.link.established(self.epoch, &session.shared.gate, Moment::new(session));
            if effect == Effect::Publish {
                inner.connection = Some(connection.clone());
                inner.params = Some(params);
                inner.note(None);
            }
            effect == Effect::Publish
        };
        if published {
            self.settle(ConnectResult::Connected, None);
            self.progress.send_modify(|progress| progress.ended = Some(Ended::Connected(connection)));
            self.over(Outcome::NotNeeded);
            return;
        }
        self.settle(ConnectResult::Late, None);
        self.progress.send_modify(|progress| progress.ended = Some(Ended::Late));
        let outcome = connection.delete(Instant::now() + self.session.desired().close()).await;
        connection.close().await;
        self.over(outcome);
    }

    fn abandoned(&self) -> Ended {
        self.give_up();
        self.settle(ConnectResult::Abandoned, None);
        Ended::Late
    }

    /// The attempt is over and says nothing of the server.
    fn give_up(&self) {
        let session = &self.session;
        let at = Moment::new(session);
        lock(&session.inner).link.failed(self.epoch, Failure::Own(None), &session.shared.gate, at);
    }

    /// The attempt failed, which began with what `access` wants.
    fn failed(&self, mut trouble: Trouble, access: &super::Desired) -> Ended {
        let session = &self.session;
        let mut inner = lock(&session.inner);
        let is_as_now = inner.desired.has_access_of(access);
        let failure = match trouble.failure {
            Reason::Unauthorized if is_as_now => Failure::Credential(&trouble),
            // A limit on a credential that nobody else has is nobody else's.
            Reason::RateLimited if access.own_credential => {
                Failure::Own(Some(&trouble).filter(|_| is_as_now))
            }
            // Somebody has mended meanwhile whom the session trusts.
            Reason::TLSUntrusted if !is_as_now => Failure::Own(None),
            _ if trouble.is_the_servers() => Failure::Server(&trouble),
            // One that was refused what it no longer carries may try again.
            _ => Failure::Own(Some(&trouble).filter(|_| is_as_now)),
        };
        trouble.retry_after =
            inner.link.failed(self.epoch, failure, &session.shared.gate, Moment::new(session));
        inner.note(Some(&trouble));
        drop(inner);
        self.settle(trouble.failure.into(), Some(&trouble));
        Ended::Failed(trouble)
    }

    /// Counts, logs and tells.
    fn settle(&self, result: ConnectResult, trouble: Option<&Trouble>) {
        let session = &self.session;
        session.shared.metrics.count_connect(result);
        let message = trouble.map(|trouble| trouble.message.as_str());
        let server = session.desired().server.name.clone();
        tracing::info!(session = %session.uid, server, epoch = self.epoch, ?result, message, "attempt to connect is over");
        session.tell(Urgency::Now);
    }

    /// Nothing of it runs any more.
    fn over(&mut self, leftover: Outcome) {
        self.is_over = true;
        self.forget(leftover);
        self.progress.send_modify(|progress| progress.leftover = Some(leftover));
    }

    fn forget(&self, leftover: Outcome) {
        let mut inner = lock(&self.session.inner);
        inner.unconfirmed |= leftover == Outcome::Unconfirmed;
        if inner.link.takes_work() {
            // An end that has begun still has to read from it what was left behind.
            inner.attempts.retain(|attempt| attempt.epoch != self.epoch);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            self.give_up();
            self.forget(Outcome::Unconfirmed);
            self.session.tell(Urgency::Now);
        }
    }
}

#[cfg(test)]
mod tests;
