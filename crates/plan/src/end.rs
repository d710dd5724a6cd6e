//! How a session ends: what is left to do, given what is still there.
//!
//! Each step may have been done before, in part, by a process that is gone. The whole is bounded: by drain + close + 10 s
//! after the deletion, or `HEARING` after the operator began to lead where that is later and something is silent, the end is told with
//! whatever was not confirmed. Each sidecar is asked at least once before that, however late it is, except one that is known to
//! hang: an operator that was away asks first.

pub mod record;
pub mod report;
pub mod status;

use crate::lead::HEARING;
use crate::pod::{self, Life, Occupancy, PoolPod};
use crate::session::clocks::end_bound;
use crate::time::Moment;
use berth_api::{AgentSession, EndReason, Timeouts};
use berth_wire::{EndPhase, EndReport};
use k8s_openapi::api::core::v1::Pod;
use report::Report;
use std::time::Duration;

/// Pause before a sidecar that did not answer is asked again.
const RETRY: Duration = Duration::from_secs(1);
/// Pause before a sidecar whose end goes on is asked again; its stream tells of the end at once.
const LOOK: Duration = Duration::from_secs(5);
/// How long sidecars may take to answer who are asked when the bound is reached. It is part of what an end may take.
pub const LAST_ASK: Duration = Duration::from_secs(1);
/// An end that lasts longer than this shows as a condition.
pub const SHOWN_AFTER: Duration = Duration::from_secs(2);

/// An end that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Why the session ends.
    pub reason: EndReason,
    /// When it was deleted.
    pub since: Moment,
    /// How long running calls may go on: the longest of its servers.
    pub drain: Duration,
    /// How long upstreams may take to confirm: the longest of its servers.
    pub close: Duration,
}

impl Ending {
    /// When sidecars are asked for the last time: the end is over [`LAST_ASK`] later, whatever is left.
    pub fn bound(&self) -> Moment {
        self.since.plus(end_bound(self.drain, self.close).saturating_sub(LAST_ASK))
    }
}

/// A pod that holds a slot of the session, or held one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Name of the server.
    pub server: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub pod_uid: String,
    /// What is known of the end there.
    pub state: State,
    /// Whether its sidecar has taken the session for certain: status says so, or its stream did.
    pub taken: bool,
    /// Whether the sidecar was restarted since the session is there: it does not know all that it has to end.
    pub restarted: bool,
}

impl Holding {
    /// Whether nothing of the session is left in the pod.
    pub fn is_over(&self) -> bool {
        match &self.state {
            State::Answered(report) => report.phase == EndPhase::Ended,
            State::Gone | State::Stray => true,
            State::Unasked | State::Silent => false,
        }
    }

    /// Whether it is known that nothing of the session is left in the pod, nor upstream.
    pub fn is_confirmed(&self) -> bool {
        let all_done = |report: &EndReport| report.unconfirmed().next().is_none();
        matches!(&self.state, State::Answered(report) if self.is_over() && all_done(report))
            && !self.is_lost()
    }

    /// Whether the sidecar has lost the session, or something of it: it was restarted, or knows nothing of what it took. One
    /// that holds a session confirms its removal, even if nothing was ever connected.
    pub fn is_lost(&self) -> bool {
        self.restarted || (self.taken && self.state == State::Answered(EndReport::NOTHING_HELD))
    }
}

/// What is known of the end in one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The sidecar was not asked in this pass.
    Unasked,
    /// The sidecar answered, or its stream told.
    Answered(EndReport),
    /// The sidecar was asked and gave no answer.
    Silent,
    /// The pod exists, the operator has no hold on it any more, and its sidecar cannot be asked.
    Stray,
    /// The pod is gone, and what became of the session there cannot be learnt any more.
    Gone,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask these sidecars (indices of the holdings) to end the session; all at once.
    Close(Vec<usize>),
    /// Nothing can be done before this moment, unless something changes.
    Wait(Moment),
    /// Tell how it ended.
    Tell(Report),
    /// It is over and told: the finalizer may go.
    Done,
}

/// What is known of an end.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// Every pod that is known to hold the session, or to have held it.
    pub holdings: &'a [Holding],
    /// Whether a ready pod of its servers has not told yet which sessions it holds, as after a start of the operator.
    pub unheard: bool,
    /// Whether the Event stands.
    pub told: bool,
    /// When this operator began to lead.
    pub started: Moment,
}

/// How long sidecars that are asked at `now` may take to answer, by an operator that started then: a hung one must not hold up
/// the end for longer than its bound allows.
pub fn answer_within(ending: &Ending, started: Moment, now: Moment) -> Duration {
    now.until(ending.bound().max(started.plus(HEARING))).max(LAST_ASK)
}

/// What to do next.
pub fn next(ending: &Ending, observed: &Observed<'_>, now: Moment) -> Step {
    let holdings = observed.holdings;
    if observed.told {
        return Step::Done;
    }
    let report = || Step::Tell(Report::new(ending.reason, holdings));
    if holdings.iter().all(Holding::is_over) && !observed.unheard {
        return report();
    }
    // Asking comes before the bound: it is itself bounded, and what is never asked would live on. One that hangs counts as silent
    // without a request, until it says something or the next probe is due.
    let unasked = unasked(holdings);
    if !unasked.is_empty() {
        return Step::Close(unasked);
    }
    let silent = observed.unheard || holdings.iter().any(|holding| holding.state == State::Silent);
    let heard = observed.started.plus(HEARING);
    let bound = if silent { ending.bound().max(heard) } else { ending.bound() };
    if now >= bound {
        return report();
    }
    let shown = ending.since.plus(SHOWN_AFTER);
    let look = now.plus(if silent { RETRY } else { LOOK });
    let next = if shown > now { look.min(shown) } else { look };
    Step::Wait(next.min(bound))
}

/// The holdings whose sidecars were not asked yet, by index.
pub fn unasked(holdings: &[Holding]) -> Vec<usize> {
    let unasked = holdings.iter().enumerate().filter(|(_, holding)| holding.state == State::Unasked);
    unasked.map(|(index, _)| index).collect()
}

/// The end of `session`, which was deleted at `since`; `servers` are the timeouts of those of its servers that still exist.
pub fn ending(session: &AgentSession, servers: &[Timeouts], since: Moment) -> Ending {
    let defaults = Timeouts::default();
    let longest = |of: fn(&Timeouts) -> &berth_api::Duration| {
        let spans = servers.iter().filter_map(|timeouts| of(timeouts).to_std());
        spans.max().or_else(|| of(&defaults).to_std()).unwrap_or_default()
    };
    let own = session.spec.drain_timeout.as_ref().and_then(berth_api::Duration::to_std);
    Ending {
        reason: session.spec.end.as_ref().map_or(EndReason::Cleared, |end| end.reason),
        since,
        drain: own.unwrap_or_else(|| longest(|timeouts| &timeouts.drain)),
        close: longest(|timeouts| &timeouts.close),
    }
}

/// What the operator knows of a pod.
#[derive(Clone, Copy, Debug)]
pub enum Known<'a> {
    /// It is in the cache.
    Pod(&'a Pod),
    /// It is not, and exists all the same; `reachable` is whether its sidecar's address is known.
    Stray {
        /// Whether its sidecar can be asked.
        reachable: bool,
    },
    /// It does not exist.
    Gone,
}

/// What is known of the end in a pod before its sidecar is asked: `ended` is what its stream told.
pub fn first_state(pod: Known<'_>, ended: Option<EndReport>) -> State {
    match (ended, pod) {
        (Some(report), _) if report.phase == EndPhase::Ended => State::Answered(report),
        (_, Known::Pod(pod)) if PoolPod::read(pod, Occupancy::default()).life != Life::Dead => State::Unasked,
        (_, Known::Stray { reachable: true }) => State::Unasked,
        (_, Known::Stray { reachable: false }) => State::Stray,
        (_, Known::Pod(_) | Known::Gone) => State::Gone,
    }
}

/// Whether the sidecar of `pod` was restarted since `session` exists.
pub fn is_restarted(pod: &Pod, session: &AgentSession) -> bool {
    let created = session.metadata.creation_timestamp.as_ref().map_or(Moment(0), Moment::from_api);
    pod::restarted_since(pod, created)
}

#[cfg(test)]
mod tests;
