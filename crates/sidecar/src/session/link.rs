//! The part of a session that its threads contend for: the machine, and its way through the gate that all sessions share.
//!
//! The lock of a session is taken before that of the gate, never the other way round. An attempt is settled with the gate
//! under the lock of its session: else a request between the two would find the session free to try and the gate still open.

use super::gate::{Gate, Moment, Pass, Verdict};
use super::machine::{Effect, Event, Machine};
use super::own::Own;
use crate::sync::{Lock, lock};
use crate::upstream::Trouble;
use std::ops::Deref;
use std::time::Duration;
use tokio::time::Instant;

/// A machine with its pass.
pub(crate) struct Link {
    machine: Machine,
    /// The attempt in flight, and its pass. What comes late of an earlier attempt must not take it.
    pass: Option<(u64, Pass)>,
    /// Why the session is barred.
    barred: Option<Trouble>,
    /// Its pauses after failures of its own.
    own: Own,
}

/// How an attempt failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure<'a> {
    /// The server cannot be had.
    Server(&'a Trouble),
    /// The upstream refuses what the session carries.
    Credential(&'a Trouble),
    /// It says nothing of the server. With trouble if another attempt would meet the same.
    Own(Option<&'a Trouble>),
}

impl Deref for Link {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl Link {
    pub(crate) fn new() -> Self {
        Self { machine: Machine::new(), pass: None, barred: None, own: Own::new() }
    }

    /// A request needs the upstream: what to do, or why nothing is tried.
    pub(crate) fn need(&mut self, gate: &impl Lock<Of = Gate>, now: Instant) -> Result<Effect, Trouble> {
        let mut pass = None;
        if self.machine.would_begin() {
            let entered = match self.own.hold(now) {
                Some(trouble) => Err(trouble),
                None => lock(gate).enter(now),
            };
            match entered {
                Ok(entered) => pass = Some(entered),
                Err(trouble) => {
                    self.machine.step(Event::Held);
                    return Err(trouble);
                }
            }
        }
        match (self.machine.step(Event::Needed), &self.barred) {
            (Effect::Bar, Some(trouble)) => Err(trouble.clone()),
            (effect @ Effect::StartAttempt(epoch), _) => {
                self.pass = pass.map(|pass| (epoch, pass));
                Ok(effect)
            }
            (effect, _) => Ok(effect),
        }
    }

    /// The attempt `epoch` made a connection.
    pub(crate) fn established(&mut self, epoch: u64, gate: &impl Lock<Of = Gate>, at: Moment) -> Effect {
        self.settle(epoch, gate, Verdict::Well, at);
        self.own.start_anew();
        self.machine.step(Event::Established(epoch))
    }

    /// The attempt `epoch` failed. If no other is to be made for a while, for how long.
    pub(crate) fn failed(
        &mut self,
        epoch: u64,
        failure: Failure<'_>,
        gate: &impl Lock<Of = Gate>,
        at: Moment,
    ) -> Option<Duration> {
        let (verdict, event) = match failure {
            Failure::Server(trouble) => (Verdict::Ill(trouble), Event::Failed(epoch)),
            Failure::Credential(trouble) => {
                // No time makes it better.
                self.barred = Some(Trouble { retry_after: None, ..trouble.clone() });
                (Verdict::Unknown, Event::Refused(epoch))
            }
            Failure::Own(_) => (Verdict::Unknown, Event::Failed(epoch)),
        };
        self.settle(epoch, gate, verdict, at);
        self.machine.step(event);
        match failure {
            Failure::Server(_) => lock(gate).wait(at.now),
            Failure::Own(Some(trouble)) => Some(self.own.failed(trouble, at)),
            Failure::Credential(_) | Failure::Own(None) => None,
        }
    }

    /// What the session carries, or where it leads, has changed.
    pub(crate) fn changed(&mut self) {
        self.barred = None;
        self.own.start_anew();
        self.machine.step(Event::Changed);
    }

    /// Before when no attempt is made, in milliseconds since 1970.
    pub(crate) fn next_try(&self, gate: &impl Lock<Of = Gate>, now: Instant) -> Option<u64> {
        lock(gate).next_try(now).max(self.own.next_try(now))
    }

    /// The connection of the attempt `epoch` was lost.
    pub(crate) fn lost(&mut self, epoch: u64) -> Effect {
        self.machine.step(Event::Lost(epoch))
    }

    /// The session is to end.
    pub(crate) fn end_asked(&mut self) -> Effect {
        self.machine.step(Event::EndAsked)
    }

    /// Nothing of the session is left.
    pub(crate) fn removed(&mut self) {
        self.machine.step(Event::Removed);
    }

    fn settle(&mut self, epoch: u64, gate: &impl Lock<Of = Gate>, verdict: Verdict<'_>, at: Moment) {
        if let Some((_, pass)) = self.pass.take_if(|(of, _)| *of == epoch) {
            lock(gate).settle(&pass, verdict, at);
        }
    }
}

#[cfg(test)]
mod interleavings;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{Site, Step};
    use berth_wire::Failure as Reason;
    use std::sync::Mutex;

    #[test]
    fn what_comes_late_of_an_attempt_does_not_take_the_pass_of_the_next() {
        let trouble = Site { server: "s", step: Step::Connect }.trouble(Reason::UpstreamUnreachable, "down");
        let (gate, mut link) = (Mutex::new(Gate::new()), Link::new());
        let mut at = Moment { now: Instant::now(), unix_millis: 0, random: u32::MAX };
        assert_eq!(link.need(&gate, at.now), Ok(Effect::StartAttempt(1)));
        at.now += link.failed(1, Failure::Server(&trouble), &gate, at).unwrap();
        assert_eq!(link.need(&gate, at.now), Ok(Effect::StartAttempt(2)));
        // As when cleaning up after the first one panics.
        assert_eq!(link.failed(1, Failure::Own(None), &gate, at), None);
        assert!(link.failed(2, Failure::Server(&trouble), &gate, at).is_some(), "the gate is closed again");
    }
}
