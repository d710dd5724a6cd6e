//! A credential that changes, or is taken away, under a live session.

use crate::support::client::initialize;
use crate::support::eventually;
use crate::support::harness::{Harness, read, spec};
use crate::support::upstream::{Act, Upstream};
use berth_wire::{Failure, Outcome, SessionSpec, SessionState, Withheld};
use futures::future::join_all;
use http::StatusCode;
use serde_json::json;

fn with(session: &SessionSpec, credential: &str) -> SessionSpec {
    let mut changed = session.clone();
    changed.upstream.headers[0].value = credential.into();
    changed
}

fn withheld(session: &SessionSpec, reason: Failure) -> SessionSpec {
    let mut changed = session.clone();
    changed.upstream.headers.clear();
    changed.upstream.withheld = Some(Withheld { reason, message: "the credential cannot be used".into() });
    changed
}

#[tokio::test]
async fn no_request_that_begins_after_the_put_was_answered_carries_the_old_value() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let session = spec("s", &upstream);
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    for round in 0..20 {
        let value = format!("Bearer {round}");
        // Calls that run meanwhile fill the sockets; they may carry either value.
        let busy = join_all((0..8).map(|_| client.call("credential", json!({}))));
        let changed = async {
            harness.put(&with(&session, &value)).await;
            join_all((0..8).map(|_| client.call("credential", json!({})))).await
        };
        let (_, answers) = tokio::join!(busy, changed);
        for answer in answers {
            assert_eq!(answer["result"]["credential"], value, "{answer}");
        }
    }
    assert_eq!(upstream.books().initializes.len(), 1, "without a new connection");
    harness.end_now("s").await;
    assert_eq!(upstream.books().credentials_of_deletes, [Some("Bearer 19".to_owned())]);
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_attempt_in_flight_goes_on_with_the_new_value() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().on_initialize = Act::Hold;
    let session = spec("s", &upstream);
    harness.put(&session).await;
    let mut client = harness.client("s");
    let change = async {
        upstream.until("the initialize", |books| books.initializes.len() == 1).await;
        harness.put(&with(&session, "Bearer second")).await;
        upstream.release();
    };
    let (answer, ()) = tokio::join!(client.initialize(), change);
    answer.unwrap();
    assert_eq!(upstream.books().credentials, ["Bearer first", "Bearer second"]);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_withheld_credential_stops_calls_with_its_reason_and_comes_back_without_a_new_connection() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let session = spec("s", &upstream);
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    let requests = || upstream.books().credentials.len();
    let before = requests();
    for reason in
        [Failure::RefNotFound, Failure::RefNotPermitted, Failure::InvalidCredential, Failure::InvalidSpec]
    {
        let report = harness.put(&withheld(&session, reason)).await;
        assert_eq!((report.state, report.failure), (SessionState::Connected, Some(reason)));
        let error = client.call("echo", json!({})).await["error"].clone();
        let data = json!({"server": "scripted", "reason": reason.as_str()});
        assert_eq!((&error["code"], &error["data"]), (&json!(-32050), &data), "{error}");
        assert!(error["message"].as_str().unwrap().contains("the credential cannot be used"), "{error}");
        assert_eq!(harness.client("s").initialize().await.unwrap_err()["data"], data);
    }
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"});
    assert_eq!(read(client.post(notice.to_string()).await).await.0, StatusCode::BAD_GATEWAY);
    assert_eq!(requests(), before, "the upstream heard nothing");

    let report = harness.put(&with(&session, "Bearer second")).await;
    assert_eq!((report.state, report.failure), (SessionState::Connected, None));
    assert_eq!(client.call("credential", json!({})).await["result"]["credential"], "Bearer second");
    assert_eq!(upstream.books().initializes.len(), 1);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_session_that_begins_withheld_dials_nothing() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let session = spec("s", &upstream);
    let report = harness.put(&withheld(&session, Failure::RefNotFound)).await;
    assert_eq!((report.state, report.failure), (SessionState::Idle, Some(Failure::RefNotFound)));
    let error = harness.client("s").initialize().await.unwrap_err();
    assert_eq!(error["data"]["reason"], "RefNotFound");
    assert_eq!(harness.list().await[0].activity.connects, 0);
    assert!(upstream.books().sockets.is_empty());
    harness.put(&session).await;
    harness.initialized("s").await;
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_credential_that_is_withheld_during_a_connect_is_not_sent_again() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().on_initialize = Act::Hold;
    let session = spec("s", &upstream);
    harness.put(&session).await;
    let (client, message) = (harness.client("s"), initialize("a"));
    let withhold = async {
        upstream.until("the initialize", |books| books.initializes.len() == 1).await;
        harness.put(&withheld(&session, Failure::RefNotPermitted)).await;
        upstream.release();
    };
    let (answer, ()) = tokio::join!(client.json(&message), withhold);
    assert_eq!(answer.1["error"]["data"]["reason"], "RefNotPermitted", "{answer:?}");
    // Who waits is told first.
    upstream.until("what was opened is ended", |books| books.deletes.len() == 1).await;
    {
        let books = upstream.books();
        assert_eq!(
            (&books.credentials[..], &books.initialized[..]),
            (&["Bearer first".to_owned()][..], &[][..])
        );
        assert_eq!(books.credentials_of_deletes, [None], "what was opened is ended, without a credential");
    }
    harness.put(&session).await;
    assert_eq!(harness.list().await[0].failure, None);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn what_becomes_of_an_attempt_does_not_hide_that_the_credential_is_withheld() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().on_initialize = Act::Hold;
    let mut session = spec("s", &upstream);
    session.timeouts.connect_millis = 1_000;
    harness.put(&session).await;
    let mut client = harness.client("s");
    let withhold = async {
        upstream.until("the initialize", |books| books.initializes.len() == 1).await;
        harness.put(&withheld(&session, Failure::RefNotFound)).await;
    };
    let (answer, ()) = tokio::join!(client.initialize(), withhold);
    assert_eq!(answer.unwrap_err()["data"]["reason"], "InitializeTimeout");
    assert_eq!(harness.list().await[0].failure, Some(Failure::RefNotFound));
    upstream.release();
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_call_that_runs_when_the_credential_is_withheld_may_finish() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let session = spec("s", &upstream);
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    let withhold = async {
        upstream.until("the call", |books| !books.of_method("tools/call").is_empty()).await;
        harness.put(&withheld(&session, Failure::RefNotFound)).await;
        upstream.release();
    };
    let (answer, ()) = tokio::join!(client.call("hold", json!({})), withhold);
    assert_eq!(answer["result"], json!({"held": true}));
    eventually("the call is over", || harness.metrics.requests_in_flight.get() == 0).await;
    assert_eq!(harness.list().await[0].failure, Some(Failure::RefNotFound), "its success mends nothing");
    assert_eq!(client.call("echo", json!({})).await["error"]["data"]["reason"], "RefNotFound");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_end_without_the_credential_says_what_the_upstream_made_of_it() {
    for (act, close) in [(Act::Well, Outcome::Confirmed), (Act::Status(401), Outcome::Unconfirmed)] {
        let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
        upstream.books().on_delete = act;
        let session = spec("s", &upstream);
        harness.put(&session).await;
        harness.initialized("s").await;
        harness.put(&withheld(&session, Failure::RefNotFound)).await;
        assert_eq!(harness.end_now("s").await.close, close);
        assert_eq!(upstream.books().credentials_of_deletes, [None]);
        harness.assert_baseline().await;
    }
}

#[tokio::test]
async fn a_refused_credential_is_no_trouble_any_more_once_there_is_another() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().on_initialize = Act::Status(401);
    let session = spec("s", &upstream);
    harness.put(&session).await;
    harness.client("s").initialize().await.unwrap_err();
    assert_eq!(
        harness.put(&session).await.failure,
        Some(Failure::Unauthorized),
        "the same is as bad as before"
    );
    assert_eq!(harness.put(&with(&session, "Bearer second")).await.failure, None);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}
