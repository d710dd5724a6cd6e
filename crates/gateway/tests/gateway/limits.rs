//! What is refused by its size, form or origin.

use crate::client::{Client, head, post};
use crate::world::{PATH, World, settings};
use berth_gateway::Settings;
use std::time::Duration;

const TOKEN: &str = "authorization: Bearer token-alice";

#[tokio::test]
async fn a_body_above_the_limit_is_413_and_one_at_the_limit_passes() {
    let world = World::with(Settings { body_max: 1024, ..settings() }).await;
    world.place();
    let answer = world.call(&head("POST", PATH, &[TOKEN, "content-length: 1025"])).await;
    assert_eq!((answer.status, &answer.error()["data"]["limitBytes"]), (413, &1024.into()));
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
    assert_eq!((answer.status, &answer.error()["data"]["limitBytes"]), (431, &65_536.into()));
}

#[tokio::test]
async fn another_path_or_method_is_404_and_says_the_form() {
    let world = World::new().await;
    world.place();
    for (method, path) in [("GET", "/"), ("POST", "/demo/s/mcp"), ("PUT", PATH), ("OPTIONS", PATH)] {
        let answer = world.call(&head(method, path, &[TOKEN, "content-length: 0"])).await;
        assert_eq!(answer.status, 404, "{method} {path}");
        assert!(answer.body.contains("/{namespace}/{session}/{server}/mcp"), "{}", answer.body);
    }
    assert!(world.reviews.tokens().is_empty());
}

#[tokio::test]
async fn a_page_of_another_origin_is_403_before_its_token_is_looked_at() {
    let world = World::new().await;
    world.place();
    let foreign = head("POST", PATH, &[TOKEN, "origin: https://evil.example", "content-length: 0"]);
    let answer = world.call(&foreign).await;
    assert_eq!((answer.status, &answer.error()["data"]["reason"]), (403, &"ForbiddenOrigin".into()));
    assert!(world.reviews.tokens().is_empty());
    let own = head("POST", PATH, &[TOKEN, "origin: https://gateway.test", "content-length: 0"]);
    assert_eq!(world.call(&own).await.status, 200);
}
