//! The fleet against a stand-in for a sidecar, over real mutual TLS on a loopback address of its own.

use super::*;
use crate::fixture;
use crate::fleet::hung::{Admission, PAUSE};
use crate::fleet::stand::{Stand, pod, report, until};
use berth_api::AgentSession;
use berth_wire::{EndPhase, EndRequest, RefusalReason, SessionSpec, WatchLine};
use futures::{FutureExt, StreamExt};
use serde_json::json;
use std::time::Duration;

fn spec(uid: &str) -> SessionSpec {
    serde_json::from_value(json!({
        "uid": uid, "displayName": "demo/chat", "server": {"uid": "server", "name": "everything", "revision": "r"},
        "generation": {"session": 1, "server": 1}, "subject": {"issuer": "", "name": "alice"},
        "upstream": {"url": "http://everything.test/mcp", "headers": []},
        "timeouts": {"connectMillis": 1, "requestMillis": 1, "requestMaxMillis": 1, "drainMillis": 1, "closeMillis": 1},
    }))
    .unwrap()
}

fn session(uid: &str) -> AgentSession {
    let mut session = fixture::deleted_session(&json!({}));
    session.metadata.uid = Some(uid.to_owned());
    session.metadata.name = Some(uid.to_owned());
    session
}

async fn stage(address: &str) -> (crate::context::Context, Stand) {
    let (ctx, _) = fixture::context(|_| fixture::failure(404, "NotFound", "no")).await;
    let stand = Stand::start(&ctx.ca, address, vec![report("held", SessionState::Idle)]).await;
    ctx.fleet.follow(&pod(address));
    let fleet = ctx.fleet.clone();
    until("synced", || fleet.is_synced("pod")).await;
    (ctx, stand)
}

#[tokio::test]
async fn what_a_sidecar_tells_is_held_and_asks_for_looks() {
    let (ctx, stand) = stage("127.0.77.1").await;
    ctx.slots.know(&session("held"));
    assert_eq!(ctx.fleet.occupancy("pod", vec![]).held.into_iter().collect::<Vec<_>>(), ["held"]);
    let mut looks = Box::pin(ctx.triggers.sessions.stream());
    stand.say(&WatchLine::Session(report("held", SessionState::Ended)));
    assert_eq!(looks.next().await.unwrap().name, "held");
    let occupancy = ctx.fleet.occupancy("pod", vec![]);
    assert!(occupancy.held.is_empty() && occupancy.used);
    // The tombstone goes with the object.
    assert_eq!(ctx.fleet.reports_of("held").len(), 1);
    ctx.fleet.forget("held");
    assert_eq!(ctx.fleet.reports_of("held").len(), 0);
}

#[tokio::test]
async fn a_stream_that_ends_is_begun_anew_and_what_was_lost_is_looked_at() {
    let (ctx, stand) = stage("127.0.77.2").await;
    ctx.slots.know(&session("lost"));
    ctx.slots.with(|book| book.promise("lost", "server", "pod"));
    stand.say(&WatchLine::Session(report("lost", SessionState::Connected)));
    let fleet = ctx.fleet.clone();
    until("told", || !fleet.reports_of("lost").is_empty()).await;
    let mut looks = Box::pin(ctx.triggers.sessions.stream());
    assert_eq!(looks.next().await.unwrap().name, "lost");
    stand.lines.send("end".into()).unwrap();
    until("forgotten after the restart", || fleet.reports_of("lost").is_empty()).await;
    assert_eq!(looks.next().await.unwrap().name, "lost");
    assert!(ctx.fleet.is_synced("pod"));
    // Taken again, it is known to have been lost until its object is gone.
    ctx.fleet.put("pod", &spec("lost")).await.unwrap();
    assert!(ctx.fleet.has_lost("pod", "lost") && !ctx.fleet.has_lost("pod", "held"));
    ctx.fleet.forget("lost");
    assert!(!ctx.fleet.has_lost("pod", "lost"));
}

#[tokio::test]
async fn a_session_that_went_elsewhere_is_looked_at_when_its_pod_is_back_though_nothing_changed_there() {
    let (ctx, _stand) = stage("127.0.77.20").await;
    ctx.slots.know(&session("held"));
    ctx.slots.with(|book| book.promise("held", "server", "another-pod"));
    let mut looks = Box::pin(ctx.triggers.sessions.stream());
    ctx.fleet.reported("pod", &report("held", SessionState::Idle));
    assert!(looks.next().now_or_never().is_none());
    ctx.fleet.synced("pod", &HashSet::from(["held".to_owned()]));
    assert_eq!(looks.next().now_or_never().flatten().unwrap().name, "held");
}

#[tokio::test]
async fn a_sidecar_that_is_gone_is_not_synced_and_cannot_be_asked() {
    let (ctx, stand) = stage("127.0.77.3").await;
    stand.cancel.cancel();
    stand.lines.send("end".into()).unwrap();
    let fleet = ctx.fleet.clone();
    until("lost", || !fleet.is_synced("pod")).await;
    // What it held may still be there.
    assert_eq!(ctx.fleet.occupancy("pod", vec![]).held.len(), 1);
    assert!(matches!(ctx.fleet.put("pod", &spec("a")).await, Err(ControlError::Unreachable(_))));
    ctx.fleet.drop_pod("pod");
    assert_eq!(ctx.fleet.reports_of("held").len(), 0);
}

#[tokio::test]
async fn a_sidecar_that_does_not_answer_keeps_nobody_else_waiting_until_it_says_something() {
    let (ctx, stand) = stage("127.0.77.21").await;
    assert!(matches!(ctx.fleet.put("pod", &spec("no-answer")).await, Err(ControlError::NoAnswer(_))));
    let at_once = ctx.fleet.put("pod", &spec("a")).now_or_never().expect("nobody waits");
    assert!(matches!(at_once, Err(ControlError::Unreachable(_))), "{at_once:?}");
    assert_eq!(stand.specs().len(), 0);
    stand.say(&WatchLine::Alive);
    until("asked again", || ctx.fleet.admit("pod", Instant::now()) == Admission::AsAlways).await;
    ctx.fleet.put("pod", &spec("a")).await.unwrap();
}

#[tokio::test]
async fn a_sidecar_that_hangs_is_asked_by_one_at_a_time() {
    use Admission::{AsAlways, NotNow, Probe};
    let (ctx, _) = fixture::context(|_| fixture::failure(404, "NotFound", "no")).await;
    ctx.fleet.follow(&pod("127.0.77.22"));
    let at = |seconds| Instant::now() + Duration::from_secs(seconds);
    let (asked, now) = (at(100), at(105));
    let twice = |when| (ctx.fleet.admit("pod", when), ctx.fleet.admit("pod", when));
    assert_eq!(twice(now), (AsAlways, AsAlways));
    ctx.fleet.hangs("pod", asked, now);
    assert_eq!(twice(now), (NotNow, NotNow));
    assert_eq!(twice(now + PAUSE), (Probe, NotNow));
    ctx.fleet.answers("pod", now + PAUSE);
    assert_eq!(twice(now + PAUSE), (AsAlways, AsAlways));
}

#[tokio::test]
async fn a_sidecar_that_spoke_while_a_request_of_it_ran_out_does_not_hang() {
    let (ctx, _) = fixture::context(|_| fixture::failure(404, "NotFound", "no")).await;
    ctx.fleet.follow(&pod("127.0.77.23"));
    let at = |seconds| Instant::now() + Duration::from_secs(seconds);
    let (asked, spoke, now) = (at(100), at(104), at(105));
    ctx.fleet.answers("pod", spoke);
    ctx.fleet.hangs("pod", asked, now);
    assert_eq!(ctx.fleet.admit("pod", now), Admission::AsAlways);
    ctx.fleet.hangs("pod", now, at(110));
    assert_eq!(ctx.fleet.admit("pod", now), Admission::NotNow, "it has said nothing since");
}

#[tokio::test]
async fn a_slot_is_taken_refused_and_given_back() {
    let (ctx, stand) = stage("127.0.77.4").await;
    ctx.fleet.put("pod", &spec("new")).await.unwrap();
    assert!(ctx.fleet.occupancy("pod", vec![]).held.contains("new"));
    let refused = ctx.fleet.put("pod", &spec("one-too-many")).await;
    assert!(matches!(refused, Err(ControlError::Refused(refusal)) if refusal.reason == RefusalReason::Full));
    let request = EndRequest { drain_millis: 1_000, close_millis: 2_000, wait_millis: 300 };
    let ended = ctx.fleet.end("pod", "new", request).await.unwrap();
    assert_eq!(ended.phase, EndPhase::Ended);
    assert_eq!(stand.ended(), [("new".to_owned(), request)]);
    assert!(!ctx.fleet.occupancy("pod", vec![]).held.contains("new"));
}

#[tokio::test]
async fn a_pod_of_another_server_is_not_believed() {
    let (ctx, _) = fixture::context(|_| fixture::failure(404, "NotFound", "no")).await;
    let _stand = Stand::start(&ctx.ca, "127.0.77.5", vec![]).await;
    let mut other = pod("127.0.77.5");
    other.metadata.labels = Some([("berth.dev/server-uid".to_owned(), "another".to_owned())].into());
    ctx.fleet.follow(&other);
    assert!(matches!(ctx.fleet.put("pod", &spec("a")).await, Err(ControlError::Unreachable(_))));
    assert!(!ctx.fleet.is_synced("pod"));
}

#[tokio::test]
async fn a_pod_that_comes_while_the_sweep_looks_is_not_taken_for_gone() {
    let (ctx, _stand) = stage("127.0.77.6").await;
    let late = || {
        let mut late = pod("127.0.77.66");
        late.metadata.uid = Some("late".into());
        ctx.fleet.follow(&late);
        HashSet::new()
    };
    ctx.fleet.retain(late);
    assert!(ctx.fleet.target_of("pod").is_none() && ctx.fleet.target_of("late").is_some());
}

#[tokio::test]
async fn a_session_whose_end_was_answered_while_the_stream_was_down_was_not_lost() {
    let (ctx, stand) = stage("127.0.77.9").await;
    ctx.slots.know(&session("held"));
    let fleet = ctx.fleet.clone();
    fleet.lost("pod", Instant::now());
    let request = EndRequest { drain_millis: 0, close_millis: 0, wait_millis: 0 };
    assert_eq!(fleet.end("pod", "held", request).await.unwrap().phase, EndPhase::Ended);
    // The stream begins anew and tells of no session.
    fleet.synced("pod", &HashSet::new());
    assert!(!fleet.has_lost("pod", "held"));
    drop(stand);
}

#[tokio::test]
async fn a_sidecar_is_silent_since_its_stream_said_something_last_and_for_no_longer_than_there_is_a_fleet() {
    let (ctx, _stand) = stage("127.0.77.13").await;
    let silent = |pod: &str| ctx.fleet.occupancy(pod, vec![]).silent;
    assert_eq!(silent("pod"), Duration::ZERO, "its stream is up");
    let heard = Instant::now() - Duration::from_secs(40);
    ctx.fleet.lost("pod", heard);
    assert!((40..60).contains(&silent("pod").as_secs()), "{:?}", silent("pod"));
    assert!(silent("another").as_secs() < 40, "nobody has listened for so long");
    ctx.fleet.synced("pod", &HashSet::new());
    assert_eq!(silent("pod"), Duration::ZERO);
}

#[tokio::test]
async fn the_stream_of_a_pod_in_doubt_stays_while_sessions_are_there_and_they_are_looked_at() {
    let (ctx, _stand) = stage("127.0.77.10").await;
    ctx.slots.know(&session("held"));
    let mut looks = Box::pin(ctx.triggers.sessions.stream());
    ctx.fleet.doubt(&pod("127.0.77.10"));
    assert_eq!(looks.next().await.unwrap().name, "held");
    assert!(ctx.fleet.is_reachable("pod") && !ctx.fleet.is_gone("pod"));
    assert_eq!(ctx.fleet.take_doubted("server"), [("pod".to_owned(), "everything-x-0".to_owned())]);
    assert_eq!(ctx.fleet.take_doubted("server"), [], "taken out");
    ctx.fleet.gone("pod");
    assert!(!ctx.fleet.is_reachable("pod") && ctx.fleet.is_gone("pod"));
    assert_eq!(looks.next().await.unwrap().name, "held");
}

#[tokio::test]
async fn the_stream_of_a_pod_in_doubt_that_held_nothing_ends() {
    let (ctx, _) = fixture::context(|_| fixture::failure(404, "NotFound", "no")).await;
    let _stand = Stand::start(&ctx.ca, "127.0.77.11", vec![]).await;
    ctx.fleet.follow(&pod("127.0.77.11"));
    ctx.fleet.doubt(&pod("127.0.77.11"));
    assert!(!ctx.fleet.is_reachable("pod"));
    assert_eq!(ctx.fleet.take_doubted("server").len(), 1, "it may be there all the same");
}

#[tokio::test]
async fn a_sidecar_that_refuses_every_operator_is_known_until_it_answers() {
    let (ctx, stand) = stage("127.0.77.12").await;
    let mut looks = Box::pin(ctx.triggers.servers.stream());
    assert_eq!(ctx.fleet.lock_of("pod"), None);
    let refused = ctx.fleet.put("pod", &spec("old-term")).await;
    assert!(
        matches!(&refused, Err(ControlError::Locked(text)) if text.contains("\"everything-x-0\"") && text.contains("delete the pod, or set")),
        "{refused:?}"
    );
    assert_eq!(looks.next().await.unwrap().name, "everything");
    assert!(ctx.fleet.lock_of("pod").unwrap().message.contains("50000"));
    stand.lines.send("end".into()).unwrap();
    let fleet = ctx.fleet.clone();
    until("answered", || fleet.lock_of("pod").is_none()).await;
}

#[tokio::test]
async fn an_end_that_was_confirmed_is_known_after_its_pod_is_gone_until_the_session_is() {
    let (ctx, stand) = stage("127.0.77.32").await;
    for uid in ["held", "lives"] {
        ctx.slots.know(&session(uid));
    }
    let report = berth_wire::SessionReport { end: Some(over()), ..report("held", SessionState::Ended) };
    stand.say(&WatchLine::Session(report));
    stand.say(&WatchLine::Session(crate::fleet::stand::report("lives", SessionState::Connected)));
    let fleet = ctx.fleet.clone();
    until("told", || !fleet.reports_of("lives").is_empty()).await;
    ctx.fleet.drop_pod("pod");
    let known = ctx.fleet.reports_of("held");
    let known = known.first().unwrap();
    assert_eq!((known.pod.as_str(), known.report.end), ("pod", Some(over())));
    assert!(ctx.fleet.reports_of("lives").is_empty(), "it did not end there");
    ctx.fleet.forget("held");
    assert!(ctx.fleet.reports_of("held").is_empty());
}

#[tokio::test]
async fn an_end_that_was_answered_before_any_stream_told_of_it_is_known_from_then_on() {
    let (ctx, stand) = stage("127.0.77.33").await;
    let request = EndRequest { drain_millis: 0, close_millis: 0, wait_millis: 0 };
    for uid in ["untold", "gone"] {
        stand.hold(uid);
    }
    ctx.slots.know(&session("untold"));
    ctx.slots.know(&session("never"));
    let said =
        |uid: &str| ctx.fleet.reports_of(uid).into_iter().map(|known| known.report.end).collect::<Vec<_>>();
    let over = ctx.fleet.end("pod", "untold", request).await.unwrap();
    assert_eq!(said("untold"), [Some(over)]);
    for (uid, why) in [("never", "it was not there"), ("gone", "nobody would forget it")] {
        assert_eq!(ctx.fleet.end("pod", uid, request).await.unwrap().phase, EndPhase::Ended);
        assert_eq!(said(uid), [], "{why}");
    }
    assert!(ctx.fleet.occupancy("pod", vec![]).used);
    // A stream begins with those who live.
    ctx.fleet.synced("pod", &HashSet::new());
    assert_eq!(said("untold"), [Some(over)]);
    ctx.fleet.gone("pod");
    assert_eq!(said("untold"), [Some(over)]);
}

#[tokio::test]
async fn only_of_a_pod_that_was_seen_to_end_is_it_said_that_nothing_was_to_end_there() {
    let ended = berth_wire::SessionReport { end: Some(over()), ..report("ended", SessionState::Ended) };
    for (address, seen, words) in [("127.0.77.34", false, vec![]), ("127.0.77.35", true, vec!["held"])] {
        let (ctx, _stand) = stage(address).await;
        ctx.slots.know(&session("held"));
        ctx.slots.know(&session("ended"));
        ctx.fleet.tell("pod", true, &[report("held", SessionState::Idle), ended.clone()]);
        if seen {
            ctx.fleet.gone("pod");
        } else {
            ctx.fleet.retain(HashSet::new);
        }
        assert!(!ctx.fleet.is_reachable("pod"));
        let kept = ctx.fleet.reports_of("held");
        let kept: Vec<_> = kept.iter().map(|known| known.report.uid.as_str()).collect();
        assert_eq!(kept, words, "{address}");
        assert_eq!(ctx.fleet.reports_of("ended").len(), 1, "that it has said");
    }
}

#[tokio::test]
async fn the_stream_of_a_pod_that_is_back_outweighs_what_was_kept_of_it() {
    let (ctx, _stand) = stage("127.0.77.36").await;
    for uid in ["held", "ended"] {
        ctx.slots.know(&session(uid));
    }
    // Both have ended there, by what is known; the sidecar has taken one anew, as one that was restarted may.
    let ended = |uid| berth_wire::SessionReport { end: Some(over()), ..report(uid, SessionState::Ended) };
    ctx.fleet.tell("pod", true, &[ended("held"), ended("ended")]);
    ctx.fleet.retain(HashSet::new);
    assert_eq!(ctx.fleet.reports_of("held").len(), 1);
    ctx.fleet.follow(&pod("127.0.77.36"));
    let fleet = ctx.fleet.clone();
    until("synced", || fleet.is_synced("pod")).await;
    let states = |uid| fleet.reports_of(uid).iter().map(|known| known.report.state).collect::<Vec<_>>();
    assert_eq!(states("held"), [SessionState::Idle]);
    assert_eq!(states("ended"), [SessionState::Ended]);
}

fn over() -> EndReport {
    use berth_wire::Outcome::Confirmed;
    EndReport { phase: EndPhase::Ended, drain: Confirmed, close: Confirmed, remove: Confirmed }
}
