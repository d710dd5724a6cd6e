//! What is refused by its size, form or origin.

use crate::client::{Client, get, head, post};
use crate::world::{PATH, World, settings};
use berth_gateway::Settings;
use serde_json::json;
use std::time::Duration;

const TOKEN: &str = "authorization: Bearer token-alice";

#[tokio::test]
async fn a_body_above_the_limit_is_413_and_one_at_the_limit_passes() {
    let world = World::with(Settings { body_max: 1024, ..settings() }).await;
    world.place();
    let answer = world.call(&head("POST", PATH, &[TOKEN, "content-length: 1025"])).await;
    assert_eq!((answer.status, &answer.error()["code"]), (413, &(-32054).into()));
    assert!(answer.body.contains("1024 bytes"), "{}", answer.body);
    assert_eq!(world.sidecar.count(), 0);
    assert_eq!(world.call(&post(PATH, "alice", &"x".repeat(1024))).await.status, 200);
    world.baseline().await;
}

#[tokio::test]
async fn a_body_of_unknown_length_is_413_as_soon_as_it_is_too_long() {
    let world = World::with(Settings { body_max: 1024, ..settings() }).await;
    world.place();
    let mut client =
        Client::send(world.address, &head("POST", PATH, &[TOKEN, "transfer-encoding: chunked"])).await;
    client.write(format!("400\r\n{}\r\n1\r\nx\r\n", "x".repeat(1024)).as_bytes()).await;
    let answer = client.read_all().await;
    assert_eq!((answer.status, &answer.error()["data"]["reason"]), (413, &"TooLarge".into()));
    assert_eq!(world.sidecar.count(), 0);
    world.baseline().await;
}

#[tokio::test]
async fn a_body_of_chunks_that_are_none_is_400() {
    let world = World::new().await;
    world.place();
    for chunk in ["ZZ\r\n", "-1\r\n", "fffffffffffffffff\r\n", "1\r\n{}\r\n"] {
        let head = head("POST", PATH, &[TOKEN, "transfer-encoding: chunked"]);
        let answer = world.call(&(head + chunk)).await;
        assert_eq!(
            (answer.status, &answer.error()["data"]["reason"]),
            (400, &"BodyMalformed".into()),
            "{chunk:?}"
        );
    }
    assert_eq!(world.sidecar.count(), 0);
    world.baseline().await;
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_given_up() {
    let world = World::with(Settings { body_wait: Duration::from_millis(50), ..settings() }).await;
    world.place();
    let answer = world.call(&(head("POST", PATH, &[TOKEN, "content-length: 10"]) + "{")).await;
    assert_eq!((answer.status, &answer.error()["data"]["reason"]), (408, &"BodyIncomplete".into()));
    world.baseline().await;
}

#[tokio::test]
async fn headers_above_the_limit_are_431() {
    let world = World::new().await;
    world.place();
    let large = format!("x-large: {}", "x".repeat(70_000));
    let answer = world.call(&head("POST", PATH, &[TOKEN, &large, "content-length: 0"])).await;
    assert_eq!((answer.status, &answer.error()["code"]), (431, &(-32054).into()));
    assert!(answer.body.contains("65536 bytes"), "{}", answer.body);
}

#[tokio::test]
async fn another_path_is_404_and_says_the_form() {
    let world = World::new().await;
    world.place();
    for (method, path) in [("GET", "/"), ("POST", "/demo/s/mcp"), ("PUT", "/demo"), ("GET", "/readyz")] {
        let answer = world.call(&head(method, path, &[TOKEN, "content-length: 0"])).await;
        assert_eq!(answer.status, 404, "{method} {path}");
        assert!(answer.body.contains("/{namespace}/{session}/{server}/mcp"), "{}", answer.body);
    }
    assert!(world.reviews.tokens().is_empty());
}

#[tokio::test]
async fn another_method_is_405_and_says_which_are_served_whoever_asks() {
    let world = World::new().await;
    world.place();
    let known = world.call(&head("PUT", PATH, &[TOKEN, "content-length: 0"])).await;
    assert_eq!((known.status, &known.error()["data"]["reason"]), (405, &"MethodNotAllowed".into()));
    assert!(known.head.contains("\nallow: GET, POST, DELETE"), "{}", known.head);
    for (method, path) in [("PATCH", PATH), ("OPTIONS", PATH), ("PUT", "/demo/none/github/mcp")] {
        assert_eq!(world.call(&head(method, path, &["content-length: 0"])).await, known, "{method} {path}");
    }
    assert!(world.reviews.tokens().is_empty());
    assert_eq!(world.sidecar.count(), 0);
}

#[tokio::test]
async fn calls_beyond_the_limit_are_429_until_others_are_over() {
    let world = World::with(Settings { max_calls: 2, ..settings() }).await;
    world.place();
    let events = world.sidecar.script_stream();
    let mut listening = Client::send(world.address, &get(PATH, "alice")).await;
    listening.read_until("200 OK").await;
    assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 200, "the second place is free again");
    let answer = world.sidecar.script_stream();
    let mut running = Client::send(world.address, &post(PATH, "alice", "{}")).await;
    running.read_until("200 OK").await;
    let refused = world.call(&post(PATH, "alice", "{}")).await;
    assert_eq!((refused.status, &refused.error()["code"]), (429, &(-32055).into()));
    assert!(refused.head.contains("\nretry-after: 1"), "{}", refused.head);
    assert!(refused.body.contains("--max-calls"), "{}", refused.body);
    assert_eq!(world.sidecar.count(), 3);
    // Who is nobody is told that, not how much runs.
    let stranger =
        world.call(&head("POST", PATH, &["content-length: 0", "authorization: Bearer stolen"])).await;
    assert_eq!(stranger.status, 401);
    drop(answer);
    running.read_all().await;
    world.metric_reaches("berth_gateway_requests_in_flight", 1.0).await;
    assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 200);
    drop((events, listening));
    world.baseline().await;
}

#[tokio::test]
async fn a_page_of_another_origin_is_403_before_its_token_is_looked_at() {
    let hosts = vec!["gateway.test".into()];
    let world = World::with(Settings { allowed_hosts: hosts, ..settings() }).await;
    world.place();
    let foreign = head("POST", PATH, &[TOKEN, "origin: https://evil.example", "content-length: 0"]);
    let answer = world.call(&foreign).await;
    assert_eq!((answer.status, &answer.error()["data"]["reason"]), (403, &"ForbiddenOrigin".into()));
    assert!(world.reviews.tokens().is_empty());
    let own = head("POST", PATH, &[TOKEN, "origin: https://gateway.test", "content-length: 0"]);
    assert_eq!(world.call(&own).await.status, 200);
}

#[tokio::test]
async fn a_request_with_two_hosts_is_400() {
    let world = World::new().await;
    world.place();
    let answer = world.call(&head("POST", PATH, &[TOKEN, "host: gateway.test", "content-length: 0"])).await;
    assert_eq!((answer.status, &answer.error()["data"]["reason"]), (400, &"ManyHosts".into()));
    assert_eq!(world.sidecar.count(), 0);
}

#[tokio::test]
async fn a_page_that_was_rebound_to_us_is_403_though_its_host_is_its_origin() {
    let world = World::new().await;
    world.place();
    let rebound = head("POST", PATH, &[TOKEN, "origin: http://evil.example.com", "content-length: 0"])
        .replace("host: gateway.test", "host: evil.example.com");
    let answer = world.call(&rebound).await;
    assert_eq!((answer.status, &answer.error()["data"]["reason"]), (403, &"ForbiddenOrigin".into()));
    assert_eq!(world.sidecar.count(), 0);
}

#[tokio::test]
async fn bodies_beyond_the_budget_are_429_until_others_are_let_go() {
    let bounds = Settings { body_budget: 1024, budget_wait: Duration::from_millis(20), ..settings() };
    let world = World::with(bounds).await;
    world.apply(&json!({}), &json!({}));
    let waiting = Client::send(world.address, &post(PATH, "alice", &"x".repeat(1000))).await;
    world.metric_reaches("berth_gateway_body_bytes", 1000.0).await;
    let refused = world.call(&post(PATH, "alice", &"x".repeat(25))).await;
    assert_eq!((refused.status, &refused.error()["code"]), (429, &(-32055).into()));
    assert!(refused.head.contains("\nretry-after: 1"), "{}", refused.head);
    assert_eq!(world.sidecar.count(), 0);
    world.place();
    assert_eq!(waiting.read_all().await.status, 200);
    world.metric_reaches("berth_gateway_body_bytes", 0.0).await;
    assert_eq!(world.call(&post(PATH, "alice", &"x".repeat(1024))).await.status, 200);
    world.baseline().await;
}

#[tokio::test]
async fn a_body_that_is_only_announced_takes_nothing_of_the_budget() {
    let bounds = Settings { body_budget: 1024, budget_wait: Duration::from_millis(20), ..settings() };
    let world = World::with(bounds).await;
    world.place();
    let announced =
        Client::send(world.address, &(head("POST", PATH, &[TOKEN, "content-length: 1024"]) + "{")).await;
    world.metric_reaches("berth_gateway_body_bytes", 1.0).await;
    assert_eq!(world.call(&post(PATH, "alice", &"x".repeat(1023))).await.status, 200);
    drop(announced);
    world.metric_reaches("berth_gateway_body_bytes", 0.0).await;
    world.baseline().await;
}
