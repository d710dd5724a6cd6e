//! Which pods of a pool are made and which are deleted.
//!
//! Wanted are `warm` free slots beside one for each session that waits, in pods of the current revision. A pod that holds
//! a session, or may hold one, is never deleted.

use crate::name;
use crate::pod::{Life, PoolPod};
use crate::server::validate::{PoolSize, ValidServer};
use crate::time::Moment;
use berth_api::Subject;
use std::collections::{BTreeSet, HashMap, HashSet};
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
    /// Whether its status says that it waits for a bound of the server.
    pub told_limit: bool,
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
    /// Sessions to look at: those that a free slot waits for, oldest first, then those that do not say yet that others have taken
    /// the last slot that a bound permits.
    pub wake: Vec<String>,
    /// Sessions that wait for a slot and may have one by the bounds of the spec.
    pub waiting: u32,
    /// Whether a pod is not ready and its sidecar silent: time alone decides what becomes of those who are in it.
    pub silent: bool,
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
    pod.is_alive() && !is_silent_for(LOST_AFTER, pod, now)
}

/// What is to be done to the pool of `server`.
pub fn plan(server: &ValidServer, observed: &Observed<'_>, now: Moment) -> Plan {
    let waiting = waiting(&server.pool, observed, now);
    // One that moved may be in two pods for a while; the bound counts it once.
    let held: HashSet<&String> = observed.pods.iter().flat_map(|pod| &pod.occupancy.held).collect();
    let demand = count(waiting.len());
    let bound = server.pool.max_sessions.map_or(u32::MAX, |most| most.saturating_sub(count(held.len())));
    let wanted = server.pool.warm.saturating_add(demand).min(bound);

    // A slot that a waiting session may not take is none for it: its pod is made, and stays until it is taken.
    let is_shut = |claim: &&&Claim| is_shut_out(&claim.barred, server, observed.pods, observed.image);
    let shut = count(waiting.iter().filter(is_shut).count()).min(bound);
    let keep_spare = waiting.iter().any(|claim| !claim.barred.is_empty());

    let (mut delete, free) = deletions(server, observed, wanted, keep_spare, now);
    if shut > 0 {
        delete.extend(in_the_way(server, observed.pods, &waiting, &delete, now));
    }
    delete.truncate(MAX_CHANGES);
    let room = server.pool.max_pods.saturating_sub(count(observed.pods.len()));
    let missing = wanted.saturating_sub(free).max(shut).div_ceil(server.pool.slots);
    let number = missing.min(room).min(count(MAX_CHANGES));
    let mut create = names(server, observed.pods, number.saturating_mul(2));
    let alternatives = create.split_off(create.len().min(number as usize));
    let ready =
        observed.pods.iter().filter(|pod| pod.is_placeable() && fit(pod, server, observed.image) != Fit::Old);
    let free_now: u32 = ready.map(PoolPod::free).sum();
    let free_for = waiting.into_iter().take(free_now as usize);
    let limited = limited(&server.pool, observed, now).filter(|claim| !claim.told_limit);
    let wake = free_for.chain(limited).map(|claim| claim.session.clone()).collect();
    let silent = observed.pods.iter().any(|pod| is_silent_for(Duration::ZERO, pod, now));
    Plan { create, alternatives, delete, wake, waiting: demand, silent }
}

/// Sessions with a slot and those without.
fn parted<'a>(observed: &Observed<'a>, now: Moment) -> (Vec<&'a Claim>, Vec<&'a Claim>) {
    let placed = |claim: &&Claim| {
        let pod = claim.pod.as_ref().and_then(|uid| observed.pods.iter().find(|pod| pod.uid == *uid));
        pod.is_some_and(|pod| keeps_sessions(pod, now))
    };
    observed.claims.iter().partition(placed)
}

/// How many of `claims` each subject has.
fn by_subject<'a>(claims: &[&'a Claim]) -> HashMap<&'a Subject, u32> {
    let mut of_subject: HashMap<&Subject, u32> = HashMap::new();
    for claim in claims {
        *of_subject.entry(&claim.subject).or_default() += 1;
    }
    of_subject
}

/// Sessions without a slot that may have one, oldest first.
fn waiting<'a>(pool: &PoolSize, observed: &Observed<'a>, now: Moment) -> Vec<&'a Claim> {
    let (placed, mut unplaced) = parted(observed, now);
    unplaced.sort_by(|a, b| (a.created, &a.session).cmp(&(b.created, &b.session)));
    let mut of_subject = by_subject(&placed);
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

/// Sessions without a slot that may have none, since those that have one reach a bound.
fn limited<'a>(
    pool: &PoolSize,
    observed: &Observed<'a>,
    now: Moment,
) -> impl Iterator<Item = &'a Claim> + use<'a> {
    let (placed, unplaced) = parted(observed, now);
    let of_subject = by_subject(&placed);
    let full = pool.max_sessions.is_some_and(|most| count(placed.len()) >= most);
    let most = pool.max_sessions_per_subject;
    unplaced.into_iter().filter(move |claim| {
        let held = of_subject.get(&claim.subject).copied().unwrap_or_default();
        full || most.is_some_and(|most| held >= most)
    })
}

/// Whether a slot of `pod` is free, or will be when the pod is ready.
fn offers(pod: &PoolPod, server: &ValidServer, image: &str) -> bool {
    pod.is_alive() && pod.free() > 0 && fit(pod, server, image) != Fit::Old
}

/// Whether every slot that is free, or will be when its pod is ready, is in one of the pods `barred`, which the session has left.
fn is_shut_out(barred: &[String], server: &ValidServer, pods: &[PoolPod], image: &str) -> bool {
    !barred.is_empty() && !pods.iter().any(|pod| offers(pod, server, image) && !barred.contains(&pod.uid))
}

/// Whether a session that has left the pods `barred` finds free slots in them alone, and none of them can be replaced: others
/// hold a slot in each of the pods that `pool.maxPods` permits.
pub fn is_locked_out(
    barred: &[String],
    server: &ValidServer,
    pods: &[PoolPod],
    image: &str,
    now: Moment,
) -> bool {
    let kept = pods.iter().filter(|pod| pod.is_alive() && !is_surely_empty(pod, now)).count();
    is_shut_out(barred, server, pods, image)
        && pods.iter().any(|pod| offers(pod, server, image))
        && count(kept) >= server.pool.max_pods
}

/// Empty pods that stand in the way of sessions which have left them, when the pool has no room for another: as many as make room
/// for one, those first that most of the sessions in `waiting` have left. None once room is on its way, or when it cannot be made.
fn in_the_way(
    server: &ValidServer,
    pods: &[PoolPod],
    waiting: &[&Claim],
    going: &[PodId],
    now: Moment,
) -> Vec<PodId> {
    let stays =
        |pod: &&PoolPod| pod.life != Life::Terminating && going.iter().all(|gone| gone.uid != pod.uid);
    let staying: Vec<&PoolPod> = pods.iter().filter(stays).collect();
    let excess = (staying.len() + 1).saturating_sub(server.pool.max_pods as usize);
    let bars = |pod: &PoolPod| waiting.iter().filter(|claim| claim.barred.contains(&pod.uid)).count();
    let mut ways: Vec<&PoolPod> =
        staying.into_iter().filter(|pod| is_surely_empty(pod, now) && bars(pod) > 0).collect();
    ways.sort_by_key(|pod| (std::cmp::Reverse(bars(pod)), &pod.name));
    if ways.len() < excess {
        return Vec::new();
    }
    ways.into_iter().take(excess).map(id).collect()
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
    is_silent_for(ABANDONED_AFTER, pod, now) && pod.occupancy.held.is_empty()
}

/// Whether `pod` has not been ready for so long and its sidecar has not answered this process for so long: neither alone says
/// that nobody is served there.
fn is_silent_for(span: Duration, pod: &PoolPod, now: Moment) -> bool {
    let long = matches!(pod.life, Life::NotReady { since } if since.plus(span) <= now);
    long && !pod.occupancy.synced && pod.occupancy.silent >= span
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
