//! What status remembers of pods that a session has left or lost: whatever becomes of the operator, the end of the session then
//! tells what nobody confirmed.

use crate::end::{Holding, State};
use berth_api::{AgentSessionStatus, BindingState, BindingStatus, UnconfirmedPod};
use berth_wire::{EndReport, Outcome, SessionReport, SessionState};

/// Pods that are remembered of one session, so that its object stays small. Beyond that those are forgotten first that may still
/// tell that all is over.
const MOST: usize = 16;

/// Has `status` remember what of `holdings`, every pod that holds or held the session, is not confirmed to be over. Its entries
/// are those of now, its list of pods that of before.
pub fn remember(status: &mut AgentSessionStatus, holdings: &[Holding]) {
    settle(&mut status.servers, holdings);
    let named = |uid: &str| {
        status.servers.iter().filter_map(|entry| entry.pod_ref.as_ref()).any(|pod| pod.uid == uid)
    };
    // A pod that never took the session for certain has nothing of it. One that an entry names is remembered there, unless its
    // sidecar was restarted: what that had open upstream its end does not tell.
    let stays = |holding: &&Holding| {
        holding.taken && (holding.is_lost() || !(holding.is_confirmed() || named(&holding.pod_uid)))
    };
    let order = |holding: &&Holding| {
        let before = status.unconfirmed.iter().position(|held| held.uid == holding.pod_uid);
        (before.unwrap_or(usize::MAX), holding.server.clone(), holding.pod_uid.clone())
    };
    let mut pods: Vec<&Holding> = holdings.iter().filter(stays).collect();
    pods.sort_by_cached_key(|holding| (may_still_tell(holding), order(holding)));
    pods.truncate(MOST);
    pods.sort_by_cached_key(order);
    let pod = |holding: &Holding| UnconfirmedPod {
        server: holding.server.clone(),
        name: holding.pod.clone(),
        uid: holding.pod_uid.clone(),
        restarted: holding.is_lost(),
    };
    status.unconfirmed = pods.into_iter().map(pod).collect();
}

/// Whether it may yet be confirmed that nothing is left in the pod. Status alone knows of one that is lost; a sidecar that holds
/// the session can be found by what it tells.
fn may_still_tell(holding: &Holding) -> bool {
    let is_final = holding.is_over() && holding.state != State::Stray;
    !(holding.is_lost() || is_final)
}

/// Takes the pods out of entries that wait or end of which it is known that nothing is left there: they may be gone before
/// somebody who does not know it asks.
fn settle(servers: &mut [BindingStatus], holdings: &[Holding]) {
    let is_over = |uid: &str| holdings.iter().any(|holding| holding.pod_uid == uid && holding.is_confirmed());
    for entry in servers {
        if matches!(entry.state, BindingState::Pending | BindingState::Ending) {
            entry.pod_ref.take_if(|pod| is_over(&pod.uid));
        }
    }
}

/// What stands of a session in a pod that went, given a report of its sidecar, and whether that `is_last`, since it was heard
/// until the pod was seen to end: the end that it told, or that there is nothing to end since nothing was ever connected.
pub fn last_word(report: &SessionReport, is_last: bool) -> Option<SessionReport> {
    let is_untouched = report.activity.connects == 0 && report.activity.in_flight == 0;
    match report.state {
        SessionState::Ended => Some(report.clone()),
        SessionState::Idle if is_last && is_untouched => {
            let end = EndReport { remove: Outcome::Confirmed, ..EndReport::NOTHING_HELD };
            Some(SessionReport { state: SessionState::Ended, end: Some(end), ..report.clone() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
