//! Bytes flow as they come, and nothing is held once somebody has left.

use crate::client::{Client, get, post};
use crate::sidecar::Script;
use crate::world::{PATH, World, soon};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use std::time::Duration;
use tokio::sync::mpsc;

const STREAMS: &str = "berth_gateway_streams";

#[tokio::test]
async fn an_event_of_a_call_arrives_before_the_next_is_sent() {
    let world = World::new().await;
    world.place();
    let events = world.sidecar.script_stream();
    let mut client = Client::send(world.address, &post(PATH, "alice", "{}")).await;
    for event in ["data: one\n\n", "data: two\n\n", "data: three\n\n"] {
        events.send(event.into()).await.unwrap();
        client.read_until(event).await;
    }
    assert_eq!(world.metric(STREAMS), Some(1.0));
    drop(events);
    let answer = client.read_all().await;
    assert!(answer.head.contains("\ncontent-type: text/event-stream"), "{}", answer.head);
    assert!(answer.body.ends_with("0\r\n\r\n"), "ended in order: {:?}", answer.body);
    world.baseline().await;
}

#[tokio::test]
async fn a_listening_stream_and_calls_run_side_by_side() {
    let world = World::new().await;
    world.place();
    let events = world.sidecar.script_stream();
    let mut listening = Client::send(world.address, &get(PATH, "alice")).await;
    listening.read_until("200 OK").await;
    assert_eq!(world.call(&post(PATH, "alice", r#"{"id":"from the client"}"#)).await.status, 200);
    events.send("data: from the server\n\n".into()).await.unwrap();
    listening.read_until("data: from the server").await;
    drop((events, listening));
    world.baseline().await;
    let seen = world.sidecar.take_seen();
    assert_eq!(seen[1].body, r#"{"id":"from the client"}"#);
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_ends_the_request_to_the_sidecar() {
    let world = World::new().await;
    world.place();
    let events = world.sidecar.script_stream();
    let mut client = Client::send(world.address, &post(PATH, "alice", "{}")).await;
    events.send("data: one\n\n".into()).await.unwrap();
    client.read_until("data: one").await;
    drop(client);
    soon("the sidecar sees its request end", events.closed()).await;
    world.baseline().await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_ends_the_request_to_the_sidecar() {
    let world = World::new().await;
    world.place();
    let (held, receiver) = mpsc::channel(1);
    world.sidecar.script(Script::Hang(receiver));
    let client = Client::send(world.address, &post(PATH, "alice", "{}")).await;
    world.sidecar.reached(1).await;
    drop(client);
    soon("the sidecar sees its request end", held.closed()).await;
    world.baseline().await;
    world.metric_reaches(r#"berth_gateway_requests_total{kind="post",code="gone"}"#, 1.0).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_slows_the_sidecar_down() {
    let world = World::new().await;
    world.place();
    let events = world.sidecar.script_stream();
    let client = Client::send(world.address, &get(PATH, "alice")).await;
    let chunk = Bytes::from(vec![b'x'; 64 * 1024]);
    let mut sent = 0;
    // Sockets on the way take some megabytes; the gateway itself must not take the rest.
    while sent < 64 * 1024 * 1024 {
        match tokio::time::timeout(Duration::from_secs(1), events.send(chunk.clone())).await {
            Ok(taken) => taken.unwrap(),
            Err(_) => break,
        }
        sent += chunk.len();
    }
    assert!(sent < 64 * 1024 * 1024, "the gateway took {sent} bytes that nobody read");
    drop(client);
    soon("the sidecar sees its request end", events.closed()).await;
    world.baseline().await;
}

#[tokio::test]
async fn status_and_headers_of_the_sidecar_pass_and_its_own_stay() {
    let world = World::new().await;
    world.place();
    let reply = Response::builder()
        .status(StatusCode::TOO_MANY_REQUESTS)
        .header("content-type", "application/json")
        .header("retry-after", "7")
        .header("mcp-session-id", "sealed")
        .header("set-cookie", "a=b")
        .header("server", "sidecar")
        .body(Body::from(r#"{"error":{}}"#));
    world.sidecar.script(Script::Reply(reply.unwrap()));
    let answer = world.call(&post(PATH, "alice", "{}")).await;
    assert_eq!((answer.status, answer.body.as_str()), (429, r#"{"error":{}}"#));
    for line in
        ["content-type: application/json", "retry-after: 7", "mcp-session-id: sealed", "content-length: 12"]
    {
        assert!(answer.head.lines().any(|known| known == line), "{line} in {}", answer.head);
    }
    assert!(!answer.head.contains("set-cookie") && !answer.head.contains("server:"), "{}", answer.head);
}
