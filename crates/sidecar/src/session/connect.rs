//! The lazy, single-flight connect.
//!
//! An [attempt](super::attempt) is a task of its own: a caller that goes away does not abort it, its own bound does. Everybody
//! who needs the upstream meanwhile waits for the same attempt. A failure, a panic too, is told to those who waited; what it means
//! for later ones is decided by the [link](super::link) and the gate.

use super::attempt::{Attempt, Ended, Running};
use super::{CallError, Effect, Session};
use crate::sync::lock;
use crate::upstream::{Carried, Connection, Site, Step, Trouble};
use berth_net::feed::Urgency;
use berth_wire::{Failure, Outcome};
use std::sync::Arc;
use tokio::time::Instant;

/// Attempts that failed and are still being cleaned up after, while another may begin.
const MAX_CLEANING: usize = 16;
/// Lost upstream sessions that are remembered for the end.
const MAX_UNCLOSED: usize = 8;

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
            Some(Ended::Late) => Err(CallError::Ending),
            None => {
                Err(CallError::Trouble(self.trouble(
                    Failure::UpstreamUnreachable,
                    "the attempt to connect failed inside the sidecar",
                )))
            }
        }
    }

    fn need(self: &Arc<Self>, params: Option<&Arc<str>>) -> Result<Need, CallError> {
        let mut inner = lock(&self.inner);
        if let Carried::Withheld(withheld) = &inner.desired.carried {
            return Err(CallError::Trouble(Trouble::withheld(withheld)));
        }
        let Some(params) = params.cloned().or_else(|| inner.params.clone()) else {
            drop(inner);
            let text = "no client has sent initialize yet";
            return Err(CallError::Trouble(self.trouble(Failure::ProtocolError, text)));
        };
        if inner.link.would_begin() && inner.attempts.len() >= MAX_CLEANING {
            drop(inner);
            let text = format!(
                "{MAX_CLEANING} attempts that failed are still being cleaned up after; try again later"
            );
            return Err(CallError::Trouble(self.trouble(Failure::UpstreamUnreachable, &text)));
        }
        let needed = inner.link.need(&self.shared.gate, Instant::now());
        match needed {
            Ok(Effect::UseConnection) => inner.connection.clone().map(Need::Use).ok_or(CallError::Ending),
            Ok(Effect::StartAttempt(epoch)) => {
                let (running, attempt) = Running::new(self.clone(), epoch);
                inner.attempts.push(attempt.clone());
                drop(inner);
                self.tell(Urgency::Now);
                self.shared.tasks.spawn(running.run(params));
                Ok(Need::Wait(attempt))
            }
            Ok(Effect::JoinAttempt) => {
                inner.attempts.last().cloned().map(Need::Wait).ok_or(CallError::Ending)
            }
            Ok(_) => Err(CallError::Ending),
            Err(trouble) => {
                // The time that is left is another each time, and no news.
                let is_known = |known: &Trouble| known.message == trouble.message;
                if !inner.trouble.as_ref().is_some_and(is_known) && inner.note(Some(&trouble)) {
                    drop(inner);
                    self.tell(Urgency::Now);
                }
                Err(CallError::Trouble(trouble))
            }
        }
    }

    /// Takes `connection` out of use, as it was lost, and ends its upstream session if that can still be there. The next
    /// request that needs the upstream makes a new one.
    pub(crate) fn lost(self: &Arc<Self>, connection: &Arc<Connection>, session_is_gone: bool) {
        let mut inner = lock(&self.inner);
        if inner.link.lost(connection.epoch) != Effect::Evict {
            return;
        }
        inner.connection = None;
        if connection.has_session_id() {
            // Whatever was bound to it is gone, with the session or by the DELETE that follows.
            inner.states += 1;
        }
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

    fn trouble(&self, failure: Failure, text: &str) -> Trouble {
        let desired = self.desired();
        Site { server: &desired.server.name, step: Step::Connect }.trouble(failure, text)
    }
}

enum Need {
    Use(Arc<Connection>),
    Wait(Attempt),
}
