//! What is told of an end: one Event, and the counters.

use crate::end::{Holding, State};
use crate::text::clip;
use berth_api::{EndReason, Reason};
use berth_wire::{EndPhase, EndStep};

/// Longest note of an Event in bytes; the API refuses more.
const NOTE_BYTES: usize = 1024;

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Why it ended.
    pub reason: EndReason,
    /// What was not confirmed; empty when all was.
    pub unconfirmed: Vec<Unconfirmed>,
}

/// What was not confirmed in one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconfirmed {
    /// Name of the server.
    pub server: String,
    /// Name of the pod.
    pub pod: String,
    /// Which steps.
    pub steps: Vec<EndStep>,
    /// Why it is not known.
    pub cause: Cause,
}

/// Why a step was not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The sidecar tried, and did not see it done.
    NotSeenDone,
    /// The bound passed while the sidecar was at it.
    BoundPassed,
    /// The sidecar gave no answer until the bound passed.
    NoAnswer,
    /// The pod runs on, out of the operator's hands.
    Stray,
    /// The pod was gone.
    PodGone,
    /// The sidecar lost what it knew.
    Restarted,
}

impl Cause {
    const fn as_str(self) -> &'static str {
        match self {
            Self::NotSeenDone => "not seen to be done",
            Self::BoundPassed => "still running when the bound passed",
            Self::NoAnswer => "the sidecar gave no answer",
            Self::Stray => "the pod exists and is not known as one of its pool any more; delete it",
            Self::PodGone => "the pod is gone",
            Self::Restarted => "the sidecar was restarted while the session was there",
        }
    }
}

/// An Event's type, reason and note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telling {
    /// `Normal` or `Warning`.
    pub type_: &'static str,
    /// The end reason, or `CleanupIncomplete`.
    pub reason: &'static str,
    /// What happened, at most 1 KiB.
    pub note: String,
}

impl Report {
    /// The report on `holdings` as they stand now.
    pub fn new(reason: EndReason, holdings: &[Holding]) -> Self {
        Self { reason, unconfirmed: holdings.iter().filter_map(unconfirmed).collect() }
    }

    /// Whether everything was confirmed.
    pub fn is_complete(&self) -> bool {
        self.unconfirmed.is_empty()
    }

    /// The Event that tells of the end.
    pub fn telling(&self) -> Telling {
        let reason = self.reason.as_str();
        if self.is_complete() {
            let note = format!("the session ended ({reason}); all that it held is released");
            return Telling { type_: "Normal", reason, note };
        }
        let parts: Vec<String> = self.unconfirmed.iter().map(Unconfirmed::to_string).collect();
        let note = format!("the session ended ({reason}); not confirmed: {}", parts.join("; "));
        Telling {
            type_: "Warning",
            reason: Reason::CleanupIncomplete.as_str(),
            note: clip(&note, NOTE_BYTES),
        }
    }
}

impl std::fmt::Display for Unconfirmed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let steps: Vec<&str> = self.steps.iter().map(|step| step_name(*step)).collect();
        write!(
            f,
            "server {:?} in pod {:?}: {} ({})",
            self.server,
            self.pod,
            steps.join(", "),
            self.cause.as_str()
        )
    }
}

const fn step_name(step: EndStep) -> &'static str {
    match step {
        EndStep::Drain => "drain",
        EndStep::Close => "close",
        EndStep::Remove => "remove",
    }
}

fn unconfirmed(holding: &Holding) -> Option<Unconfirmed> {
    let all = || vec![EndStep::Drain, EndStep::Close, EndStep::Remove];
    let (steps, cause) = match &holding.state {
        State::Answered(report) if report.phase == EndPhase::Ended && holding.is_lost() => {
            // What an earlier container opened upstream cannot be closed by a later one, whatever that says.
            let mut steps: Vec<EndStep> = report.unconfirmed().chain([EndStep::Close]).collect();
            steps.sort_unstable();
            steps.dedup();
            (steps, Cause::Restarted)
        }
        State::Answered(report) if report.phase == EndPhase::Ended => {
            (report.unconfirmed().collect::<Vec<_>>(), Cause::NotSeenDone)
        }
        State::Answered(report) => {
            let steps: Vec<EndStep> = report.unconfirmed().collect();
            (if steps.is_empty() { vec![EndStep::Remove] } else { steps }, Cause::BoundPassed)
        }
        State::Unasked | State::Silent => (all(), Cause::NoAnswer),
        State::Stray => (all(), Cause::Stray),
        State::Gone => (all(), Cause::PodGone),
    };
    let (server, pod) = (holding.server.clone(), holding.pod.clone());
    (!steps.is_empty()).then_some(Unconfirmed { server, pod, steps, cause })
}
