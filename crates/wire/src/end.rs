//! The end of a session in one sidecar: what is asked and what is answered.

use serde::{Deserialize, Serialize};

/// Query of `DELETE /v1/sessions/{uid}`. The first request fixes the deadlines; later ones join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndRequest {
    /// How long running calls may go on.
    pub drain_millis: u64,
    /// How long the upstream may take to confirm.
    pub close_millis: u64,
    /// How long this request waits for the end before it answers 202.
    pub wait_millis: u64,
}

/// How far an end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EndPhase {
    /// Running calls may finish.
    Draining,
    /// The upstream session is being ended.
    Closing,
    /// Nothing of the session is left but its tombstone.
    Ended,
}

/// What became of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// It was done and seen to be done.
    Confirmed,
    /// It was tried, or is still tried, and not seen to be done.
    Unconfirmed,
    /// There was nothing to do.
    NotNeeded,
}

/// Steps whose outcome is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EndStep {
    /// Running calls finished (Confirmed), were cancelled (Unconfirmed: their effect is unknown), or there were none.
    Drain,
    /// The upstream session was ended by DELETE; 405 counts as confirmed: such a server has nothing to end.
    Close,
    /// Client scopes, tasks and sockets of the session are gone from the sidecar.
    Remove,
}

/// Answer to `DELETE /v1/sessions/{uid}`; kept as the tombstone for the pod's life, so a repeated DELETE gets the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndReport {
    /// How far it has come.
    pub phase: EndPhase,
    /// Outcome of [`EndStep::Drain`].
    pub drain: Outcome,
    /// Outcome of [`EndStep::Close`].
    pub close: Outcome,
    /// Outcome of [`EndStep::Remove`].
    pub remove: Outcome,
}

impl EndReport {
    /// The report on a session that this sidecar never held.
    pub const NOTHING_HELD: Self = Self {
        phase: EndPhase::Ended,
        drain: Outcome::NotNeeded,
        close: Outcome::NotNeeded,
        remove: Outcome::NotNeeded,
    };

    /// The steps that were not confirmed, in order.
    pub fn unconfirmed(&self) -> impl Iterator<Item = EndStep> {
        [(EndStep::Drain, self.drain), (EndStep::Close, self.close), (EndStep::Remove, self.remove)]
            .into_iter()
            .filter(|(_, outcome)| *outcome == Outcome::Unconfirmed)
            .map(|(step, _)| step)
    }
}
