//! Connects that hang, at each step.

use crate::support::client::initialize;
use crate::support::eventually;
use crate::support::faulty::{Faulty, Hang};
use crate::support::harness::{EndBounds, Harness, read, spec, within};
use crate::support::upstream::{Act, Upstream};
use berth_wire::{Outcome, SessionSpec, SessionState};
use futures::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A sidecar in front of an upstream that hangs, and a session of it.
async fn stage(hang: Hang, connect_millis: u64) -> (Harness, Faulty, SessionSpec) {
    let faulty = Faulty::start(hang).await;
    let harness = Harness::start_with(1, faulty.dialer(), 96).await;
    let mut session = spec("s", &Upstream::start().await);
    session.upstream.url.clone_from(&faulty.url);
    session.timeouts.connect_millis = connect_millis;
    session.timeouts.close_millis = 500;
    harness.put(&session).await;
    (harness, faulty, session)
}

#[tokio::test]
async fn a_connect_that_hangs_at_any_step_is_over_in_time_and_what_it_opened_is_closed() {
    join_all(Hang::ALL.map(async |hang| {
        let (harness, faulty, _) = stage(hang, 800).await;
        let started = Instant::now();
        let error = harness.client("s").initialize().await.unwrap_err();
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(800) && took < Duration::from_secs(8), "{hang:?}: {took:?}");
        assert_eq!(error["data"]["reason"], "InitializeTimeout", "{hang:?}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.starts_with(&format!("server \"scripted\", {}: ", hang.step())),
            "{hang:?}: {message}"
        );
        assert!(error["data"]["retryAfterMillis"].as_u64().is_some_and(|wait| wait <= 500), "{error}");
        let expected = if hang.names_a_session() { vec!["faulty-1".to_owned()] } else { Vec::new() };
        let unknown = hang.sends() && !hang.names_a_session();
        if !unknown {
            eventually("the sockets are closed", || harness.metrics.connections.get() == 0).await;
        }
        assert_eq!(faulty.seen().deletes, expected, "{hang:?}");
        let end = harness.end_now("s").await;
        // The answer that would tell may still come; an end does not wait as long for it.
        let expected = if unknown {
            (Outcome::Unconfirmed, Outcome::Unconfirmed)
        } else {
            (Outcome::NotNeeded, Outcome::Confirmed)
        };
        assert_eq!((end.close, end.remove), expected, "{hang:?}");
        harness.assert_baseline().await;
    }))
    .await;
}

#[tokio::test]
async fn a_session_that_ends_while_its_connect_hangs_is_gone_within_the_bound() {
    join_all(Hang::ALL.map(async |hang| {
        let (harness, faulty, _) = stage(hang, 4_000).await;
        let mut client = harness.client("s");
        let end = async {
            let there = || match hang {
                // Nothing of it can be seen at the port.
                Hang::Connect => true,
                Hang::Body | Hang::BodyDrips | Hang::Initialized => !faulty.seen().opened.is_empty(),
                _ => faulty.seen().reached > 0,
            };
            eventually("it hangs", there).await;
            eventually("the caller waits", || harness.metrics.requests_in_flight.get() == 1).await;
            let started = Instant::now();
            let end = harness.end("s", EndBounds { drain: 200, close: 500, wait: 10_000 }).await;
            assert!(within(started, 1_700), "{hang:?}: {:?}", started.elapsed());
            end
        };
        let (answer, (status, end)) = tokio::join!(client.initialize(), end);
        assert_eq!(answer.unwrap_err()["code"], json!(-32052), "{hang:?}: who waits is told");
        let expected = match (hang.sends(), hang.names_a_session()) {
            (false, _) => (Outcome::NotNeeded, Outcome::Confirmed),
            (true, true) => (Outcome::Confirmed, Outcome::Confirmed),
            // Its answer may still come; until its own bound it is waited for.
            (true, false) => (Outcome::Unconfirmed, Outcome::Unconfirmed),
        };
        assert_eq!((status, (end.close, end.remove)), (StatusCode::OK, expected), "{hang:?}");
        assert!(harness.list().await.is_empty(), "the slot is free");
        harness.assert_baseline().await;
        let seen = faulty.seen();
        assert_eq!(seen.deletes, seen.opened, "{hang:?}");
    }))
    .await;
}

#[tokio::test]
async fn a_success_that_comes_too_late_is_closed_and_the_next_connect_is_another_one() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().on_initialize = Act::Hold;
    let mut session = spec("s", &upstream);
    session.timeouts.connect_millis = 500;
    harness.put(&session).await;
    let started = Instant::now();
    let error = harness.client("s").initialize().await.unwrap_err();
    assert!(within(started, 1_500), "{:?}", started.elapsed());
    assert_eq!(error["data"]["reason"], "InitializeTimeout");
    assert!(upstream.books().deletes.is_empty());
    upstream.release();
    upstream.until("the late session is closed", |books| books.deletes == ["upstream-1"]).await;
    session.timeouts.connect_millis = 15_000;
    harness.put(&session).await;
    harness.until_open("s").await;
    let client = harness.initialized("s").await;
    assert_eq!(client.call("session", json!({})).await["result"]["session"], "upstream-2");
    let end = harness.end_now("s").await;
    assert_eq!(end.close, Outcome::Confirmed);
    harness.assert_baseline().await;
    assert!(upstream.books().open.is_empty());
}

#[tokio::test]
async fn an_initialize_that_was_answered_leaves_something_open_only_where_the_answer_does_not_say() {
    let table = [
        // Without an id there is no session to be ended.
        (Act::Hold, true, Outcome::NotNeeded),
        (Act::Status(503), false, Outcome::NotNeeded),
        (Act::LateStatus(401), false, Outcome::NotNeeded),
        // A proxy that gave up waiting for the server, and one that lost it while it worked.
        (Act::Status(504), false, Outcome::Unconfirmed),
        (Act::LateStatus(502), false, Outcome::Unconfirmed),
    ];
    for (act, sessionless, expected) in table {
        let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
        (upstream.books().on_initialize, upstream.books().sessionless) = (act, sessionless);
        let mut session = spec("s", &upstream);
        session.timeouts.connect_millis = 1_000;
        harness.put(&session).await;
        harness.client("s").initialize().await.unwrap_err();
        upstream.release();
        eventually("its sockets are closed", || harness.metrics.connections.get() == 0).await;
        assert_eq!(harness.end_now("s").await.close, expected, "{act:?}");
        harness.assert_baseline().await;
    }
}

/// CASES.md 8.
#[tokio::test]
async fn a_success_that_comes_long_after_the_bound_of_an_end_is_closed_too_and_holds_up_no_other_connect() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().on_initialize = Act::Hold;
    let mut session = spec("s", &upstream);
    (session.timeouts.connect_millis, session.timeouts.close_millis) = (3_000, 50);
    harness.put(&session).await;
    let error = harness.client("s").initialize().await.unwrap_err();
    let over = Instant::now();
    assert_eq!(error["data"]["reason"], "InitializeTimeout");
    // The next one is not held, while the first one still is.
    upstream.books().on_initialize = Act::Well;
    harness.until_open("s").await;
    let client = harness.initialized("s").await;
    assert_eq!(client.call("session", json!({})).await["result"]["session"], "upstream-1");
    assert!(!within(over, 100), "the bound of an end is long over");
    assert!(upstream.books().deletes.is_empty());
    upstream.release();
    upstream.until("the late session is closed", |books| books.deletes == ["upstream-2"]).await;
    assert_eq!(client.call("session", json!({})).await["result"]["session"], "upstream-1");
    let report = &harness.list().await[0];
    assert_eq!((report.state, report.failure, report.activity.connects), (SessionState::Connected, None, 2));
    assert_eq!(harness.end_now("s").await.close, Outcome::Confirmed);
    harness.assert_baseline().await;
    assert!(upstream.books().open.is_empty());
}

#[tokio::test]
async fn an_end_waits_for_a_late_success_no_longer_than_it_may_take_and_what_comes_later_is_closed_too() {
    for (close_millis, close, comes) in [(300, 300, false), (2_000, 2_000, false), (10_000, 15_000, true)] {
        let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
        upstream.books().on_initialize = Act::Hold;
        let mut session = spec("s", &upstream);
        (session.timeouts.connect_millis, session.timeouts.close_millis) = (1_000, close_millis);
        harness.put(&session).await;
        harness.client("s").initialize().await.unwrap_err();
        let answer = async {
            if comes {
                let mut watch = harness.watch().await;
                watch.session(|report| report.state == SessionState::Ending).await;
                upstream.release();
            }
        };
        let started = Instant::now();
        let bounds = EndBounds { drain: 5_000, close, wait: 20_000 };
        let ((_, end), ()) = tokio::join!(harness.end("s", bounds), answer);
        assert!(within(started, 5_000), "{:?}", started.elapsed());
        let expected = if comes { Outcome::Confirmed } else { Outcome::Unconfirmed };
        assert_eq!((end.close, end.remove), (expected, expected));
        assert!(harness.list().await.is_empty(), "the slot is free");
        upstream.release();
        upstream.until("the late session is closed", |books| books.deletes == ["upstream-1"]).await;
        harness.assert_baseline().await;
    }
}

#[tokio::test]
async fn a_thousand_first_calls_of_which_all_but_one_leave_make_one_connect() {
    const CALLERS: usize = 1_000;
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().on_initialize = Act::Hold;
    harness.put(&spec("s", &upstream)).await;
    // The first one leaves too, and only when its attempt is under way.
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
    let moment = |n: usize| {
        let mixed = (u64::from(seed) ^ (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Duration::from_millis((mixed >> 32) % 2_000)
    };
    let survivor = 1 + seed as usize % (CALLERS - 1);
    let left = AtomicUsize::new(0);
    let call = async |n: usize| -> Option<Value> {
        let client = harness.client("s");
        let call = client.post(initialize(&format!("id-{n}")).to_string());
        if n == survivor {
            let (status, body) = read(call.await).await;
            assert_eq!(status, StatusCode::OK);
            return Some(serde_json::from_slice(&body).unwrap());
        }
        let leave = async {
            if n == 0 {
                upstream.until("the attempt", |books| books.initializes.len() == 1).await;
            }
            tokio::time::sleep(moment(n)).await;
            left.fetch_add(1, Ordering::Relaxed);
        };
        tokio::select! {
            _ = call => panic!("answered while the upstream holds"),
            () = leave => None,
        }
    };
    let first = call(0);
    let others = async {
        upstream.until("the attempt of the first", |books| books.initializes.len() == 1).await;
        let release = async {
            // Whether their sockets are noticed or not, one answer is wanted.
            eventually("all have left but the survivor", || left.load(Ordering::Relaxed) == CALLERS - 1)
                .await;
            upstream.release();
        };
        tokio::join!(join_all((1..CALLERS).map(call)), release).0
    };
    let (_, answers) = tokio::join!(first, others);
    let answers: Vec<_> = answers.into_iter().flatten().collect();
    assert_eq!(answers.len(), 1, "seed {seed}");
    assert_eq!(answers[0]["id"], format!("id-{survivor}"), "seed {seed}");
    assert_eq!(answers[0]["result"]["serverInfo"]["name"], "scripted");
    {
        let books = upstream.books();
        assert_eq!((books.initializes.len(), books.initialized.len(), books.sockets.len()), (1, 1, 1));
    }
    let report = &harness.list().await[0];
    assert_eq!((report.state, report.activity.connects), (SessionState::Connected, 1));
    harness.end_now("s").await;
    harness.assert_baseline().await;
}
