//! What the status of an `McpServer` says.

use crate::condition::{Finding, find, merge};
use crate::pod::{PoolPod, Trouble};
use crate::server::pool::{Fit, fit};
use crate::server::validate::{Refusal, ValidServer};
use crate::time::Moment;
use berth_api::{ConditionType, McpServer, McpServerStatus, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use std::collections::HashSet;

/// What one pass found out about a server.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The server, or why it cannot be acted on.
    pub server: Result<&'a ValidServer, &'a Refusal>,
    /// Every pod of the server.
    pub pods: &'a [PoolPod],
    /// Sessions that wait for a slot.
    pub waiting: u32,
    /// Why a pod could not be made.
    pub refused: Option<&'a Trouble>,
    /// Image that sidecars are made with now.
    pub image: &'a str,
}

/// The status of `server` after a pass at `now`.
pub fn status(server: &McpServer, found: &Found<'_>, now: Moment) -> McpServerStatus {
    let previous = server.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let generation = server.metadata.generation;
    let counts = Counts::new(found);
    let findings = match found.server {
        Err(refusal) => refused(refusal),
        Ok(valid) => vec![
            Finding::holds(ConditionType::Accepted, Reason::Accepted, ""),
            Finding::holds(ConditionType::ResolvedRefs, Reason::ResolvedRefs, ""),
            with_former(ready(valid, found, &counts), valid, found, &counts),
        ],
    };
    McpServerStatus {
        observed_generation: generation,
        revision: found.server.ok().map(|valid| valid.key.revision.clone()),
        conditions: merge(previous, findings, generation, now),
        pods: number(found.pods.len()),
        ready_pods: counts.ready_pods,
        sessions: counts.sessions,
        free_slots: counts.free_slots,
        sessions_per_pod: found.server.ok().map(|valid| i32::try_from(valid.pool.slots).unwrap_or(i32::MAX)),
    }
}

/// What a refusal to make a pod means, by the API server's text; nothing in a namespace that is being deleted, where there
/// is nobody to tell.
pub fn create_trouble(message: &str) -> Option<Trouble> {
    if message.contains("being terminated") {
        return None;
    }
    let quota = message.contains("exceeded quota");
    let reason = if quota { Reason::QuotaExceeded } else { Reason::PodForbidden };
    Some(Trouble { reason, message: format!("a pod of the pool was refused: {message}") })
}

/// What it means that something which pods need before they run could not be made or looked at. `refused` says what, if the API
/// server would not have it, so that somebody has to act. Any other text may be a new one each time, and each would be a write
/// that asks for the next look at once: it is in the log alone.
pub fn prepare_trouble(refused: Option<&str>) -> Trouble {
    let (reason, text, remedy) = match refused {
        Some(what) if what.contains("exceeded quota") => (Reason::QuotaExceeded, what, "raise the quota"),
        Some(what) => (Reason::PodForbidden, what, "let the operator do so, or delete what is in its way"),
        None => (
            Reason::PoolStarting,
            "the certificate or the network policy of its pods cannot be kept now",
            "the operator tries again, and logs why",
        ),
    };
    Trouble { reason, message: format!("no pod of the pool can be made: {text}; {remedy}") }
}

/// What it means that the pod `name` cannot be made because there is one of that name which is not of this server.
pub fn name_taken(name: &str) -> Trouble {
    let message = format!(
        "the name of pod {name:?} of the pool is taken by a pod that is not of this McpServer; delete it"
    );
    Trouble { reason: Reason::PodForbidden, message }
}

/// What it means that the pod `name` of the pool has lost its labels, which cannot be put back for the reason in `why`.
pub fn labels_lost(name: &str, why: &str) -> Trouble {
    let message = format!(
        "pod {name:?} of the pool has lost its labels, and they cannot be put back: {why}; delete it"
    );
    Trouble { reason: Reason::PodForbidden, message }
}

/// Why `server` has no slot for a session that waits, as far as somebody has to act on it: what its status says of the spec that
/// it has now. By the reason alone: the text may hold figures that change by themselves, and would be written to each session.
pub fn trouble(server: &McpServer) -> Option<Trouble> {
    let ready = current_ready(server).filter(|ready| ready.status == "False")?;
    let reason =
        [Reason::QuotaExceeded, Reason::PodForbidden, Reason::Unschedulable, Reason::ImagePullFailed];
    let reason = reason.into_iter().find(|reason| reason.as_str() == ready.reason)?;
    let name = server.metadata.name.as_deref().unwrap_or_default();
    let message = format!("its pool says {reason}, see kubectl describe mcpserver {name}");
    Some(Trouble { reason, message })
}

/// Whether sessions go on with the former spec of `server`, since no slot of its present one is free or on its way, as its status
/// says.
pub fn is_held_up(server: &McpServer) -> bool {
    let none_free = server.status.as_ref().is_some_and(|status| status.free_slots == 0);
    none_free && current_ready(server).is_some_and(|ready| ready.reason != Reason::PoolStarting.as_str())
}

/// The condition Ready of `server`, if it is of the spec that it has now.
fn current_ready(server: &McpServer) -> Option<&Condition> {
    let ready = find(&server.status.as_ref()?.conditions, ConditionType::Ready)?;
    (ready.observed_generation == server.metadata.generation).then_some(ready)
}

struct Counts {
    ready_pods: i32,
    sessions: i32,
    free_slots: i32,
    /// Sessions in pods of a former revision.
    former: usize,
}

impl Counts {
    fn new(found: &Found<'_>) -> Self {
        let ready = || found.pods.iter().filter(|pod| pod.is_placeable());
        let sessions: HashSet<&String> = found.pods.iter().flat_map(|pod| &pod.occupancy.held).collect();
        let takes = |pod: &&PoolPod| found.server.is_ok_and(|valid| fit(pod, valid, found.image) != Fit::Old);
        let former = found.pods.iter().filter(|pod| found.server.is_ok() && pod.is_alive() && !takes(pod));
        let former: HashSet<&String> = former.flat_map(|pod| &pod.occupancy.held).collect();
        Self {
            ready_pods: number(ready().count()),
            sessions: number(sessions.len()),
            free_slots: ready().filter(takes).map(|pod| number(pod.free() as usize)).sum(),
            former: former.len(),
        }
    }
}

fn refused(refusal: &Refusal) -> Vec<Finding> {
    let text = refusal.to_string();
    let accepted = match refusal.concerns() {
        ConditionType::Accepted => Finding::fails(ConditionType::Accepted, refusal.reason(), text.clone()),
        _ => Finding::holds(ConditionType::Accepted, Reason::Accepted, ""),
    };
    let resolved = match refusal.concerns() {
        ConditionType::ResolvedRefs => {
            Finding::fails(ConditionType::ResolvedRefs, refusal.reason(), text.clone())
        }
        _ => Finding::holds(ConditionType::ResolvedRefs, Reason::ResolvedRefs, ""),
    };
    vec![accepted, resolved, Finding::fails(ConditionType::Ready, refusal.reason(), text)]
}

/// Ready means that a session made now gets a slot, or that none is to be kept and none is asked for.
fn ready(valid: &ValidServer, found: &Found<'_>, counts: &Counts) -> Finding {
    let idle = valid.pool.warm == 0 && found.waiting == 0 && found.refused.is_none();
    let limit = valid.pool.max_sessions.and_then(|most| i32::try_from(most).ok());
    if let Some(most) = limit.filter(|most| counts.sessions >= *most) {
        let text =
            format!("{most} sessions hold a slot, which is pool.maxSessions; end sessions or raise it");
        return Finding::fails(ConditionType::Ready, Reason::LimitReached, text);
    }
    if counts.free_slots > 0 || idle {
        // Sessions in such a pod cannot be ended or told of changes until somebody acts. A pool that cannot grow serves on.
        let locked = found.pods.iter().filter(|pod| pod.locked).find_map(|pod| pod.trouble.as_ref());
        let text = locked.or(found.refused).map_or("", |trouble| trouble.message.as_str());
        return Finding::holds(ConditionType::Ready, Reason::PoolReady, text);
    }
    let current = |pod: &&PoolPod| pod.is_alive() && fit(pod, valid, found.image) == Fit::Current;
    let trouble = found.pods.iter().filter(current).find_map(|pod| pod.trouble.as_ref());
    if let Some(trouble) = found.refused.or(trouble) {
        return Finding::fails(ConditionType::Ready, trouble.reason, trouble.message.clone());
    }
    let on_the_way = found.pods.iter().filter(current).find(|pod| !pod.is_placeable());
    if on_the_way.is_none() && found.pods.len() >= valid.pool.max_pods as usize {
        return Finding::fails(ConditionType::Ready, Reason::LimitReached, all_in_use(valid));
    }
    let text = on_the_way.map_or_else(
        || "pods of the pool are being made".to_owned(),
        |pod| format!("pod {:?} is not ready yet", pod.name),
    );
    Finding::fails(ConditionType::Ready, Reason::PoolStarting, text)
}

/// `ready`, and how many sessions it keeps from the present spec; nothing while pods are on their way.
fn with_former(mut ready: Finding, valid: &ValidServer, found: &Found<'_>, counts: &Counts) -> Finding {
    if counts.former == 0 || counts.free_slots > 0 || ready.reason == Reason::PoolStarting {
        return ready;
    }
    let held = format!(
        "{} of the sessions still {} the former spec, until a slot of the present one is free",
        counts.former,
        if counts.former == 1 { "uses" } else { "use" }
    );
    // A pool that is to keep no slot free, and is asked for none, is Ready, and has none for them either.
    ready.message = match ready.message.as_str() {
        "" if found.pods.len() >= valid.pool.max_pods as usize => format!("{}; {held}", all_in_use(valid)),
        "" => format!("{held}; raise pool.warm"),
        why => format!("{why}; {held}"),
    };
    ready
}

fn all_in_use(valid: &ValidServer) -> String {
    format!("all {} pods of pool.maxPods are in use; end sessions or raise it", valid.pool.max_pods)
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
