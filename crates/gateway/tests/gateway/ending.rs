//! The end of the gateway as its clients see it.

use crate::client::{Client, get, post};
use crate::sidecar::Script;
use crate::world::{PATH, World, soon};
use serde_json::json;
use tokio::sync::mpsc;

const WAITING: &str = "berth_gateway_placement_waiting";

#[tokio::test]
async fn the_end_closes_listening_streams_and_lets_calls_finish() {
    let world = World::new().await;
    world.place();
    let heard = world.sidecar.script_stream();
    let mut listening = Client::send(world.address, &get(PATH, "alice")).await;
    listening.read_until("200 OK").await;
    let events = world.sidecar.script_stream();
    let mut call = Client::send(world.address, &post(PATH, "alice", "{}")).await;
    call.read_until("200 OK").await;

    world.ending.begun.cancel();
    assert!(listening.read_all().await.body.ends_with("0\r\n\r\n"), "closed in order");
    soon("the sidecar sees the stream end", heard.closed()).await;
    events.send("data: late\n\n".into()).await.unwrap();
    drop(events);
    let answer = call.read_all().await;
    assert!(answer.body.contains("data: late") && answer.body.ends_with("0\r\n\r\n"), "{answer:?}");
    world.baseline().await;
}

#[tokio::test]
async fn a_call_that_outlasts_the_end_is_broken_off_and_not_ended_in_order() {
    let world = World::new().await;
    world.place();
    let events = world.sidecar.script_stream();
    let mut call = Client::send(world.address, &post(PATH, "alice", "{}")).await;
    events.send("data: half\n\n".into()).await.unwrap();
    call.read_until("data: half").await;
    world.ending.begun.cancel();
    world.ending.over.cancel();
    let answer = call.read_all().await;
    assert!(!answer.body.ends_with("0\r\n\r\n"), "{answer:?}");
    soon("the sidecar sees its request end", events.closed()).await;
    world.baseline().await;
}

#[tokio::test]
async fn a_call_that_waits_for_its_place_when_time_is_over_is_told_to_come_again() {
    let world = World::new().await;
    world.apply(&json!({}), &json!({}));
    let call = post(PATH, "alice", r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    let (waiting, listening) =
        (Client::send(world.address, &call).await, Client::send(world.address, &get(PATH, "alice")).await);
    world.metric_reaches(WAITING, 2.0).await;
    world.ending.begun.cancel();
    let answer = listening.read_all().await;
    assert_eq!((answer.status, &answer.error()["data"]["reason"]), (503, &"Ending".into()));
    world.metric_reaches(WAITING, 1.0).await;
    world.ending.over.cancel();
    let answer = waiting.read_all().await;
    assert_eq!((answer.status, &answer.error_of(&1.into())["data"]["reason"]), (503, &"Ending".into()));
    assert!(answer.head.contains("\nretry-after: 1"), "{}", answer.head);
    world.baseline().await;
}

#[tokio::test]
async fn a_call_without_an_answer_when_time_is_over_is_told_that_its_outcome_is_unknown() {
    let world = World::new().await;
    world.place();
    let (held, receiver) = mpsc::channel(1);
    world.sidecar.script(Script::Hang(receiver));
    let call = post(PATH, "alice", r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#);
    let client = Client::send(world.address, &call).await;
    world.sidecar.reached(1).await;
    world.ending.begun.cancel();
    world.ending.over.cancel();
    let answer = client.read_all().await;
    assert_eq!(
        (answer.status, &answer.error_of(&1.into())["data"]["reason"]),
        (502, &"OutcomeUnknown".into())
    );
    soon("the sidecar sees its request end", held.closed()).await;
    world.baseline().await;
}
