//! What is remembered of pods, through passes of several operators.

use super::*;
use berth_api::PodRef;
use berth_wire::{Activity, EndPhase, Generation};
use proptest::prelude::*;

const DONE: EndReport = EndReport { remove: Outcome::Confirmed, ..EndReport::NOTHING_HELD };

fn holding(pod: &str, state: State) -> Holding {
    Holding {
        server: "everything".into(),
        pod: format!("name-of-{pod}"),
        pod_uid: pod.into(),
        state,
        taken: true,
        restarted: false,
    }
}

fn ended(close: Outcome) -> State {
    State::Answered(EndReport { close, ..DONE })
}

fn entry(state: BindingState, pod: &str) -> BindingStatus {
    let text = String::new;
    BindingStatus {
        name: "everything".into(),
        state,
        reason: None,
        last_error: None,
        next_retry_time: None,
        revision: None,
        url: None,
        pod_ref: Some(PodRef { name: text(), uid: pod.into(), address: text(), server_uid: text() }),
    }
}

/// A session that has its slot in the pod `now`.
fn bound(before: &[UnconfirmedPod]) -> AgentSessionStatus {
    AgentSessionStatus {
        servers: vec![entry(BindingState::Bound, "now")],
        unconfirmed: before.to_vec(),
        ..AgentSessionStatus::default()
    }
}

/// What is remembered by the UIDs of the pods, those with `!` whose sidecar was restarted.
fn remembered(status: &AgentSessionStatus) -> Vec<String> {
    let mark = |pod: &UnconfirmedPod| format!("{}{}", pod.uid, if pod.restarted { "!" } else { "" });
    status.unconfirmed.iter().map(mark).collect()
}

fn after(before: &[UnconfirmedPod], holdings: &[Holding]) -> AgentSessionStatus {
    let mut status = bound(before);
    remember(&mut status, holdings);
    status
}

#[test]
fn a_pod_that_was_left_is_remembered_until_its_sidecar_has_said_that_all_is_over() {
    let now = || holding("now", State::Unasked);
    for (state, stays) in [
        (State::Unasked, true),
        (State::Silent, true),
        (State::Stray, true),
        (State::Gone, true),
        (State::Answered(EndReport { phase: EndPhase::Closing, ..DONE }), true),
        (ended(Outcome::Unconfirmed), true),
        (ended(Outcome::NotNeeded), false),
        (ended(Outcome::Confirmed), false),
    ] {
        let status = after(&[], &[now(), holding("left", state.clone())]);
        assert_eq!(remembered(&status), if stays { vec!["left"] } else { vec![] }, "{state:?}");
    }
    // Nothing was surely ever there.
    let untaken = Holding { taken: false, ..holding("left", State::Gone) };
    assert_eq!(remembered(&after(&[], &[untaken])), [""; 0]);
}

#[test]
fn a_restarted_sidecar_is_remembered_whatever_the_next_one_says() {
    let restarted = |state| Holding { restarted: true, ..holding("now", state) };
    let status = after(&[], &[restarted(State::Unasked)]);
    assert_eq!(remembered(&status), ["now!"]);
    let status = after(&status.unconfirmed, &[restarted(ended(Outcome::Confirmed))]);
    assert_eq!(remembered(&status), ["now!"]);
    let knows_nothing = holding("left", State::Answered(EndReport::NOTHING_HELD));
    assert_eq!(remembered(&after(&[], &[knows_nothing])), ["left!"]);
}

#[test]
fn the_list_keeps_its_order_and_does_not_grow_for_ever() {
    let pods =
        |count: usize| (0..count).map(|n| holding(&format!("pod-{n:02}"), State::Gone)).collect::<Vec<_>>();
    let first = after(&[], &pods(40)).unconfirmed;
    assert_eq!((first.len(), first[0].uid.as_str()), (MOST, "pod-00"));
    let longest = |n: usize| holding(&format!("{n:0>63}"), State::Gone);
    let long = after(&[], &(0..40).map(longest).collect::<Vec<_>>()).unconfirmed;
    assert!(serde_json::to_string(&long).unwrap().len() < 8 << 10);
    let mut turned = pods(40);
    turned.reverse();
    assert_eq!(after(&first, &turned).unconfirmed, first);
}

#[test]
fn where_there_is_no_room_those_that_are_lost_stay_before_those_that_may_still_tell() {
    let named = |name: &str, n: usize, state| holding(&format!("{name}-{n:02}"), state);
    let silent: Vec<Holding> = (0..MOST).map(|n| named("a", n, State::Silent)).collect();
    let before = after(&[], &silent).unconfirmed;
    assert_eq!(before.len(), MOST);
    let restarted = Holding { restarted: true, ..named("b", 1, State::Unasked) };
    let lost = [named("b", 0, State::Gone), restarted, named("b", 2, ended(Outcome::Unconfirmed))];
    let stray = named("b", 3, State::Stray);
    let all: Vec<Holding> = silent.into_iter().chain(lost).chain([stray]).collect();
    let now = remembered(&after(&before, &all));
    assert_eq!((now[0].as_str(), now[12].as_str()), ("a-00", "a-12"));
    assert_eq!(now[13..], ["b-00", "b-01!", "b-02"]);
}

#[test]
fn an_entry_that_waits_or_ends_names_no_pod_that_is_known_to_be_done() {
    for (state, names_it) in
        [(BindingState::Pending, false), (BindingState::Ending, false), (BindingState::Bound, true)]
    {
        let mut status = AgentSessionStatus {
            servers: vec![entry(state, "now"), entry(state, "other")],
            ..AgentSessionStatus::default()
        };
        remember(&mut status, &[holding("now", ended(Outcome::Confirmed)), holding("other", State::Gone)]);
        let named: Vec<bool> = status.servers.iter().map(|entry| entry.pod_ref.is_some()).collect();
        assert_eq!((named, status.unconfirmed), (vec![names_it, true], vec![]));
    }
}

fn report(state: SessionState, connects: u64, in_flight: u32) -> SessionReport {
    SessionReport {
        uid: "s".into(),
        generation: Generation::default(),
        state,
        failure: None,
        message: None,
        next_retry_unix_millis: None,
        activity: Activity { requests: 3, in_flight, connects },
        end: None,
    }
}

#[test]
fn a_pod_that_is_gone_has_left_nothing_if_it_said_so_or_had_never_connected() {
    let unconfirmed = EndReport { close: Outcome::Unconfirmed, ..DONE };
    let told = SessionReport { end: Some(unconfirmed), ..report(SessionState::Ended, 1, 0) };
    assert_eq!(last_word(&told, false), Some(told.clone()));
    let word = last_word(&report(SessionState::Idle, 0, 0), true).unwrap();
    assert_eq!((word.state, word.end), (SessionState::Ended, Some(DONE)));
    for (silent, heard) in [
        (report(SessionState::Idle, 0, 0), false),
        // Evicted: its upstream session was lost, not ended.
        (report(SessionState::Idle, 1, 0), true),
        (report(SessionState::Idle, 0, 1), true),
        (report(SessionState::Connecting, 1, 1), true),
        (report(SessionState::Connected, 1, 0), true),
        (report(SessionState::Ending, 1, 0), true),
    ] {
        assert_eq!(last_word(&silent, heard), None, "{silent:?}");
    }
}

fn any_state() -> impl Strategy<Value = State> {
    let outcome =
        || prop_oneof![Just(Outcome::Confirmed), Just(Outcome::Unconfirmed), Just(Outcome::NotNeeded)];
    let phase = prop_oneof![Just(EndPhase::Draining), Just(EndPhase::Closing), Just(EndPhase::Ended)];
    let answered = (phase, outcome(), outcome(), outcome())
        .prop_map(|(phase, drain, close, remove)| State::Answered(EndReport { phase, drain, close, remove }));
    prop_oneof![Just(State::Unasked), Just(State::Silent), Just(State::Stray), Just(State::Gone), answered]
}

fn any_holdings() -> impl Strategy<Value = Vec<Holding>> {
    let pod = (any_state(), any::<bool>())
        .prop_map(|(state, restarted)| Holding { restarted, ..holding("", state) });
    prop::collection::vec(pod, 0..3 * MOST).prop_map(|pods| {
        let named = |(n, pod): (usize, Holding)| {
            let pod_uid = if n == 0 { "now".into() } else { format!("pod-{n}") };
            Holding { pod_uid, ..pod }
        };
        pods.into_iter().enumerate().map(named).collect()
    })
}

proptest! {
    /// An operator that knows nothing but status tells no end as complete of which the one before it knew that it was not. Of a
    /// pod for which there is no room it may hear yet, unless those that are lost fill all of it.
    #[test]
    fn whatever_is_not_confirmed_is_in_status(holdings in any_holdings()) {
        let status = after(&[], &holdings);
        let is_known = |uid: &str| {
            status.unconfirmed.iter().any(|pod| pod.uid == uid)
                || status.servers.iter().any(|entry| entry.pod_ref.as_ref().is_some_and(|pod| pod.uid == uid))
        };
        let lost = |pod: &&UnconfirmedPod| {
            !holdings.iter().any(|holding| holding.pod_uid == pod.uid && may_still_tell(holding))
        };
        let room_for_lost = MOST - status.unconfirmed.iter().filter(lost).count();
        let room = MOST - status.unconfirmed.len();
        for holding in &holdings {
            let has_room = if may_still_tell(holding) { room > 0 } else { room_for_lost > 0 };
            let is_told = holding.is_confirmed() || is_known(&holding.pod_uid);
            prop_assert!(is_told || !has_room, "{holding:?}");
        }
        prop_assert_eq!(&after(&status.unconfirmed, &holdings).unconfirmed, &status.unconfirmed, "nothing moves");
    }

    #[test]
    fn a_report_is_complete_exactly_when_all_is_confirmed(holdings in any_holdings()) {
        let complete = crate::end::report::Report::new(berth_api::EndReason::Cleared, &holdings).is_complete();
        prop_assert_eq!(complete, holdings.iter().all(Holding::is_confirmed));
    }
}
