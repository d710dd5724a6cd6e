//! Which pod gets a session.

use crate::lead::HEARING;
use crate::pod::{PoolPod, Trouble};
use crate::server::pool::{Fit, fit, is_locked_out, keeps_sessions};
use crate::server::validate::ValidServer;
use crate::time::Moment;
use berth_api::Reason;
use berth_wire::{Failure, SessionReport, SessionState};
use std::collections::HashSet;

/// What is known when one binding is placed.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// UID of the session.
    pub session: &'a str,
    /// Every pod of the server.
    pub pods: &'a [PoolPod],
    /// What sidecars report of this session, each with the UID of its pod.
    pub reports: &'a [(String, SessionReport)],
    /// UID of the pod that the session was promised a slot in, by status or by this process.
    pub promised: Option<&'a str>,
    /// UIDs of pods that refused this session just now.
    pub refused_by: &'a [String],
    /// Other sessions that hold a slot at the server.
    pub held: u32,
    /// Those among them of the same subject.
    pub held_by_subject: u32,
    /// Image that sidecars are made with now.
    pub image: &'a str,
    /// When this operator began to lead.
    pub started: Moment,
}

/// Where a session goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<'a> {
    /// It stays where it is, or was promised a slot.
    Keep(&'a PoolPod),
    /// It takes a free slot.
    Take(&'a PoolPod),
    /// It has to leave a pod of an older revision before it is placed anew: a slot is free for it, or it has no credential there.
    Leave(&'a PoolPod),
    /// There is no slot for it now.
    Wait(Wait),
}

/// Why there is no slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wait {
    /// No pod has a free slot yet.
    #[error("waits for a free slot of server {server:?}")]
    NoSlot {
        /// Name of the server.
        server: String,
    },
    /// No pod has a free slot, for a reason that its server tells.
    #[error("waits for a free slot of server {server:?}: {}", .trouble.message)]
    Trouble {
        /// Name of the server.
        server: String,
        /// Why.
        trouble: Trouble,
    },
    /// An operator that has only just begun to lead has not heard yet whether one of the pods holds it.
    #[error("waits until each ready sidecar of server {server:?} has told what it holds")]
    Unheard {
        /// Name of the server.
        server: String,
    },
    /// Free slots are only where the session has ended, and no other pod can be made.
    #[error(
        "has ended in each pod of server {server:?} with a free slot: raise pool.maxPods, or wait until such a pod is replaced"
    )]
    LockedOut {
        /// Name of the server.
        server: String,
    },
    /// It leaves a pod of an older revision first.
    #[error("moves to the current revision of server {server:?}")]
    Moving {
        /// Name of the server.
        server: String,
    },
    /// `pool.maxSessions` is reached.
    #[error(
        "{most} sessions hold a slot of server {server:?}, which is pool.maxSessions; end sessions or raise it"
    )]
    Sessions {
        /// Name of the server.
        server: String,
        /// The bound.
        most: u32,
    },
    /// `pool.maxSessionsPerSubject` is reached.
    #[error(
        "{most} sessions of this subject hold a slot of server {server:?}, which is pool.maxSessionsPerSubject; end one of them or raise it"
    )]
    SessionsOfSubject {
        /// Name of the server.
        server: String,
        /// The bound.
        most: u32,
    },
}

impl Wait {
    /// The reason for conditions.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::NoSlot { .. } | Self::Unheard { .. } | Self::Moving { .. } => Reason::Pending,
            Self::Trouble { trouble, .. } => trouble.reason,
            Self::LockedOut { .. } | Self::Sessions { .. } | Self::SessionsOfSubject { .. } => {
                Reason::LimitReached
            }
        }
    }
}

/// Where the session goes: it keeps what it has while that pod lives, else it takes a slot of the fullest ready pod of the
/// current revision, so that the emptiest can go.
pub fn decide<'a>(server: &ValidServer, observed: &Observed<'a>, now: Moment) -> Decision<'a> {
    if let Some((pod, report)) = held(server, observed, now) {
        // A report that is kept while the stream is down, or is of a later spec than the one at hand, is no ground for an end.
        let is_idle = |report: &SessionReport| {
            report.activity.in_flight == 0 && report.generation.server <= server.generation
        };
        let moves = fit(pod, server, observed.image) == Fit::Old
            && pod.occupancy.synced
            && report.is_some_and(is_idle)
            && (report.is_some_and(is_without_credential) || free(server, observed).is_some());
        return if moves { Decision::Leave(pod) } else { Decision::Keep(pod) };
    }
    let name = || server.key.name.clone();
    if let Some(most) = server.pool.max_sessions.filter(|most| observed.held >= *most) {
        return Decision::Wait(Wait::Sessions { server: name(), most });
    }
    if let Some(most) = server.pool.max_sessions_per_subject.filter(|most| observed.held_by_subject >= *most)
    {
        return Decision::Wait(Wait::SessionsOfSubject { server: name(), most });
    }
    // One that led before may have given it a slot of which nothing but that sidecar knows.
    if now < observed.started.plus(HEARING) && observed.pods.iter().any(PoolPod::is_unheard) {
        return Decision::Wait(Wait::Unheard { server: name() });
    }
    if let Some(pod) = free(server, observed) {
        return Decision::Take(pod);
    }
    let over = observed.reports.iter().filter(|(_, report)| is_over(report));
    let left: Vec<String> = over.map(|(uid, _)| uid.clone()).collect();
    let locked_out = is_locked_out(&left, server, observed.pods, observed.image, now);
    Decision::Wait(if locked_out {
        Wait::LockedOut { server: name() }
    } else {
        Wait::NoSlot { server: name() }
    })
}

/// The pod that the session has a slot in, or was promised one: it stays there though nothing can be decided for it.
pub fn kept<'a>(server: &ValidServer, observed: &Observed<'a>, now: Moment) -> Option<&'a PoolPod> {
    held(server, observed, now).map(|(pod, _)| pod)
}

/// Sessions other than `session` that hold a slot in one of `pods`, or were promised one, and that count.
pub fn held_by_others(session: &str, pods: &[PoolPod], counts: impl Fn(&str) -> bool) -> u32 {
    let held: HashSet<&String> =
        pods.iter().filter(|pod| pod.is_alive()).flat_map(|pod| &pod.occupancy.held).collect();
    let others = held.into_iter().filter(|held| *held != session && counts(held));
    u32::try_from(others.count()).unwrap_or(u32::MAX)
}

/// The pod that the session has a slot in, with the sidecar's report once there is one.
fn held<'a>(
    server: &ValidServer,
    observed: &Observed<'a>,
    now: Moment,
) -> Option<(&'a PoolPod, Option<&'a SessionReport>)> {
    let usable = |uid: &str| {
        let pod = observed.pods.iter().find(|pod| pod.uid == uid)?;
        (keeps_sessions(pod, now) && !observed.refused_by.contains(&pod.uid)).then_some(pod)
    };
    let alive = |(_, report): &&(String, SessionReport)| !is_over(report);
    // The promise decides between two pods that both hold it; else whichever sidecar holds it counts.
    let promised_first =
        |(uid, _): &&(String, SessionReport)| u8::from(observed.promised != Some(uid.as_str()));
    let mut reports: Vec<_> = observed.reports.iter().filter(alive).collect();
    reports.sort_by_key(promised_first);
    if let Some(held) = reports.iter().find_map(|(uid, report)| Some((usable(uid)?, Some(report)))) {
        return Some(held);
    }
    let promised = observed.promised?;
    let over = observed.reports.iter().any(|(uid, report)| uid == promised && is_over(report));
    // A sidecar that restarted has a slot for a session that it lost; one of an older revision would refuse it.
    let refuses = |pod: &PoolPod| pod.occupancy.synced && fit(pod, server, observed.image) == Fit::Old;
    usable(promised).filter(|pod| !over && !refuses(pod)).map(|pod| (pod, None))
}

/// Whether the upstream is closed to the session for want of a credential that counts. In a pod of an older revision that never
/// ends: the session may have another credential by now, which is for the upstream of the current revision and must not go to
/// the one that was before.
fn is_without_credential(report: &SessionReport) -> bool {
    match report.failure {
        Some(
            Failure::Unauthorized
            | Failure::InvalidSpec
            | Failure::RefNotFound
            | Failure::RefNotPermitted
            | Failure::InvalidCredential,
        ) => true,
        Some(
            Failure::InitializeTimeout
            | Failure::ProtocolError
            | Failure::RateLimited
            | Failure::UpstreamUnreachable
            | Failure::TLSUntrusted,
        )
        | None => false,
    }
}

/// Whether the sidecar takes no more work of the session: it ended there, or is ending.
fn is_over(report: &SessionReport) -> bool {
    matches!(report.state, SessionState::Ending | SessionState::Ended)
}

/// The fullest pod that can take the session now.
fn free<'a>(server: &ValidServer, observed: &Observed<'a>) -> Option<&'a PoolPod> {
    observed
        .pods
        .iter()
        .filter(|pod| pod.is_placeable() && pod.free() > 0 && !observed.refused_by.contains(&pod.uid))
        .filter(|pod| !observed.reports.iter().any(|(uid, _)| *uid == pod.uid))
        .map(|pod| (fit(pod, server, observed.image), pod.free(), pod))
        .filter(|(fit, ..)| *fit != Fit::Old)
        .min_by(|a, b| (a.0, a.1, &a.2.name).cmp(&(b.0, b.1, &b.2.name)))
        .map(|(.., pod)| pod)
}

#[cfg(test)]
mod tests;
