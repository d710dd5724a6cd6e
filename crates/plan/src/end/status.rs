//! What the status of an `AgentSession` says while its end lasts.

use crate::condition::{Finding, find, merge};
use crate::end::record::remember;
use crate::end::{Ending, Holding, SHOWN_AFTER, State};
use crate::time::Moment;
use berth_api::{AgentSession, AgentSessionStatus, BindingState, BindingStatus, ConditionType, Reason};
use berth_wire::EndPhase;

/// The status to write while the end waits; none while it is too young to show.
pub fn status(
    session: &AgentSession,
    ending: &Ending,
    holdings: &[Holding],
    now: Moment,
) -> Option<AgentSessionStatus> {
    if now < ending.since.plus(SHOWN_AFTER) {
        return None;
    }
    let mut status = session.status.clone().unwrap_or_default();
    let finding = finding(ending, holdings);
    let ended = merge(&status.conditions, vec![finding], session.metadata.generation, now);
    let ready = Finding::fails(ConditionType::Ready, ended_reason(holdings), "the session is ending");
    let ready = merge(&status.conditions, vec![ready], session.metadata.generation, now);
    let kept = |type_: ConditionType| find(&status.conditions, type_).cloned();
    let settled = [kept(ConditionType::Accepted), kept(ConditionType::ResolvedRefs)];
    status.conditions = settled.into_iter().flatten().chain(ready).chain(ended).collect();
    for server in &mut status.servers {
        server.state = BindingState::Ending;
    }
    remember(&mut status, holdings);
    Some(status)
}

/// The status of a session that has ended, and whose object is there only because others hold it by finalizers of theirs; none
/// when nobody does. It names no pod any more: nothing is held there.
pub fn held_by_others(session: &AgentSession, now: Moment) -> Option<AgentSessionStatus> {
    let holders = session.metadata.finalizers.as_deref().filter(|holders| !holders.is_empty())?;
    let names: Vec<String> = holders.iter().map(|name| format!("{name:?}")).collect();
    let message = format!(
        "the session has ended; its object stays until whoever set them drops these finalizers: {}",
        names.join(", ")
    );
    let mut status = session.status.clone().unwrap_or_default();
    status.unconfirmed.clear();
    let ready = Finding::fails(ConditionType::Ready, Reason::Removing, message);
    let ready = merge(&status.conditions, vec![ready], session.metadata.generation, now);
    let kept = |type_: ConditionType| find(&status.conditions, type_).cloned();
    let settled = [kept(ConditionType::Accepted), kept(ConditionType::ResolvedRefs)];
    status.conditions = settled.into_iter().flatten().chain(ready).collect();
    for server in &mut status.servers {
        let name = std::mem::take(&mut server.name);
        *server = BindingStatus {
            name,
            state: BindingState::Ending,
            reason: None,
            last_error: None,
            next_retry_time: None,
            revision: None,
            url: None,
            pod_ref: None,
        };
    }
    Some(status)
}

fn finding(ending: &Ending, holdings: &[Holding]) -> Finding {
    let left: Vec<String> = holdings.iter().filter_map(left).collect();
    let message = format!("{}: {}", ending.reason.as_str(), left.join("; "));
    Finding::fails(ConditionType::Ended, ended_reason(holdings), message)
}

/// The earliest step that some sidecar is at.
fn ended_reason(holdings: &[Holding]) -> Reason {
    let at = |phase: EndPhase| {
        holdings
            .iter()
            .any(|holding| matches!(&holding.state, State::Answered(report) if report.phase == phase))
    };
    let silent = holdings.iter().any(|holding| matches!(holding.state, State::Silent | State::Unasked));
    if at(EndPhase::Draining) {
        Reason::Draining
    } else if at(EndPhase::Closing) || silent {
        Reason::Closing
    } else {
        Reason::Removing
    }
}

fn left(holding: &Holding) -> Option<String> {
    let what = match &holding.state {
        State::Answered(report) => match report.phase {
            EndPhase::Draining => "running calls may finish",
            EndPhase::Closing => "the upstream session is being ended",
            EndPhase::Ended => return None,
        },
        State::Silent | State::Unasked => "the sidecar gives no answer",
        State::Gone | State::Stray => return None,
    };
    Some(format!("server {:?} in pod {:?}: {what}", holding.server, holding.pod))
}
