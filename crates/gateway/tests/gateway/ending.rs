//! The end of the gateway as its clients see it.

use crate::client::{Client, get, post};
use crate::world::{PATH, World, soon};

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
