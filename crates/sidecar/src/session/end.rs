//! The end of a session: fence, drain, close, remove. Each step is bounded, each outcome reported.

use super::{Effect, Session};
use crate::sync::lock;
use berth_net::feed::Urgency;
use berth_wire::{EndPhase, EndReport, Outcome};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

/// Bounds of an end, fixed by whoever asked for it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// How long running calls may go on.
    pub drain: Duration,
    /// How long everything after that may take.
    pub close: Duration,
}

impl Session {
    /// Fences the session. True if the end began by this, and is the caller's to carry out with [`Session::end`].
    pub(crate) fn fence(&self) -> bool {
        let effect = lock(&self.inner).link.end_asked();
        if effect == Effect::BeginEnd {
            self.fence.cancel();
            self.tell(Urgency::Now);
        }
        effect == Effect::BeginEnd
    }

    /// Carries out the end of a fenced session, within drain + close, and says in `progress` how far it is.
    pub(crate) async fn end(&self, deadlines: Deadlines, progress: &watch::Sender<EndReport>) -> EndReport {
        let mut report = EndReport {
            phase: EndPhase::Draining,
            drain: Outcome::Unconfirmed,
            close: Outcome::Unconfirmed,
            remove: Outcome::Unconfirmed,
        };
        let publish = |report: EndReport| {
            lock(&self.inner).end = Some(report);
            progress.send_replace(report);
            self.tell(Urgency::Now);
        };
        publish(report);
        report.drain = self.drain(deadlines.drain).await;
        report.phase = EndPhase::Closing;
        publish(report);
        let deadline = Instant::now() + deadlines.close;
        // Calls that were cancelled tell the upstream so; that must not use up the time of the DELETE.
        let _ = timeout(deadlines.close / 4, self.calls.wait()).await;
        let closed = self.close_upstream(deadline).await;
        report.close = closed.outcome;
        report.remove = self.remove(closed.attempts_are_over, deadline).await;
        report.phase = EndPhase::Ended;
        let mut inner = lock(&self.inner);
        inner.link.removed();
        inner.end = Some(report);
        report
    }

    /// Lets running calls finish; cancels those that have not by then.
    async fn drain(&self, drain: Duration) -> Outcome {
        self.calls.close();
        let idle = self.in_flight() == 0;
        let finished = timeout(drain, self.calls.wait()).await.is_ok();
        self.cancel.cancel();
        match (idle, finished) {
            (true, _) => Outcome::NotNeeded,
            (false, true) => Outcome::Confirmed,
            (false, false) => Outcome::Unconfirmed,
        }
    }

    /// Ends every upstream session that may be there: of the connection, of lost ones, of attempts that are not over.
    async fn close_upstream(&self, deadline: Instant) -> Closed {
        let (connections, attempts) = {
            let mut inner = lock(&self.inner);
            let lost = std::mem::take(&mut inner.unclosed);
            let connections: Vec<_> = inner.connection.take().into_iter().chain(lost).collect();
            (connections, std::mem::take(&mut inner.attempts))
        };
        let attempts = futures::future::join_all(attempts.into_iter().map(async |mut attempt| {
            // One that is not over by then goes on until its own bound, and closes what it may yet open (CASES.md 8).
            match timeout_at(deadline, attempt.leftover()).await {
                Ok(outcome) => Closed { outcome, attempts_are_over: true },
                Err(_) => Closed { outcome: Outcome::Unconfirmed, attempts_are_over: false },
            }
        }));
        let connections = futures::future::join_all(connections.iter().map(async |connection| {
            let outcome = connection.delete(deadline).await;
            // Only now: an upstream must hear of the end before its socket goes.
            connection.close().await;
            outcome
        }));
        let (attempts, outcomes) = tokio::join!(attempts, connections);
        let forgotten = if lock(&self.inner).unconfirmed { Outcome::Unconfirmed } else { Outcome::NotNeeded };
        let left = attempts.iter().map(|attempt| attempt.outcome);
        Closed {
            outcome: outcomes.into_iter().chain(left).fold(forgotten, worse),
            attempts_are_over: attempts.iter().all(|attempt| attempt.attempts_are_over),
        }
    }

    /// Forgets the scopes and sees that no task and no socket is left.
    async fn remove(&self, attempts_are_over: bool, deadline: Instant) -> Outcome {
        lock(&self.inner).scopes.clear();
        let joined = timeout_at(deadline, self.calls.wait()).await.is_ok();
        if joined && attempts_are_over { Outcome::Confirmed } else { Outcome::Unconfirmed }
    }
}

/// How the upstream side was closed.
struct Closed {
    outcome: Outcome,
    /// Nothing of an attempt to connect runs any more.
    attempts_are_over: bool,
}

/// The worse of two outcomes.
fn worse(one: Outcome, other: Outcome) -> Outcome {
    let rank = |outcome| match outcome {
        Outcome::NotNeeded => 0,
        Outcome::Confirmed => 1,
        Outcome::Unconfirmed => 2,
    };
    if rank(one) >= rank(other) { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_unconfirmed_step_makes_the_whole_unconfirmed() {
        use Outcome::{Confirmed, NotNeeded, Unconfirmed};
        assert_eq!(worse(NotNeeded, Confirmed), Confirmed);
        assert_eq!(worse(Unconfirmed, Confirmed), Unconfirmed);
        assert_eq!(worse(NotNeeded, NotNeeded), NotNeeded);
    }
}
