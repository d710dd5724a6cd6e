//! What the status of an `AgentSession` says while it lives.

use crate::condition::{Finding, merge};
use crate::pod::{Life, PoolPod};
use crate::server::status::{is_held_up, trouble};
use crate::server::validate::ValidServer;
use crate::session::clocks::bind_deadline;
use crate::session::place::Wait;
use crate::session::validate::Refusal;
use crate::text::{ERROR_BYTES, clip};
use crate::time::{Moment, spread};
use berth_api::{
    AgentSession, AgentSessionStatus, BindingState, BindingStatus, ConditionType, McpServer, PodRef, Reason,
};
use berth_wire::SessionReport;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::time::Duration;

/// A session that waits for a slot is woken when there is one; it looks for itself after this at the latest.
const WAITING: Duration = Duration::from_secs(30);
/// A session that waits for a sidecar, or for its own calls, looks again after this.
const MOVING: Duration = Duration::from_secs(2);
/// A session whose credential cannot be had looks again after this, [`spread`]. A Secret without the label comes and goes unseen,
/// on which a text depends and no more: one that gains the label is an event.
const REFUSED: Duration = Duration::from_mins(2);

/// A pause between attempts that is shorter is not worth a write.
const WORTH_TELLING: Duration = Duration::from_secs(10);

/// What became of one binding in a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It cannot be acted on.
    Refused(Refusal),
    /// It has no slot.
    Waiting(Wait),
    /// It was promised a slot, and the sidecar did not confirm it.
    Unconfirmed {
        /// What went wrong.
        error: String,
    },
    /// The sidecar cannot act on what the objects say: it has no slot until they change.
    Invalid {
        /// Name of the server.
        server: String,
        /// Text of the sidecar.
        error: String,
    },
    /// It holds a slot, and its credential cannot be had: its calls are refused.
    Withheld {
        /// The pod.
        pod: PodRef,
        /// Revision that the slot is for.
        revision: String,
        /// Why.
        refusal: Refusal,
        /// Whether the sidecar knows, so that it sends the credential no more.
        told: bool,
    },
    /// It holds a slot.
    Held {
        /// The pod.
        pod: PodRef,
        /// Revision that the slot is for.
        revision: String,
        /// What the sidecar reports; nothing while its stream is down.
        report: Option<SessionReport>,
        /// Whether the server has another revision by now: the slot is left when the session is idle.
        outdated: bool,
        /// What people should know and do about a slot that serves on.
        note: Option<String>,
    },
}

impl Outcome {
    /// The outcome of a slot that the sidecar has promised, or has promised before and cannot be asked just now.
    pub fn kept(server: &ValidServer, pod: &PoolPod, report: Option<SessionReport>) -> Self {
        let unreachable = !pod.occupancy.synced && pod.life != Life::Ready;
        if unreachable {
            return Self::Unconfirmed {
                error: format!("pod {:?} is not ready and its sidecar gives no answer", pod.name),
            };
        }
        Self::Held {
            outdated: pod.revision != server.key.revision,
            pod: pod_ref(server, pod),
            revision: pod.revision.clone(),
            report,
            note: None,
        }
    }

    /// The same with `text` for people, as far as there is a slot that serves on.
    #[must_use]
    pub fn noted(mut self, text: &str) -> Self {
        if let Self::Held { note, .. } = &mut self {
            *note = Some(text.to_owned());
        }
        self
    }

    /// The same with what the status of `server` explains: why there is no slot, or why the former spec is still in use. It is
    /// what stays until somebody acts, so that a pool on its way costs no writes.
    #[must_use]
    pub fn explained(self, server: &McpServer) -> Self {
        match self {
            Self::Waiting(Wait::NoSlot { server: name }) => Self::Waiting(match trouble(server) {
                Some(trouble) => Wait::Trouble { server: name, trouble },
                None => Wait::NoSlot { server: name },
            }),
            // One that calls moves later in any case.
            Self::Held { outdated: true, note: None, ref report, .. }
                if is_held_up(server)
                    && report.as_ref().is_none_or(|report| report.activity.in_flight == 0) =>
            {
                let name = server.metadata.name.as_deref().unwrap_or_default();
                let error = report.as_ref().and_then(|report| report.message.as_deref());
                let error = error.map(|error| format!("; {error}")).unwrap_or_default();
                let held_up = "until a slot of the present one is free";
                self.noted(&format!("still uses the former spec of server {name:?}, {held_up}{error}"))
            }
            other => other,
        }
    }

    /// The outcome of a slot that stays although the credential cannot be had, for the reason in `refusal`.
    pub fn withheld(server: &ValidServer, pod: &PoolPod, refusal: Refusal, told: bool) -> Self {
        Self::Withheld { pod: pod_ref(server, pod), revision: pod.revision.clone(), refusal, told }
    }

    /// Why the binding cannot be acted on.
    fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) | Self::Withheld { refusal, .. } => Some(refusal),
            _ => None,
        }
    }
}

fn pod_ref(server: &ValidServer, pod: &PoolPod) -> PodRef {
    PodRef {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        address: pod.address.clone().unwrap_or_default(),
        server_uid: server.key.uid.clone(),
    }
}

/// The outcome of a slot whose sidecar could not be asked, for the reason in `error`. While the kubelet calls the pod ready,
/// what was known of it stands; a slot that no sidecar ever confirmed is none.
pub fn silent(
    session: &AgentSession,
    server: &ValidServer,
    pod: &PoolPod,
    report: Option<SessionReport>,
    error: &str,
) -> Outcome {
    let mut refs =
        session.status.iter().flat_map(|status| &status.servers).filter_map(|held| held.pod_ref.as_ref());
    let confirmed = report.is_some() || refs.any(|held| held.uid == pod.uid);
    if pod.life == Life::Ready && confirmed {
        Outcome::kept(server, pod, report)
    } else {
        Outcome::Unconfirmed { error: error.to_owned() }
    }
}

/// The status of `session` after a pass at `now`; `outcomes` are in the order of `spec.servers`.
pub fn status(
    session: &AgentSession,
    outcomes: &[Outcome],
    gateway_url: &str,
    now: Moment,
) -> AgentSessionStatus {
    let previous = session.status.as_ref();
    let late = bind_deadline(session, now) <= now;
    let servers: Vec<BindingStatus> = session
        .spec
        .servers
        .iter()
        .zip(outcomes)
        .map(|(binding, outcome)| {
            let before =
                previous.and_then(|status| status.servers.iter().find(|server| server.name == binding.name));
            let entry = entry(&binding.name, outcome, before, late);
            let next_retry_time = next_retry(outcome, before, now);
            let url =
                (entry.state != BindingState::Pending).then(|| url(session, &binding.name, gateway_url));
            BindingStatus { url, next_retry_time, ..entry }
        })
        .collect();
    let findings = vec![
        unrefused(ConditionType::Accepted, Reason::Accepted, outcomes),
        unrefused(ConditionType::ResolvedRefs, Reason::ResolvedRefs, outcomes),
        ready(&servers),
    ];
    let conditions = previous.map_or(&[][..], |status| &status.conditions);
    let generation = session.metadata.generation;
    AgentSessionStatus {
        observed_generation: generation,
        conditions: merge(conditions, findings, generation, now),
        servers,
        unconfirmed: previous.map(|status| status.unconfirmed.clone()).unwrap_or_default(),
    }
}

/// Whether no refusal concerns the condition `type_`; else every one is told, under the reason of the first.
fn unrefused(type_: ConditionType, holds: Reason, outcomes: &[Outcome]) -> Finding {
    let refusals: Vec<&Refusal> =
        outcomes.iter().filter_map(Outcome::refusal).filter(|refusal| refusal.concerns() == type_).collect();
    let Some(first) = refusals.first() else { return Finding::holds(type_, holds, "") };
    let texts: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    Finding::fails(type_, first.reason(), texts.join("; "))
}

/// When to look again although no event came; none when all is settled.
pub fn next_look(session: &AgentSession, outcomes: &[Outcome], now: Moment) -> Option<Moment> {
    let deadline = Some(bind_deadline(session, now)).filter(|deadline| *deadline > now);
    let waiting = || deadline.map_or(now.plus(WAITING), |deadline| deadline.min(now.plus(WAITING)));
    let next = |outcome: &Outcome| match outcome {
        Outcome::Waiting(Wait::Moving { .. } | Wait::Unheard { .. }) | Outcome::Unconfirmed { .. } => {
            Some(now.plus(MOVING).min(waiting()))
        }
        Outcome::Held { outdated: true, .. } | Outcome::Withheld { told: false, .. } => {
            Some(now.plus(MOVING))
        }
        Outcome::Refused(refusal) | Outcome::Withheld { refusal, .. } if refusal.is_unseen() => {
            let uid = session.metadata.uid.as_deref().unwrap_or_default();
            Some(now.plus(spread(REFUSED, uid)))
        }
        Outcome::Waiting(_) => Some(waiting()),
        Outcome::Held { .. } | Outcome::Refused(_) | Outcome::Withheld { .. } | Outcome::Invalid { .. } => {
            None
        }
    };
    outcomes.iter().filter_map(next).min()
}

/// URL of one server of a session.
fn url(session: &AgentSession, server: &str, gateway_url: &str) -> String {
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    let (namespace, name) = (part(&session.metadata.namespace), part(&session.metadata.name));
    format!("{}/{namespace}/{name}/{server}/mcp", gateway_url.trim_end_matches('/'))
}

fn entry(name: &str, outcome: &Outcome, before: Option<&BindingStatus>, late: bool) -> BindingStatus {
    let pending = |reason: Reason, error: &str| BindingStatus {
        name: name.to_owned(),
        state: BindingState::Pending,
        reason: Some(
            if late && reason == Reason::Pending { Reason::BindTimeout } else { reason }.as_str().to_owned(),
        ),
        last_error: Some(clip(error, ERROR_BYTES)),
        next_retry_time: None,
        revision: None,
        url: None,
        pod_ref: None,
    };
    // Of the pod that held the slot nobody has heard that it is over there: the end asks it, or tells that it is gone.
    let still_named = |entry: BindingStatus| BindingStatus {
        pod_ref: before.and_then(|before| before.pod_ref.clone()),
        ..entry
    };
    match outcome {
        Outcome::Refused(refusal) => still_named(pending(refusal.reason(), &refusal.to_string())),
        Outcome::Waiting(wait) => pending(wait.reason(), &wait.to_string()),
        Outcome::Unconfirmed { error } => still_named(pending(Reason::Pending, error)),
        Outcome::Invalid { server, error } => {
            pending(Reason::InvalidSpec, &format!("server {server:?}: {error}"))
        }
        Outcome::Withheld { pod, revision, refusal, .. } => {
            let (reason, error) = (refusal.reason().as_str(), refusal.to_string());
            held(name, pod, revision, Some((reason, Some(&error))))
        }
        Outcome::Held { pod, revision, report, note, .. } => {
            let entry = if let Some(report) = report {
                let trouble = report.failure.map(|failure| (failure.as_str(), report.message.as_deref()));
                held(name, pod, revision, trouble)
            } else {
                // No news is no change: a sidecar whose stream is down said this before.
                let same =
                    before.filter(|before| before.pod_ref.as_ref().is_some_and(|held| held.uid == pod.uid));
                same.cloned().unwrap_or_else(|| held(name, pod, revision, None))
            };
            let note = note.as_ref().map(|note| clip(note, ERROR_BYTES));
            BindingStatus { last_error: note.or(entry.last_error), ..entry }
        }
    }
}

/// Before when the sidecar makes no attempt. A time that status has stays until it has passed; a new one is written when it is far
/// enough away, so that there are few writes while the pauses are short and few when they are long.
fn next_retry(outcome: &Outcome, before: Option<&BindingStatus>, now: Moment) -> Option<Time> {
    let Outcome::Held { report, .. } = outcome else { return None };
    let held = before.and_then(|before| before.next_retry_time.clone());
    let Some(report) = report else { return held.filter(|held| Moment::from_api(held) > now) };
    let next = Moment(i64::try_from(report.next_retry_unix_millis?).ok()?);
    let time = next.to_api();
    if next <= now {
        return None;
    }
    (held.as_ref() == Some(&time) || now.until(next) >= WORTH_TELLING).then_some(time)
}

/// A slot that is held; `trouble` is a reason and its text.
fn held(name: &str, pod: &PodRef, revision: &str, trouble: Option<(&str, Option<&str>)>) -> BindingStatus {
    BindingStatus {
        name: name.to_owned(),
        state: if trouble.is_some() { BindingState::Degraded } else { BindingState::Bound },
        reason: trouble.map(|(reason, _)| reason.to_owned()),
        last_error: trouble.and_then(|(_, text)| text).map(|text| clip(text, ERROR_BYTES)),
        next_retry_time: None,
        revision: Some(revision.to_owned()),
        url: None,
        pod_ref: Some(pod.clone()),
    }
}

/// Ready while at least one server works; with the reason Degraded when not all do.
fn ready(servers: &[BindingStatus]) -> Finding {
    let bad: Vec<&BindingStatus> =
        servers.iter().filter(|server| server.state != BindingState::Bound).collect();
    let message = servers.iter().filter_map(text).collect::<Vec<_>>().join("; ");
    let Some(first) = bad.first() else {
        return Finding::holds(ConditionType::Ready, Reason::Bound, message);
    };
    if bad.len() < servers.len() {
        return Finding::holds(ConditionType::Ready, Reason::Degraded, message);
    }
    let reason = first.reason.as_deref().and_then(reason_of).unwrap_or(Reason::Pending);
    Finding::fails(ConditionType::Ready, reason, message)
}

/// What is wrong at a server, which is named once.
fn text(server: &BindingStatus) -> Option<String> {
    let (name, error) = (format!("server {:?}", server.name), server.last_error.as_deref());
    match error {
        Some(error) if error.contains(&name) => Some(error.to_owned()),
        Some(error) => Some(format!("{name}: {error}")),
        None => (server.state != BindingState::Bound).then_some(name),
    }
}

/// The reason of a binding's text, among those that a binding can have.
fn reason_of(text: &str) -> Option<Reason> {
    [
        Reason::Pending,
        Reason::BindTimeout,
        Reason::LimitReached,
        Reason::InvalidSpec,
        Reason::RefNotFound,
        Reason::RefNotPermitted,
        Reason::InvalidCredential,
        Reason::Unauthorized,
        Reason::InitializeTimeout,
        Reason::ProtocolError,
        Reason::RateLimited,
        Reason::UpstreamUnreachable,
        Reason::TLSUntrusted,
        Reason::QuotaExceeded,
        Reason::PodForbidden,
        Reason::Unschedulable,
        Reason::ImagePullFailed,
    ]
    .into_iter()
    .find(|reason| reason.as_str() == text)
}

#[cfg(test)]
mod tests;
