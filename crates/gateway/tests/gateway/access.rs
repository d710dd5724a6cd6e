//! Who gets in, and what everybody else learns.

use crate::client::{get, head, post};
use crate::world::{PATH, World};
use berth_net::peer::Peer;

#[tokio::test]
async fn no_token_and_a_bad_token_are_401_with_a_challenge() {
    let world = World::new().await;
    world.place();
    let none = world.call(&head("POST", PATH, &["content-length: 0"])).await;
    let bad = world.call(&head("POST", PATH, &["content-length: 0", "authorization: Bearer stolen"])).await;
    assert_eq!((none.status, bad.status), (401, 401));
    assert!(none.head.contains("\nwww-authenticate: Bearer realm=\"berth\"\n"), "{}", none.head);
    assert!(
        bad.head.contains("\nwww-authenticate: Bearer realm=\"berth\", error=\"invalid_token\"\n"),
        "{}",
        bad.head
    );
    assert_eq!(none.error()["data"]["reason"], "Unauthorized");
    assert_eq!(bad.error()["data"]["reason"], "Unauthorized");
    assert_eq!(world.sidecar.count(), 0);
}

#[tokio::test]
async fn unknown_foreign_and_ended_sessions_and_missing_servers_get_the_same_bytes() {
    let world = World::new().await;
    world.place();
    let foreign = world.call(&post(PATH, "bob", "{}")).await;
    let unknown = world.call(&post("/demo/none/github/mcp", "bob", "{}")).await;
    let no_server = world.call(&post("/demo/s/gitlab/mcp", "alice", "{}")).await;
    let impossible = world.call(&post("/demo/S/github/mcp", "alice", "{}")).await;
    world.delete();
    let ended = world.call(&post(PATH, "alice", "{}")).await;
    let ended_foreign = world.call(&post(PATH, "bob", "{}")).await;
    assert_eq!(foreign.status, 404);
    assert_eq!(
        foreign.body,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#
    );
    for (case, answer) in [
        ("unknown", unknown),
        ("no such server", no_server),
        ("impossible name", impossible),
        ("ended", ended),
        ("ended and foreign", ended_foreign),
    ] {
        assert_eq!(answer, foreign, "{case}");
    }
    assert_eq!(world.sidecar.count(), 0);
}

#[tokio::test]
async fn every_session_that_is_not_found_costs_the_same_review() {
    let world = World::new().await;
    world.place();
    world.call(&post(PATH, "bob", "{}")).await;
    world.call(&post("/demo/none/github/mcp", "bob", "{}")).await;
    world.call(&post("/demo/s/gitlab/mcp", "alice", "{}")).await;
    assert_eq!(world.reviews.accesses(), ["bob demo/s", "bob demo/none", "alice demo/s"]);
}

#[tokio::test]
async fn whoever_may_connect_uses_a_session_of_somebody_else() {
    let world = World::new().await;
    world.place();
    assert_eq!(world.call(&post(PATH, "admin", "{}")).await.status, 200);
    assert_eq!(world.call(&post(PATH, "admin", "{}")).await.status, 200);
    assert_eq!(world.reviews.accesses(), ["admin demo/s"], "the second call knew");
}

#[tokio::test]
async fn the_subject_needs_no_access_review_and_one_token_review() {
    let world = World::new().await;
    world.place();
    let request = post(PATH, "alice", "{}");
    let calls: Vec<_> = (0..20).map(|_| world.call(&request)).collect();
    for answer in futures::future::join_all(calls).await {
        assert_eq!(answer.status, 200);
    }
    assert_eq!(world.reviews.tokens(), ["token-alice"]);
    assert!(world.reviews.accesses().is_empty());
    assert_eq!(world.sidecar.count(), 20);
}

#[tokio::test]
async fn the_sidecar_gets_the_call_and_nothing_of_the_caller() {
    let world = World::new().await;
    world.place();
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let request = head(
        "POST",
        &format!("{PATH}?token=in-the-query"),
        &[
            "authorization: Bearer token-alice",
            "cookie: session=secret",
            "origin: http://localhost:6274",
            "x-forwarded-for: 10.0.0.1",
            "x-api-key: secret",
            "user-agent: test",
            "content-type: application/json",
            "accept: application/json, text/event-stream",
            "mcp-session-id: sealed",
            "mcp-protocol-version: 2025-11-25",
            "mcp-param-region: eu",
            &format!("content-length: {}", body.len()),
        ],
    );
    assert_eq!(world.call(&(request + body)).await.status, 200);
    let seen = world.sidecar.take_seen().pop().unwrap();
    assert_eq!(
        (seen.peer, seen.method.as_str(), seen.path.as_str()),
        (Peer::Gateway, "POST", "/mcp/session-uid")
    );
    assert_eq!(seen.body, body);
    let mut names: Vec<_> = seen.headers.keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    let expected = [
        "accept",
        "content-length",
        "content-type",
        "host",
        "mcp-param-region",
        "mcp-protocol-version",
        "mcp-session-id",
    ];
    assert_eq!(names, expected);
    for value in seen.headers.values() {
        let value = value.to_str().unwrap();
        assert!(
            !value.contains("token-alice") && !value.contains("secret") && !value.contains("gateway.test"),
            "{value}"
        );
    }
}

#[tokio::test]
async fn get_and_delete_are_forwarded_without_a_body() {
    let world = World::new().await;
    world.place();
    assert_eq!(world.call(&get(PATH, "alice")).await.status, 200);
    let delete = head("DELETE", PATH, &["authorization: Bearer token-alice", "mcp-session-id: sealed"]);
    assert_eq!(world.call(&delete).await.status, 200);
    let seen = world.sidecar.take_seen();
    let methods: Vec<_> = seen.iter().map(|seen| seen.method.as_str()).collect();
    assert_eq!(methods, ["GET", "DELETE"]);
    assert!(seen.iter().all(|seen| seen.body.is_empty()));
}

#[tokio::test]
async fn a_caller_that_cannot_be_checked_gets_503_and_a_known_one_goes_on() {
    let world = World::new().await;
    world.place();
    assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 200);
    world.call(&post("/demo/other/github/mcp", "bob", "{}")).await;
    world.reviews.set_away(true);
    assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 200, "known");
    let new = world.call(&post(PATH, "carol", "{}")).await;
    assert_eq!(new.status, 503);
    assert!(new.head.contains("\nretry-after: "), "{}", new.head);
    assert_eq!(new.error()["data"]["reason"], "ReviewUnavailable");
    let foreign = world.call(&post(PATH, "bob", "{}")).await;
    let unknown = world.call(&post("/demo/none/github/mcp", "bob", "{}")).await;
    assert_eq!(foreign, unknown, "not being able to ask tells nothing of the session either");
    assert_eq!(foreign.status, 503);
}
