//! What attempts that fail leave behind in the process: nothing. A process of its own, since it counts descriptors.

// Clippy lets tests do all this, but not the helpers that they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::needless_pass_by_value)]
// Not everything that tests share is used here.
#![allow(dead_code)]

#[path = "it/support/mod.rs"]
mod support;

use berth_sidecar::upstream::Dialer;
use futures::future::join_all;
use std::time::{Duration, Instant};
use support::PATIENCE;
use support::faulty::{Faulty, Hang};
use support::harness::{Harness, spec};
use support::pki::{Pki, tls_in_front_of};
use support::upstream::{Act, Upstream};

/// Sessions that connect at once.
const AT_ONCE: u32 = 100;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// Connects `AT_ONCE` sessions at once to `url`, which must fail for each of them as `reason`, and ends them.
async fn fail_all(harness: &Harness, upstream: &Upstream, url: &str, reason: &str) {
    let uids: Vec<_> = (0..AT_ONCE).map(|n| format!("s{n}")).collect();
    for uid in &uids {
        let mut session = spec(uid, upstream);
        session.upstream.url = url.to_owned();
        // What hangs takes the whole of it; a port that refuses is tried for a while.
        session.timeouts.connect_millis = if reason == "InitializeTimeout" { 1_000 } else { 8_000 };
        session.timeouts.close_millis = 200;
        harness.put(&session).await;
    }
    let started = Instant::now();
    let answers =
        join_all(uids.iter().map(async |uid| harness.client(uid).initialize().await.unwrap_err())).await;
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    for error in answers {
        assert_eq!(error["data"]["reason"].as_str().unwrap_or_default(), reason, "{error}");
    }
    join_all(uids.iter().map(async |uid| harness.end_now(uid).await)).await;
}

/// Runs `fail` with a sidecar of its own and sees that descriptors and tasks come back to what they were.
async fn leaves_nothing(what: &str, fail: impl AsyncFn()) {
    let before = (descriptors(), tasks());
    fail().await;
    // The servers of this test end with what they serve, which takes them a moment.
    let left = || (descriptors(), tasks());
    let gone = tokio::time::timeout(PATIENCE, async {
        while left().0 > before.0 || left().1 > before.1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(gone.await.is_ok(), "{what}: {:?} descriptors and tasks, {before:?} before", left());
}

#[tokio::test]
async fn attempts_that_fail_leave_no_task_no_socket_and_no_descriptor() {
    let upstream = Upstream::start().await;
    let run = async |what: &str, dialer: &(dyn Fn() -> Dialer + Sync), url: &str, reason: &str| {
        leaves_nothing(what, async || {
            let harness = Harness::start_with(AT_ONCE, dialer(), 96).await;
            fail_all(&harness, &upstream, url, reason).await;
            harness.assert_baseline().await;
        })
        .await;
    };
    let system = || Dialer::system().unwrap();
    for hang in Hang::ALL {
        let faulty = Faulty::start(hang).await;
        run(&format!("{hang:?}"), &|| faulty.dialer(), &faulty.url, "InitializeTimeout").await;
        let seen = faulty.seen();
        assert_eq!(seen.deletes.len(), seen.opened.len(), "{hang:?}");
    }
    for (act, reason) in [
        (Act::Status(401), "Unauthorized"),
        (Act::Status(429), "RateLimited"),
        (Act::Status(503), "UpstreamUnreachable"),
        (Act::Rubbish, "ProtocolError"),
    ] {
        upstream.books().on_initialize = act;
        run(&format!("{act:?}"), &system, &upstream.url(), reason).await;
    }
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    run("refused", &system, &format!("http://{closed}/mcp"), "UpstreamUnreachable").await;
    let tls = tls_in_front_of(&upstream, Pki::new().server("localhost")).await;
    run("untrusted", &system, &format!("https://localhost:{}/mcp", tls.port()), "TLSUntrusted").await;
}
