//! The lazy, single-flight connect.

use crate::support::client::initialize;
use crate::support::harness::{EndBounds, Harness, read, spec, within};
use crate::support::pki::{Pki, tls_in_front_of};
use crate::support::upstream::{Act, Upstream};
use berth_sidecar::upstream::Dialer;
use berth_wire::{Failure, Outcome, SessionState};
use futures::future::join_all;
use http::StatusCode;
use serde_json::json;
use std::time::{Duration, Instant};

#[tokio::test]
async fn nothing_is_dialled_before_a_request_that_needs_the_upstream() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.client("s");
    let discover = json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover"});
    let (status, answer) = client.json(&discover).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::BAD_REQUEST, &json!(-32000)));
    assert!(answer["error"]["message"].as_str().unwrap().contains("Server not initialized"), "{answer}");
    let (status, _) = client.json(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(harness.list().await[0].state, SessionState::Idle);
    assert!(upstream.books().sockets.is_empty());
    let end = harness.end_now("s").await;
    assert_eq!(
        (end.drain, end.close, end.remove),
        (Outcome::NotNeeded, Outcome::NotNeeded, Outcome::Confirmed)
    );
    harness.assert_baseline().await;
    assert!(upstream.books().sockets.is_empty() && upstream.books().deletes.is_empty());
}

#[tokio::test]
async fn fifty_initializes_at_once_make_one_connect() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().on_initialize = Act::Hold;
    harness.put(&spec("s", &upstream)).await;
    let clients = join_all((0..50).map(|n| {
        let client = harness.client("s");
        async move {
            let response = client.post(initialize(&format!("id-{n}")).to_string()).await;
            let scope = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
            let (status, body) = read(response).await;
            assert_eq!(status, StatusCode::OK);
            (scope, serde_json::from_slice::<serde_json::Value>(&body).unwrap())
        }
    }));
    let release = async {
        upstream.until("the initialize", |books| books.initializes.len() == 1).await;
        let metrics = &harness.metrics;
        crate::support::eventually("all callers wait", || metrics.requests_in_flight.get() == 50).await;
        upstream.release();
    };
    let (answers, ()) = tokio::join!(clients, release);
    let mut scopes: Vec<_> = answers.iter().map(|(scope, _)| scope).collect();
    scopes.sort();
    scopes.dedup();
    assert_eq!(scopes.len(), 50, "each client has a scope of its own");
    for (n, (_, answer)) in answers.iter().enumerate() {
        assert_eq!(answer["id"], format!("id-{n}"));
        assert_eq!(answer["result"]["serverInfo"]["name"], "scripted");
    }
    {
        let books = upstream.books();
        assert_eq!((books.initializes.len(), books.initialized.len(), books.sockets.len()), (1, 1, 1));
        assert_eq!(books.initializes[0]["params"], initialize("x")["params"]);
    }
    assert_eq!(harness.list().await[0].activity.connects, 1);
    harness.end_now("s").await;
    harness.assert_baseline().await;
    assert!(upstream.books().open.is_empty());
}

#[tokio::test]
async fn the_upstreams_result_reaches_the_client_byte_for_byte() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let (_, body) = read(harness.client("s").post(initialize("a").to_string()).await).await;
    let text = String::from_utf8(body).unwrap();
    assert!(text.contains(r#""x-vendor":1.0"#), "{text}");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_caller_that_leaves_does_not_abort_the_attempt() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().on_initialize = Act::Hold;
    harness.put(&spec("s", &upstream)).await;
    {
        let client = harness.client("s");
        let leaving = client.post(initialize("gone").to_string());
        let seen = upstream.until("the initialize", |books| books.initializes.len() == 1);
        tokio::select! {
            _ = leaving => panic!("answered while held"),
            () = seen => {}
        }
    }
    upstream.release();
    upstream.until("the connect is completed", |books| books.initialized.len() == 1).await;
    let client = harness.initialized("s").await;
    assert_eq!(client.call("echo", json!({"x": 1})).await["result"], json!({"x": 1}));
    assert_eq!(upstream.books().initializes.len(), 1);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_connect_that_hangs_times_out_and_the_next_one_works() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().on_initialize = Act::Hold;
    let mut session = spec("s", &upstream);
    session.timeouts.connect_millis = 300;
    harness.put(&session).await;
    let started = Instant::now();
    let error = harness.client("s").initialize().await.unwrap_err();
    assert!(started.elapsed() >= Duration::from_millis(300) && within(started, 5_000));
    assert_eq!(error["data"]["reason"], "InitializeTimeout");
    let report = &harness.list().await[0];
    assert_eq!((report.state, report.failure), (SessionState::Idle, Some(Failure::InitializeTimeout)));
    assert!(report.message.as_ref().unwrap().contains("\"scripted\", initialize"), "{report:?}");
    upstream.books().on_initialize = Act::Well;
    session.timeouts.connect_millis = 10_000;
    harness.put(&session).await;
    harness.until_open("s").await;
    harness.initialized("s").await;
    let report = &harness.list().await[0];
    assert_eq!((report.state, report.failure, report.activity.connects), (SessionState::Connected, None, 2));
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn each_refusal_has_its_reason_and_the_time_of_the_next_attempt() {
    for (act, reason) in [
        (Act::Status(404), "UpstreamUnreachable"),
        (Act::Status(429), "RateLimited"),
        (Act::Status(302), "ProtocolError"),
        (Act::Status(503), "UpstreamUnreachable"),
        (Act::Rubbish, "ProtocolError"),
    ] {
        let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
        harness.put(&spec("s", &upstream)).await;
        upstream.books().on_initialize = act;
        let error = harness.client("s").initialize().await.unwrap_err();
        let told = (&error["code"], &error["data"]["reason"]);
        assert_eq!(told, (&json!(-32050), &json!(reason)), "{act:?}: {error}");
        let wait = error["data"]["retryAfterMillis"].as_u64().expect("when to ask again");
        assert!((249..=500).contains(&wait), "{act:?}: {error}");
        assert_eq!(upstream.books().initializes.len(), 1, "{act:?} is tried once for one call");
        let report = &harness.list().await[0];
        assert_eq!((report.state, report.failure.unwrap().as_str()), (SessionState::Idle, reason));
        upstream.books().on_initialize = Act::Well;
        harness.until_open("s").await;
        harness.initialized("s").await;
        let report = &harness.list().await[0];
        assert_eq!((report.failure, report.next_retry_unix_millis), (None, None));
        harness.end_now("s").await;
        harness.assert_baseline().await;
    }
}

#[tokio::test]
async fn what_an_upstream_asks_to_wait_holds_for_every_session_and_no_connection() {
    for (status, reason) in [(429, "RateLimited"), (503, "UpstreamUnreachable")] {
        let (harness, upstream) = (Harness::start(12).await, Upstream::start().await);
        harness.put(&spec("connected", &upstream)).await;
        let connected = harness.initialized("connected").await;
        upstream.books().on_initialize = Act::RetryAfter(status, 90);
        for n in 0..11 {
            let uid = format!("s{n}");
            harness.put(&spec(&uid, &upstream)).await;
            let error = harness.client(&uid).initialize().await.unwrap_err();
            assert_eq!(error["data"]["reason"], reason, "{error}");
            let wait = error["data"]["retryAfterMillis"].as_u64().expect("when to ask again");
            assert!((60_000..=90_000).contains(&wait), "{error}");
        }
        assert_eq!(upstream.books().initializes.len(), 2, "{status}: nothing is sent before its time");
        let reports = harness.list().await;
        let waiting = reports.iter().filter(|report| report.next_retry_unix_millis.is_some()).count();
        assert_eq!(waiting, 11);
        assert_eq!(connected.call("echo", json!({"x": 1})).await["result"], json!({"x": 1}));
        for report in &reports {
            harness.end_now(&report.uid).await;
        }
        harness.assert_baseline().await;
    }
}

#[tokio::test]
async fn a_refused_credential_is_not_sent_again_until_it_changes() {
    for act in [Act::Status(401), Act::Status(403)] {
        let (harness, upstream) = (Harness::start(2).await, Upstream::start().await);
        upstream.books().on_initialize = act;
        let mut session = spec("s", &upstream);
        harness.put(&session).await;
        for _ in 0..3 {
            let error = harness.client("s").initialize().await.unwrap_err();
            assert_eq!(error["data"], json!({"server": "scripted", "reason": "Unauthorized"}));
            harness.put(&session).await;
        }
        assert_eq!(upstream.books().initializes.len(), 1, "{act:?}: tried once, whatever is PUT again");
        upstream.books().on_initialize = Act::Well;
        harness.put(&spec("other", &upstream)).await;
        harness.initialized("other").await;
        session.upstream.headers[0].value = "Bearer second".into();
        harness.put(&session).await;
        harness.initialized("s").await;
        assert_eq!(upstream.books().initializes.len(), 3, "{act:?}");
        for uid in ["s", "other"] {
            harness.end_now(uid).await;
        }
        harness.assert_baseline().await;
    }
}

#[tokio::test]
async fn the_upstreams_own_error_to_initialize_passes_and_holds_nobody_up() {
    let (harness, upstream) = (Harness::start(2).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    harness.put(&spec("other", &upstream)).await;
    upstream.books().on_initialize = Act::RpcError;
    let error = harness.client("s").initialize().await.unwrap_err();
    assert_eq!(error, json!({"code": -32602, "message": "no", "x": 1}));
    upstream.books().on_initialize = Act::Well;
    for uid in ["other", "s"] {
        // The one that was refused waits for a moment, the other does not.
        harness.until_open(uid).await;
        harness.initialized(uid).await;
        harness.end_now(uid).await;
    }
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_upstream_that_cannot_be_reached_or_trusted_says_so() {
    let upstream = Upstream::start().await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let cases = [
        ("refused", format!("http://{closed}/mcp"), "UpstreamUnreachable"),
        ("unknown", "http://no-such-host.invalid/mcp".to_owned(), "UpstreamUnreachable"),
        ("plain", upstream.url().replace("http:", "https:"), "UpstreamUnreachable"),
    ];
    for (uid, url, reason) in cases {
        let harness = Harness::start(1).await;
        let mut session = spec(uid, &upstream);
        session.upstream.url = url;
        harness.put(&session).await;
        let error = harness.client(uid).initialize().await.unwrap_err();
        assert_eq!(
            (&error["code"], &error["data"]["reason"]),
            (&json!(-32050), &json!(reason)),
            "{uid}: {error}"
        );
        harness.end_now(uid).await;
        harness.assert_baseline().await;
    }
}

#[tokio::test]
async fn a_delete_during_a_connect_that_hangs_ends_in_its_bound_and_the_late_success_is_closed() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().on_initialize = Act::Hold;
    harness.put(&spec("s", &upstream)).await;
    let mut client = harness.client("s");
    let end = async {
        upstream.until("the initialize", |books| books.initializes.len() == 1).await;
        let started = Instant::now();
        let (status, report) = harness.end("s", EndBounds { drain: 200, close: 300, wait: 10_000 }).await;
        assert!(within(started, 3_000), "{:?}", started.elapsed());
        (status, report)
    };
    let (answer, (status, report)) = tokio::join!(client.initialize(), end);
    assert_eq!(answer.unwrap_err()["code"], json!(-32052), "who waits is told at once");
    assert_eq!(
        (status, report.close, report.remove),
        (StatusCode::OK, Outcome::Unconfirmed, Outcome::Unconfirmed)
    );
    assert!(harness.list().await.is_empty(), "the slot is free");
    upstream.release();
    upstream.until("the late session is closed", |books| books.deletes == ["upstream-1"]).await;
    harness.assert_baseline().await;
    assert!(upstream.books().open.is_empty());
}

#[tokio::test]
async fn an_end_joins_an_attempt_that_succeeds_in_time() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().on_initialize = Act::Hold;
    harness.put(&spec("s", &upstream)).await;
    let mut client = harness.client("s");
    let end = async {
        upstream.until("the initialize", |books| books.initializes.len() == 1).await;
        let end = harness.end_now("s");
        let release = async {
            crate::support::eventually("the caller is told", || {
                harness.metrics.requests_in_flight.get() == 0
            })
            .await;
            upstream.release();
        };
        tokio::join!(end, release).0
    };
    let (answer, report) = tokio::join!(client.initialize(), end);
    assert_eq!(answer.unwrap_err()["code"], json!(-32052));
    assert_eq!((report.close, report.remove), (Outcome::Confirmed, Outcome::Confirmed));
    assert_eq!(upstream.books().deletes, ["upstream-1"]);
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_certificate_is_checked_and_says_why_it_is_refused() {
    let upstream = Upstream::start().await;
    let pki = Pki::new();
    let address = tls_in_front_of(&upstream, pki.server("localhost")).await;
    for (trusted, host, reason) in [
        (true, "localhost", None),
        (true, "127.0.0.1", Some("TLSUntrusted")),
        (false, "localhost", Some("TLSUntrusted")),
    ] {
        let dialer = if trusted { Dialer::with_roots(pki.roots()) } else { Dialer::system() };
        let harness = Harness::start_with(1, dialer.unwrap(), 96).await;
        let mut session = spec("s", &upstream);
        session.upstream.url = format!("https://{host}:{}/mcp", address.port());
        harness.put(&session).await;
        let result = harness.client("s").initialize().await;
        assert_eq!(
            result.err().map(|error| error["data"]["reason"].clone()),
            reason.map(|reason| json!(reason))
        );
        harness.end_now("s").await;
        harness.assert_baseline().await;
    }
}
