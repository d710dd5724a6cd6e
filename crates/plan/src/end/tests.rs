//! The step machine, its report and its status, case by case.

use super::*;
use crate::session::validate::fixture::session;
use berth_wire::Outcome;

const DELETED: Moment = Moment(1_000_000);

fn bounds() -> Ending {
    ending(&session("{}"), &[], DELETED)
}

fn at(millis: i64) -> Moment {
    Moment(DELETED.0 + millis)
}

/// An operator that has run for long.
const STARTED: Moment = Moment(0);

fn holding(state: State) -> Holding {
    Holding {
        server: "everything".into(),
        pod: "everything-x-0".into(),
        pod_uid: "pod-0".into(),
        state,
        taken: false,
        restarted: false,
    }
}

fn answered(phase: EndPhase, drain: Outcome, close: Outcome, remove: Outcome) -> State {
    State::Answered(EndReport { phase, drain, close, remove })
}

fn confirmed() -> State {
    answered(EndPhase::Ended, Outcome::NotNeeded, Outcome::Confirmed, Outcome::Confirmed)
}

fn draining() -> State {
    answered(EndPhase::Draining, Outcome::Unconfirmed, Outcome::Unconfirmed, Outcome::Unconfirmed)
}

fn step(states: Vec<State>, now: Moment) -> Step {
    let holdings: Vec<Holding> = states.into_iter().map(holding).collect();
    next(&bounds(), &Observed { holdings: &holdings, unheard: false, told: false, started: STARTED }, now)
}

fn report(states: Vec<State>) -> Report {
    Report::new(EndReason::Completed, &states.into_iter().map(holding).collect::<Vec<_>>())
}

#[test]
fn a_session_that_holds_nothing_is_told_at_once() {
    assert_eq!(step(vec![], at(0)), Step::Tell(Report { reason: EndReason::Cleared, unconfirmed: vec![] }));
}

#[test]
fn sidecars_that_were_not_asked_are_asked_together() {
    assert_eq!(step(vec![State::Unasked, confirmed(), State::Unasked], at(0)), Step::Close(vec![0, 2]));
}

#[test]
fn an_end_that_goes_on_is_looked_at_when_it_begins_to_show_and_then_now_and_again() {
    assert_eq!(step(vec![draining()], at(100)), Step::Wait(at(2_000)));
    assert_eq!(step(vec![draining()], at(2_000)), Step::Wait(at(7_000)));
    assert_eq!(step(vec![State::Silent, confirmed()], at(3_000)), Step::Wait(at(4_000)));
}

#[test]
fn the_bound_ends_it_whatever_is_left_and_not_a_millisecond_earlier() {
    assert_eq!(bounds().bound(), at(44_000));
    for state in [State::Silent, draining()] {
        let early = step(vec![state.clone()], at(43_999));
        assert!(!matches!(early, Step::Tell(_)), "{early:?}");
        let Step::Tell(report) = step(vec![state], at(44_000)) else { panic!("not told") };
        assert!(!report.is_complete());
    }
}

#[test]
fn a_hung_sidecar_is_waited_for_until_the_bound_and_one_that_is_asked_there_for_a_second() {
    let within = |started, now| answer_within(&bounds(), started, now).as_millis();
    for (now, millis) in [(0, 44_000), (40_000, 4_000), (43_500, 1_000), (44_000, 1_000), (3_600_000, 1_000)]
    {
        assert_eq!(within(STARTED, at(now)), millis, "at {now}");
    }
    assert_eq!(within(at(3_600_000), at(3_601_000)), 9_000, "an operator that was away has not asked yet");
}

#[test]
fn a_sidecar_that_was_never_asked_is_asked_past_the_bound_too() {
    let late = at(3_600_000);
    assert_eq!(step(vec![State::Silent, State::Unasked], late), Step::Close(vec![1]));
    assert!(matches!(step(vec![State::Silent, State::Silent], late), Step::Tell(_)));
    let Step::Tell(report) = step(vec![confirmed(), State::Gone], late) else { panic!("not told") };
    assert_eq!(report.unconfirmed.len(), 1);
}

#[test]
fn an_operator_that_has_just_started_waits_past_the_bound_for_sidecars_and_not_for_ever() {
    let started = at(3_600_000);
    let later = |millis| Moment(started.0 + millis);
    let silent = [holding(State::Silent)];
    for (holdings, unheard) in [(&[][..], true), (&silent[..], false)] {
        let observed = Observed { holdings, unheard, told: false, started };
        assert_eq!(next(&bounds(), &observed, later(0)), Step::Wait(later(1_000)));
        assert_eq!(next(&bounds(), &observed, later(9_500)), Step::Wait(later(10_000)));
        assert!(matches!(next(&bounds(), &observed, later(10_000)), Step::Tell(_)));
    }
    // A sidecar that answered has been heard.
    let answered = [holding(draining())];
    let observed = Observed { holdings: &answered, unheard: false, told: false, started };
    assert!(matches!(next(&bounds(), &observed, later(0)), Step::Tell(_)));
}

#[test]
fn nothing_is_told_while_a_pod_may_hold_the_session_unheard() {
    let observed = Observed { holdings: &[], unheard: true, told: false, started: STARTED };
    assert_eq!(next(&bounds(), &observed, at(0)), Step::Wait(at(1_000)));
    assert!(matches!(next(&bounds(), &observed, at(44_000)), Step::Tell(_)));
}

#[test]
fn it_is_done_when_it_is_told() {
    let holdings = [holding(State::Silent)];
    assert_eq!(
        next(
            &bounds(),
            &Observed { holdings: &holdings, unheard: true, told: true, started: STARTED },
            at(0)
        ),
        Step::Done
    );
}

#[test]
fn the_longest_bounds_of_the_servers_count_and_the_sessions_own_drain_goes_first() {
    let timeouts = |drain: &str, close: &str| Timeouts {
        drain: berth_api::Duration::from_text(drain),
        close: berth_api::Duration::from_text(close),
        ..Timeouts::default()
    };
    let servers = [timeouts("1s", "9s"), timeouts("3s", "2s")];
    let seconds = |session: &str| {
        let ending = ending(&crate::session::validate::fixture::session(session), &servers, DELETED);
        (ending.drain.as_secs(), ending.close.as_secs())
    };
    assert_eq!(seconds("{}"), (3, 9));
    assert_eq!(seconds("{drainTimeout: 7s}"), (7, 9));
}

#[test]
fn the_reason_is_the_specs_or_cleared() {
    assert_eq!(bounds().reason, EndReason::Cleared);
    assert_eq!(ending(&session("{end: {reason: Stopped}}"), &[], DELETED).reason, EndReason::Stopped);
}

#[test]
fn a_confirmed_end_is_a_normal_event_with_its_reason() {
    let telling = report(vec![confirmed()]).telling();
    assert_eq!((telling.type_, telling.reason), ("Normal", "Completed"));
}

#[test]
fn an_unconfirmed_end_is_a_warning_that_names_reason_server_pod_and_steps() {
    let no_delete = answered(EndPhase::Ended, Outcome::NotNeeded, Outcome::Unconfirmed, Outcome::Confirmed);
    let telling = report(vec![no_delete]).telling();
    assert_eq!((telling.type_, telling.reason), ("Warning", "CleanupIncomplete"));
    assert_eq!(
        telling.note,
        "the session ended (Completed); not confirmed: server \"everything\" in pod \"everything-x-0\": close (not seen to be done)"
    );
    let causes = [
        (State::Gone, "drain, close, remove (the pod is gone)"),
        (State::Silent, "drain, close, remove (the sidecar gave no answer)"),
        (draining(), "drain, close, remove (still running when the bound passed)"),
    ];
    for (state, text) in causes {
        assert!(report(vec![state.clone()]).telling().note.ends_with(text), "{state:?}");
    }
}

#[test]
fn what_a_restarted_sidecar_confirms_is_not_the_whole() {
    let lost = "close (the sidecar was restarted while the session was there)";
    let told = |holding: Holding| Report::new(EndReason::Completed, &[holding]).telling();
    for state in [confirmed(), State::Answered(EndReport::NOTHING_HELD)] {
        let telling = told(Holding { restarted: true, ..holding(state) });
        assert_eq!(telling.reason, "CleanupIncomplete");
        assert!(telling.note.ends_with(lost), "{}", telling.note);
    }
    let cancelled = answered(EndPhase::Ended, Outcome::Unconfirmed, Outcome::Unconfirmed, Outcome::Confirmed);
    let telling = told(Holding { restarted: true, ..holding(cancelled) });
    assert!(telling.note.ends_with(&format!("drain, {lost}")), "{}", telling.note);
}

#[test]
fn a_sidecar_that_knows_nothing_of_a_session_that_status_places_there_has_lost_it() {
    let ended = |state: State, taken: bool| {
        Report::new(EndReason::Completed, &[Holding { taken, ..holding(state) }]).is_complete()
    };
    assert!(!ended(State::Answered(EndReport::NOTHING_HELD), true));
    assert!(ended(State::Answered(EndReport::NOTHING_HELD), false));
    // Held, and never connected.
    let idle = answered(EndPhase::Ended, Outcome::NotNeeded, Outcome::NotNeeded, Outcome::Confirmed);
    assert!(ended(idle, true));
}

#[test]
fn a_restart_counts_from_the_sessions_creation() {
    let pod: Pod = serde_json::from_value(serde_json::json!({"status": {"containerStatuses": [
        {"name": "sidecar", "image": "x", "imageID": "", "ready": true, "restartCount": 1,
            "state": {"running": {"startedAt": DELETED.to_api()}}}]}}))
    .unwrap();
    let born = |millis| {
        let mut session = session("{}");
        session.metadata.creation_timestamp = Some(at(millis).to_api());
        session
    };
    assert!(is_restarted(&pod, &born(-1_000)) && is_restarted(&pod, &born(0)));
    assert!(!is_restarted(&pod, &born(1_000)));
}

#[test]
fn the_note_of_32_lost_pods_fits_an_event() {
    assert!(report(vec![State::Gone; 32]).telling().note.len() <= 1024);
}

#[test]
fn an_end_shows_as_a_condition_after_two_seconds() {
    let mut session = session("{}");
    session.status = serde_json::from_value(serde_json::json!({
        "conditions": [
            {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "1970-01-01T00:00:01Z"},
            {"type": "Ready", "status": "True", "reason": "Bound", "message": "", "lastTransitionTime": "1970-01-01T00:00:01Z"},
        ],
        "servers": [{"name": "everything", "state": "Bound"}],
    }))
    .unwrap();
    let holdings = [holding(draining())];
    assert_eq!(status::status(&session, &bounds(), &holdings, at(1_999)), None);
    let shown = status::status(&session, &bounds(), &holdings, at(2_000)).unwrap();
    let conditions: Vec<String> = shown
        .conditions
        .iter()
        .map(|found| format!("{}={} {}", found.type_, found.status, found.reason))
        .collect();
    assert_eq!(conditions, ["Accepted=True Accepted", "Ready=False Draining", "Ended=False Draining"]);
    assert_eq!(serde_json::to_value(shown.servers[0].state).unwrap(), "Ending");
    // A look that finds nothing new writes nothing.
    session.status = Some(shown.clone());
    assert_eq!(status::status(&session, &bounds(), &holdings, at(9_000)), Some(shown));
}

#[test]
fn a_session_that_has_ended_is_not_ready_however_long_others_hold_its_object() {
    let mut session = session("{}");
    assert_eq!(status::held_by_others(&session, at(0)), None);
    session.metadata.finalizers = Some(vec!["other.test/audit".into()]);
    session.status = serde_json::from_value(serde_json::json!({
        "conditions": [
            {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "1970-01-01T00:00:01Z"},
            {"type": "Ready", "status": "True", "reason": "Bound", "message": "", "lastTransitionTime": "1970-01-01T00:00:01Z"},
            {"type": "Ended", "status": "False", "reason": "Draining", "message": "", "lastTransitionTime": "1970-01-01T00:00:01Z"},
        ],
        "servers": [{"name": "everything", "state": "Bound", "revision": "r", "url": "http://gateway.test/x",
            "podRef": {"name": "p", "uid": "pod-0", "address": "10.0.0.1", "serverUid": "s"}}],
    }))
    .unwrap();
    let shown = status::held_by_others(&session, at(0)).unwrap();
    let conditions: Vec<String> = shown
        .conditions
        .iter()
        .map(|found| format!("{}={} {}", found.type_, found.status, found.reason))
        .collect();
    assert_eq!(conditions, ["Accepted=True Accepted", "Ready=False Removing"]);
    assert!(shown.conditions[1].message.contains("\"other.test/audit\""), "{shown:?}");
    let servers = serde_json::to_value(&shown.servers).unwrap();
    assert_eq!(servers, serde_json::json!([{"name": "everything", "state": "Ending"}]));
    // A look that finds nothing new writes nothing.
    session.status = Some(shown.clone());
    assert_eq!(status::held_by_others(&session, at(9_000)), Some(shown));
}

#[test]
fn a_pod_that_exists_is_asked_while_it_can_be_and_named_when_it_cannot() {
    let pod = |phase: &str| -> Pod {
        serde_json::from_value(serde_json::json!({"status": {"phase": phase}})).unwrap()
    };
    let (runs, dead) = (pod("Running"), pod("Failed"));
    let told = EndReport { phase: EndPhase::Ended, ..EndReport::NOTHING_HELD };
    let State::Answered(running) = draining() else { unreachable!() };
    let table = [
        (Known::Pod(&runs), State::Unasked),
        (Known::Pod(&dead), State::Gone),
        (Known::Stray { reachable: true }, State::Unasked),
        (Known::Stray { reachable: false }, State::Stray),
        (Known::Gone, State::Gone),
    ];
    for (known, state) in table {
        assert_eq!(first_state(known, None), state, "{known:?}");
        assert_eq!(first_state(known, Some(told)), State::Answered(told), "{known:?}");
        assert_eq!(first_state(known, Some(running)), state, "{known:?}");
    }
    let Step::Tell(report) = step(vec![State::Stray, confirmed()], at(0)) else { panic!("not told") };
    let note = report.telling().note;
    assert!(
        !report.is_complete() && note.contains("\"everything-x-0\"") && note.contains("delete it"),
        "{note}"
    );
}
