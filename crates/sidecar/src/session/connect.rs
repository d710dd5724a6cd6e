//! The lazy, single-flight connect.
//!
//! An attempt is a task of its own: a caller that goes away does not abort it, its own bound does. Everybody who needs the
//! upstream meanwhile waits for the same attempt. A failure, a panic too, is told to those who waited and then forgotten.

use super::{CallError, Effect, Event, Session};
use crate::metrics::ConnectResult;
use crate::sync::lock;
use crate::upstream::handshake::{Failed, Handshake};
use crate::upstream::{Carried, Connection, Site, Step, Transport, Trouble};
use berth_net::feed::Urgency;
use berth_wire::{Failure, Outcome};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

/// Lost upstream sessions that are remembered for the end.
const MAX_UNCLOSED: usize = 8;

/// An attempt in flight, or how it ended.
#[derive(Clone)]
pub(crate) struct Attempt(watch::Receiver<Option<Ended>>);

/// How an attempt ended.
#[derive(Clone)]
enum Ended {
    Connected(Arc<Connection>),
    Failed(Trouble),
    /// The session began to end; so the upstream session, if one was opened, was closed again.
    Late(Outcome),
}

impl Attempt {
    /// Waits until it is over; `None` if it panicked.
    async fn ended(&mut self) -> Option<Ended> {
        self.0.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone())
    }

    /// What an attempt that the end has joined leaves behind.
    pub(super) async fn leftover(&mut self) -> Outcome {
        match self.ended().await {
            Some(Ended::Late(outcome)) => outcome,
            Some(Ended::Failed(trouble)) => trouble.leftover,
            Some(Ended::Connected(_)) => Outcome::NotNeeded,
            None => Outcome::Unconfirmed,
        }
    }
}

impl Session {
    /// The connection, made if there is none. `params` are those of the client's `initialize`; a call that finds the
    /// connection lost gives none, and the last ones are used.
    pub(crate) async fn connection(
        self: &Arc<Self>,
        params: Option<&Arc<str>>,
    ) -> Result<Arc<Connection>, CallError> {
        let mut attempt = match self.need(params)? {
            Need::Use(connection) => return Ok(connection),
            Need::Wait(attempt) => attempt,
        };
        let ended = tokio::select! {
            biased;
            ended = attempt.ended() => ended,
            () = self.fence.cancelled() => return Err(CallError::Ending),
        };
        match ended {
            Some(Ended::Connected(connection)) => Ok(connection),
            Some(Ended::Failed(trouble)) => Err(CallError::Trouble(trouble)),
            Some(Ended::Late(_)) => Err(CallError::Ending),
            None => {
                Err(CallError::Trouble(self.internal("the attempt to connect failed inside the sidecar")))
            }
        }
    }

    fn need(self: &Arc<Self>, params: Option<&Arc<str>>) -> Result<Need, CallError> {
        let mut inner = lock(&self.inner);
        if let Carried::Withheld(withheld) = &inner.desired.carried {
            return Err(CallError::Trouble(Trouble::withheld(withheld)));
        }
        let Some(params) = params.cloned().or_else(|| inner.params.clone()) else {
            let server = &inner.desired.server.name;
            let site = Site { server, step: Step::Connect };
            let trouble = site.trouble(Failure::ProtocolError, "no client has sent initialize yet");
            return Err(CallError::Trouble(trouble));
        };
        match inner.machine.step(Event::Needed) {
            Effect::UseConnection => inner.connection.clone().map(Need::Use).ok_or(CallError::Ending),
            Effect::StartAttempt(epoch) => {
                let (done, attempt) = watch::channel(None);
                let attempt = Attempt(attempt);
                inner.attempt = Some(attempt.clone());
                drop(inner);
                self.tell(Urgency::Now);
                let running = Running { session: self.clone(), epoch, settled: false };
                self.shared.tasks.spawn(running.run(params, done));
                Ok(Need::Wait(attempt))
            }
            Effect::JoinAttempt => inner.attempt.clone().map(Need::Wait).ok_or(CallError::Ending),
            _ => Err(CallError::Ending),
        }
    }

    /// Takes `connection` out of use, as it was lost, and ends its upstream session if that can still be there. The next
    /// request that needs the upstream makes a new one.
    pub(crate) fn lost(self: &Arc<Self>, connection: &Arc<Connection>, session_is_gone: bool) {
        let mut inner = lock(&self.inner);
        if inner.machine.step(Event::Lost(connection.epoch)) != Effect::Evict {
            return;
        }
        inner.connection = None;
        if session_is_gone {
            connection.mark_gone();
        }
        if inner.unclosed.len() >= MAX_UNCLOSED {
            let forgotten = inner.unclosed.remove(0);
            inner.unconfirmed |= !forgotten.is_gone();
        }
        inner.unclosed.push(connection.clone());
        let server = inner.desired.server.name.clone();
        drop(inner);
        self.spawn(self.clone().retire(connection.clone()));
        tracing::info!(session = %self.uid, server, epoch = connection.epoch, session_is_gone, "upstream connection evicted");
        self.tell(Urgency::Now);
    }

    /// Ends a lost connection's upstream session and sockets once the calls that still use it are over. What the session's
    /// end interrupts, or the upstream does not confirm, the end tries again.
    async fn retire(self: Arc<Self>, connection: Arc<Connection>) {
        let retired = async {
            connection.users.close();
            connection.users.wait().await;
            let desired = self.desired();
            if connection.delete(Instant::now() + desired.close()).await != Outcome::Unconfirmed {
                connection.close().await;
                lock(&self.inner).unclosed.retain(|unclosed| unclosed.epoch != connection.epoch);
            }
        };
        tokio::select! {
            () = retired => {}
            () = self.fence.cancelled() => {}
        }
    }

    fn internal(&self, text: &str) -> Trouble {
        let desired = self.desired();
        Site { server: &desired.server.name, step: Step::Connect }.trouble(Failure::UpstreamUnreachable, text)
    }
}

enum Need {
    Use(Arc<Connection>),
    Wait(Attempt),
}

/// An attempt that runs. Dropped unsettled, by a panic, it counts as failed.
struct Running {
    session: Arc<Session>,
    epoch: u64,
    settled: bool,
}

impl Running {
    async fn run(mut self, params: Arc<str>, done: watch::Sender<Option<Ended>>) {
        let desired = self.session.desired();
        let shared = &self.session.shared;
        let gauge = shared.metrics.connections.clone();
        let handshake = Handshake {
            epoch: self.epoch,
            server: desired.server.name.clone(),
            transport: Transport::new(
                shared.dialer.clone(),
                desired.target.clone(),
                self.session.credential.clone(),
                gauge,
            ),
            id: self.session.fresh_upstream_id(),
            params: params.clone(),
            connect: desired.connect(),
            close: desired.close(),
            fence: self.session.fence.clone(),
        };
        let result = handshake.run().await;
        let ended = match result {
            Ok(connection) => self.established(Arc::new(connection), params).await,
            Err(failed) => self.failed(failed),
        };
        let _ = done.send(Some(ended));
    }

    async fn established(&mut self, connection: Arc<Connection>, params: Arc<str>) -> Ended {
        let session = &self.session;
        let effect = {
            let mut inner = lock(&session.inner);
            let effect = inner.machine.step(Event::Established(self.epoch));
            if effect == Effect::Publish {
                inner.connection = Some(connection.clone());
                inner.params = Some(params);
                inner.trouble = None;
                inner.attempt = None;
            }
            effect
        };
        self.settled = true;
        if effect == Effect::Publish {
            self.settle(ConnectResult::Connected, None);
            return Ended::Connected(connection);
        }
        self.settle(ConnectResult::Late, None);
        let desired = self.session.desired();
        let outcome = connection.delete(Instant::now() + desired.close()).await;
        connection.close().await;
        Ended::Late(outcome)
    }

    fn failed(&mut self, failed: Failed) -> Ended {
        self.settled = true;
        let trouble = match failed {
            Failed::Abandoned => {
                self.settle(ConnectResult::Abandoned, None);
                return Ended::Late(Outcome::NotNeeded);
            }
            Failed::Trouble(trouble) => trouble,
        };
        let mut inner = lock(&self.session.inner);
        inner.machine.step(Event::Failed(self.epoch));
        inner.trouble = Some(trouble.clone());
        inner.unconfirmed |= trouble.leftover == Outcome::Unconfirmed;
        if inner.machine.takes_work() {
            // An end that has begun still has to read from it what was left behind.
            inner.attempt = None;
        }
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
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.settled {
            let mut inner = lock(&self.session.inner);
            inner.machine.step(Event::Failed(self.epoch));
            // Nobody knows how far it came.
            inner.unconfirmed = true;
            drop(inner);
            self.session.tell(Urgency::Now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::session::Desired;
    use berth_wire::SessionState;

    fn session() -> Arc<Session> {
        let desired = Desired::new(fixture::spec("Bearer first")).unwrap();
        Session::new("s".into(), desired, fixture::shared())
    }

    #[tokio::test]
    async fn an_attempt_that_panics_fails_those_who_wait_and_nobody_else() {
        let session = session();
        let (done, attempt) = watch::channel(None);
        {
            let mut inner = lock(&session.inner);
            assert_eq!(inner.machine.step(Event::Needed), Effect::StartAttempt(1));
            inner.attempt = Some(Attempt(attempt));
        }
        let running = Running { session: session.clone(), epoch: 1, settled: false };
        let panics = async move {
            let _held = (running, done);
            panic!("an attempt that panics");
        };
        let params: Arc<str> = "{}".into();
        let (waited, _) = tokio::join!(session.connection(Some(&params)), tokio::spawn(panics));
        assert!(
            matches!(waited, Err(CallError::Trouble(trouble)) if trouble.message.contains("inside the sidecar"))
        );
        assert_eq!(session.report().state, SessionState::Idle);
        assert!(lock(&session.inner).unconfirmed, "nobody knows what it left behind");
        // The next one is an attempt of its own, with an outcome of its own: nothing listens there.
        let next = session.connection(Some(&params)).await;
        assert!(
            matches!(next, Err(CallError::Trouble(trouble)) if trouble.message.contains("cannot connect"))
        );
        assert_eq!(session.report().activity.connects, 2);
    }
}
