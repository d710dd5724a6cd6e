//! When the sessions of one server may try to connect: one gate for all of them. Pure: time and jitter are parameters.
//!
//! ```text
//!          failed                 the delay is over
//!   open --------> closed ------------------------------> half open: one tries, the others are told what failed last
//!    ^               ^                                      |
//!    |               +------------- failed -----------------+
//!    +----------------------------- succeeded --------------+
//! ```
//!
//! Connections that stand are not touched by it.

use crate::upstream::{MOST_ASKED, Trouble};
use berth_net::backoff::Doubling;
use berth_wire::{Failure, Outcome};
use std::time::Duration;
use tokio::time::Instant;

/// The delay after the first failure; each later one is twice as long.
pub(super) const FIRST: Duration = Duration::from_millis(500);
/// The longest delay of ours.
const MOST: Duration = Duration::from_mins(2);

/// Whether attempts may be made, and what failed last.
#[derive(Debug)]
pub(crate) struct Gate {
    pauses: Doubling,
    /// Grows with each closing, so that of attempts that began together the first failure counts and no other.
    round: u64,
    closed: Option<Closed>,
}

#[derive(Debug)]
struct Closed {
    until: Instant,
    /// The same in milliseconds since 1970, for people.
    until_unix_millis: u64,
    /// Why.
    trouble: Trouble,
    /// One tries now.
    tried: bool,
}

/// The right to one attempt, given back by [`Gate::settle`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    round: u64,
}

/// What an attempt says of the server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict<'a> {
    /// It serves.
    Well,
    /// It does not; what it asked to wait for is in the trouble.
    Ill(&'a Trouble),
    /// Nothing: the attempt was given up, or what went wrong was the session's own.
    Unknown,
}

/// The moment at which something happens, on both clocks, and a random number for the jitter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub now: Instant,
    pub unix_millis: u64,
    pub random: u32,
}

impl Gate {
    /// An open one.
    pub(crate) fn new() -> Self {
        Self { pauses: Doubling::new(FIRST, MOST), round: 0, closed: None }
    }

    /// Lets an attempt begin, or says why none may, and for how long.
    pub(crate) fn enter(&mut self, now: Instant) -> Result<Pass, Trouble> {
        let pass = Pass { round: self.round };
        let Some(closed) = &mut self.closed else { return Ok(pass) };
        if now >= closed.until && !closed.tried {
            closed.tried = true;
            return Ok(pass);
        }
        // While one tries nobody knows how long it takes.
        let wait = if closed.tried { FIRST } else { closed.until - now };
        Err(Trouble { retry_after: Some(wait), leftover: Outcome::NotNeeded, ..closed.trouble.clone() })
    }

    /// What became of an attempt. If it is that which closed the gate, for how long.
    pub(crate) fn settle(&mut self, pass: &Pass, verdict: Verdict<'_>, at: Moment) -> Option<Duration> {
        let is_current = pass.round == self.round;
        match verdict {
            Verdict::Well => {
                // An answer that was under way does not undo what the server has asked for since.
                if is_current || !self.is_asked_to_wait(at.now) {
                    self.closed = None;
                    self.pauses.start_anew();
                }
                None
            }
            Verdict::Ill(trouble) if is_current => {
                let delay = delay(&mut self.pauses, trouble, at.random);
                self.close(trouble, delay, at);
                Some(delay)
            }
            Verdict::Ill(trouble) => self.late_failure(trouble, at),
            Verdict::Unknown => {
                if let Some(closed) = self.closed.as_mut().filter(|_| is_current) {
                    closed.tried = false;
                }
                None
            }
        }
    }

    /// Other authorities are trusted now: a server whose certificate was not trusted may be tried at once.
    pub(crate) fn trust_changed(&mut self) {
        let untrusted = |closed: &Closed| closed.trouble.failure == Failure::TLSUntrusted && !closed.tried;
        if self.closed.as_ref().is_some_and(untrusted) {
            self.round += 1;
            self.closed = None;
            self.pauses.start_anew();
        }
    }

    /// How long no attempt is made.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        let closed = self.closed.as_ref()?;
        closed.until.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }

    /// Before when no attempt is made, in milliseconds since 1970.
    pub(crate) fn next_try(&self, now: Instant) -> Option<u64> {
        self.wait(now)?;
        self.closed.as_ref().map(|closed| closed.until_unix_millis)
    }

    fn is_asked_to_wait(&self, now: Instant) -> bool {
        let asked = |closed: &Closed| closed.trouble.failure == Failure::RateLimited && now < closed.until;
        self.closed.as_ref().is_some_and(asked)
    }

    /// A failure of an attempt that began before the gate was closed last has been counted by that, but the upstream may have
    /// asked to wait for longer.
    fn late_failure(&mut self, trouble: &Trouble, at: Moment) -> Option<Duration> {
        let asked = asked(trouble)?;
        let until = at.now + asked;
        match &self.closed {
            Some(closed) if closed.tried || closed.until >= until => None,
            _ => {
                self.close(trouble, asked, at);
                Some(asked)
            }
        }
    }

    fn close(&mut self, trouble: &Trouble, delay: Duration, at: Moment) {
        self.round += 1;
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.closed = Some(Closed {
            until: at.now + delay,
            until_unix_millis: at.unix_millis.saturating_add(millis),
            trouble: trouble.clone(),
            tried: false,
        });
    }
}

/// The next of `pauses`: what the upstream asked for if it limits us, else ours, between its half and its whole.
pub(super) fn delay(pauses: &mut Doubling, trouble: &Trouble, random: u32) -> Duration {
    let ours = pauses.pause_within(random);
    match asked(trouble) {
        Some(asked) if trouble.failure == Failure::RateLimited => asked,
        Some(asked) => asked.max(ours),
        None => ours,
    }
}

/// What the upstream asked to wait for, within reason.
fn asked(trouble: &Trouble) -> Option<Duration> {
    trouble.retry_after.map(|asked| asked.clamp(FIRST, MOST_ASKED))
}

#[cfg(test)]
mod tests;
