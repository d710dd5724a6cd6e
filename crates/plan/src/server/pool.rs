//! Which pods of a pool are made and which are deleted.
//!
//! Wanted are `warm` free slots beside one for each session that waits, in pods of the current revision. A pod that holds
//! a session, or may hold one, is never deleted.

use crate::name;
use crate::pod::{Life, PoolPod};
use crate::server::validate::{PoolSize, ValidServer};
use crate::time::Moment;
use berth_api::Subject;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// Most pods made, and most pods deleted, in one pass: the rest follows when the cache has seen these.
const MAX_CHANGES: usize = 16;
/// A pod that is not ready, and whose sidecar does not answer, for so long has lost its sessions: they are placed anew.
pub const LOST_AFTER: Duration = Duration::from_mins(1);
/// A pod that is not ready, and whose sidecar does not answer, for so long counts as empty when nobody was promised a slot.
const ABANDONED_AFTER: Duration = Duration::from_mins(2);

/// A session that names the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// UID of the session.
    pub session: String,
    /// Whose session it is.
    pub subject: Subject,
    /// UID of the pod that it was promised a slot in.
    pub pod: Option<String>,
    /// UIDs of pods that it has left: a session cannot come back to a pod where it ended.
    pub barred: Vec<String>,
    /// When the session was created: the oldest is served first.
    pub created: Moment,
}

/// What is known of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// Every pod of the server, whatever its state.
    pub pods: &'a [PoolPod],
    /// Every session that names the server and does not end.
    pub claims: &'a [Claim],
    /// Image that sidecars are made with now.
    pub image: &'a str,
}

/// A pod, by name and UID: another pod of that name is not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodId {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
}

/// What is to be done to a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Names of the pods to make.
    pub create: Vec<String>,
    /// As many names more, for those that turn out to be taken by pods of somebody else.
    pub alternatives: Vec<String>,
    /// Pods to delete.
    pub delete: Vec<PodId>,
    /// Sessions that a free slot waits for, oldest first.
    pub wake: Vec<String>,
    /// Sessions that wait for a slot and may have one by the bounds of the spec.
    pub waiting: u32,
}

/// How a pod fits what would be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// It is what would be made now.
    Current,
    /// It has the revision, but another number of slots or another image: takes sessions as a last resort.
    Aging,
    /// It has another revision: takes no session.
    Old,
}

/// How `pod` fits what would be made now.
pub fn fit(pod: &PoolPod, server: &ValidServer, image: &str) -> Fit {
    if pod.revision != server.key.revision {
        Fit::Old
    } else if pod.slots != server.pool.slots || pod.image != image {
        Fit::Aging
    } else {
        Fit::Current
    }
}

/// Whether a session that was promised a slot in `pod` still has it.
pub fn keeps_sessions(pod: &PoolPod, now: Moment) -> bool {
    let lost = matches!(pod.life, Life::NotReady { since } if since.plus(LOST_AFTER) <= now);
    pod.is_alive() && (pod.occupancy.synced || !lost)
}

/// What is to be done to the pool of `server`.
pub fn plan(server: &ValidServer, observed: &Observed<'_>, now: Moment) -> Plan {
    let waiting = waiting(&server.pool, observed, now);
    let held: u32 = observed.pods.iter().map(|pod| count(pod.occupancy.held.len())).sum();
    let demand = count(waiting.len());
    let bound = server.pool.max_sessions.map_or(u32::MAX, |most| most.saturating_sub(held));
    let wanted = server.pool.warm.saturating_add(demand).min(bound);

    // A slot that a waiting session may not take is none for it: its pod is made, and stays until it is taken.
    let shut = count(waiting.iter().filter(|claim| is_shut_out(claim, server, observed)).count()).min(bound);
    let keep_spare = waiting.iter().any(|claim| !claim.barred.is_empty());

    let (mut delete, free) = deletions(server, observed, wanted, keep_spare, now);
    delete.truncate(MAX_CHANGES);
    let room = server.pool.max_pods.saturating_sub(count(observed.pods.len()));
    let missing = wanted.saturating_sub(free).max(shut).div_ceil(server.pool.slots);
    let number = missing.min(room).min(count(MAX_CHANGES));
    let mut create = names(server, observed.pods, number.saturating_mul(2));
    let alternatives = create.split_off(create.len().min(number as usize));
    let ready =
        observed.pods.iter().filter(|pod| pod.is_placeable() && fit(pod, server, observed.image) != Fit::Old);
    let free_now: u32 = ready.map(PoolPod::free).sum();
    let wake = waiting.into_iter().take(free_now as usize).map(|claim| claim.session.clone()).collect();
    Plan { create, alternatives, delete, wake, waiting: demand }
}

/// Sessions without a slot that may have one, oldest first.
fn waiting<'a>(pool: &PoolSize, observed: &Observed<'a>, now: Moment) -> Vec<&'a Claim> {
    let placed = |claim: &Claim| {
        let pod = claim.pod.as_ref().and_then(|uid| observed.pods.iter().find(|pod| pod.uid == *uid));
        pod.is_some_and(|pod| keeps_sessions(pod, now))
    };
    let (placed, mut unplaced): (Vec<&Claim>, Vec<&Claim>) =
        observed.claims.iter().partition(|claim| placed(claim));
    unplaced.sort_by(|a, b| (a.created, &a.session).cmp(&(b.created, &b.session)));
    let mut of_subject: HashMap<&Subject, u32> = HashMap::new();
    for claim in &placed {
        *of_subject.entry(&claim.subject).or_default() += 1;
    }
    let room = pool.max_sessions.map_or(usize::MAX, |most| (most as usize).saturating_sub(placed.len()));
    unplaced
        .into_iter()
        .filter(|claim| {
            let held = of_subject.entry(&claim.subject).or_default();
            let fits = pool.max_sessions_per_subject.is_none_or(|most| *held < most);
            *held += u32::from(fits);
            fits
        })
        .take(room)
        .collect()
}

/// Whether every slot that is free, or will be when its pod is ready, is in a pod that the session has left.
fn is_shut_out(claim: &Claim, server: &ValidServer, observed: &Observed<'_>) -> bool {
    let open = |pod: &PoolPod| {
        pod.is_alive()
            && pod.free() > 0
            && fit(pod, server, observed.image) != Fit::Old
            && !claim.barred.contains(&pod.uid)
    };
    !claim.barred.is_empty() && !observed.pods.iter().any(open)
}

/// Pods to delete, and the free slots of current pods that stay; with `keep_spare` none goes for being more than wanted.
fn deletions(
    server: &ValidServer,
    observed: &Observed<'_>,
    wanted: u32,
    keep_spare: bool,
    now: Moment,
) -> (Vec<PodId>, u32) {
    let mut delete = Vec::new();
    let mut spare = Vec::new();
    let (mut free, mut free_ready) = (0_u32, 0_u32);
    let mut aging = Vec::new();
    for pod in observed.pods.iter().filter(|pod| pod.life != Life::Terminating) {
        let empty = is_surely_empty(pod, now);
        let used_up = pod.slots == 1 && pod.occupancy.used;
        match fit(pod, server, observed.image) {
            _ if empty && (pod.life == Life::Dead || used_up || is_abandoned(pod, now)) => {
                delete.push(id(pod));
            }
            Fit::Old if empty => delete.push(id(pod)),
            Fit::Aging if empty => aging.push(pod),
            Fit::Current if pod.life != Life::Dead && keeps_sessions(pod, now) => {
                free += pod.free();
                free_ready += if pod.is_placeable() { pod.free() } else { 0 };
                if empty {
                    spare.push(pod);
                }
            }
            _ => {}
        }
    }
    // A pod with an older image goes once newer ones have taken over, or when it stands in their way.
    let full = count(observed.pods.len()) >= server.pool.max_pods;
    if free_ready >= wanted || (full && free < wanted) {
        delete.extend(aging.into_iter().map(id));
    }
    // Pods that are not ready yet go first, then those with the highest ordinal.
    spare.sort_by_key(|pod| (pod.life == Life::Ready, std::cmp::Reverse((pod.name.len(), pod.name.clone()))));
    for pod in spare {
        if keep_spare || free.saturating_sub(pod.free()) < wanted {
            continue;
        }
        free -= pod.free();
        delete.push(id(pod));
    }
    (delete, free)
}

/// Whether nobody can hold a slot in `pod`, known or unknown.
fn is_surely_empty(pod: &PoolPod, now: Moment) -> bool {
    match pod.life {
        Life::Dead => true,
        _ if !pod.occupancy.held.is_empty() => false,
        Life::Starting => true,
        Life::Ready | Life::Terminating => pod.occupancy.synced,
        Life::NotReady { .. } => pod.occupancy.synced || is_abandoned(pod, now),
    }
}

fn is_abandoned(pod: &PoolPod, now: Moment) -> bool {
    let long = matches!(pod.life, Life::NotReady { since } if since.plus(ABANDONED_AFTER) <= now);
    long && !pod.occupancy.synced && pod.occupancy.held.is_empty()
}

/// Names of `number` new pods: the lowest ordinals that no pod has.
fn names(server: &ValidServer, pods: &[PoolPod], number: u32) -> Vec<String> {
    let taken: BTreeSet<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
    let key = &server.key;
    name::free_names(number, &taken, |ordinal| name::pool_pod(&key.name, &key.uid, &key.revision, ordinal))
}

fn id(pod: &PoolPod) -> PodId {
    PodId { name: pod.name.clone(), uid: pod.uid.clone() }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
