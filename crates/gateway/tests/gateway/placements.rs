//! What the leading operator says of places, and what becomes of it when it falls silent.

use crate::client::{Client, post};
use crate::leader::LeaderStand;
use crate::sidecar::{Script, Sidecar};
use crate::world::{PATH, SERVER_UID, World, settings, soon};
use berth_gateway::Settings;
use berth_gateway::index::Index;
use berth_gateway::leader::stream::Placements;
use berth_gateway::metrics::Metrics;
use berth_net::client::PeerClient;
use berth_wire::PlacementLine;
use http::StatusCode;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const UID: &str = "session-uid";
const WAITING: &str = "berth_gateway_placement_waiting";
const UP: &str = "berth_gateway_placements_stream";
const RECONNECTS: &str = "berth_gateway_placements_reconnects_total";

async fn led() -> (World, LeaderStand) {
    let world = World::new().await;
    let leader = LeaderStand::start(world.ca.operator()).await;
    world.leader.set(Some(leader.address));
    (world, leader)
}

/// Another pod, at 127.0.0.2.
async fn second_pod(world: &World) -> Sidecar {
    Sidecar::start(world.pod_address("127.0.0.2"), world.ca.sidecar(SERVER_UID)).await
}

#[tokio::test]
async fn a_waiting_call_goes_on_when_the_leader_says_where_before_any_status_does() {
    let (world, leader) = led().await;
    let told = leader.stream().await;
    assert_eq!(world.metric(UP), Some(0.0), "not everything was told");
    told.say(PlacementLine::Synced);
    world.metric_reaches(UP, 1.0).await;
    world.apply(&json!({}), &json!({}));
    let client = Client::send(world.address, &post(PATH, "alice", "{}")).await;
    world.metric_reaches(WAITING, 1.0).await;
    told.place(UID, Some(world.sidecar.address.ip()));
    assert_eq!(client.read_all().await.status, 200);
    assert_eq!((world.metric(UP), world.metric(RECONNECTS)), (Some(1.0), Some(0.0)));
    world.baseline().await;
}

#[tokio::test]
async fn a_place_that_comes_before_its_session_is_used_once_that_is_seen() {
    let bounds = Settings { settle: Duration::from_secs(30), ..settings() };
    let world = World::with(bounds).await;
    let leader = LeaderStand::start(world.ca.operator()).await;
    world.leader.set(Some(leader.address));
    let told = leader.stream().await;
    told.place(UID, Some(world.sidecar.address.ip()));
    told.say(PlacementLine::Synced);
    world.metric_reaches(UP, 1.0).await;
    let client = Client::send(world.address, &post(PATH, "alice", "{}")).await;
    world.metric_reaches(WAITING, 1.0).await;
    world.apply(&json!({}), &json!({}));
    assert_eq!(client.read_all().await.status, 200);
}

#[tokio::test]
async fn places_are_asked_for_once_every_session_is_known() {
    let (world, leader) = led().await;
    let unsynced = Arc::new(Index::default());
    let client = PeerClient::new(world.ca.gateway());
    let placements = Placements { client, index: unsynced.clone(), metrics: Metrics::default() };
    let (followed, cancel) = (world.leader.clone(), CancellationToken::new());
    let following = tokio::spawn({
        let cancel = cancel.clone();
        async move { placements.follow(&followed, cancel).await }
    });
    // It has had the time that the world's own one needed.
    let _of_world = leader.stream().await;
    assert_eq!(leader.asked(), 1);
    unsynced.end_list();
    let told = leader.stream().await;
    cancel.cancel();
    told.left().await;
    soon("it ends", following).await.unwrap();
}

#[tokio::test]
async fn the_status_counts_again_when_the_stream_ends_until_there_is_another() {
    let (world, leader) = led().await;
    let (first, second) = (world.sidecar.clone(), second_pod(&world).await);
    world.place();
    for round in 1..=2 {
        let told = leader.stream().await;
        told.place(UID, Some(second.address.ip()));
        told.say(PlacementLine::Synced);
        world.metric_reaches(UP, 1.0).await;
        assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 200);
        assert_eq!((first.count(), second.count()), (round - 1, round), "the leader counts");
        drop(told);
        world.metric_reaches(UP, 0.0).await;
        // Whatever comes of the next attempt says nothing before the test does.
        assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 200);
        assert_eq!((first.count(), second.count()), (round, round), "the status counts");
    }
    leader.stream().await;
    assert!(world.metric(RECONNECTS) >= Some(2.0));
}

#[tokio::test]
async fn another_leader_is_followed_at_once_and_what_the_one_before_said_is_forgotten() {
    let (world, old) = led().await;
    let (new, second) = (LeaderStand::start(world.ca.operator()).await, second_pod(&world).await);
    world.place();
    let told_by_old = old.stream().await;
    told_by_old.place(UID, Some(second.address.ip()));
    told_by_old.say(PlacementLine::Synced);
    world.metric_reaches(UP, 1.0).await;

    world.leader.set(Some(new.address));
    told_by_old.left().await;
    let told_by_new = new.stream().await;
    told_by_new.say(PlacementLine::Synced);
    world.metric_reaches(UP, 1.0).await;
    assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 200);
    assert_eq!((world.sidecar.count(), second.count()), (1, 0));

    world.leader.set(None);
    told_by_new.left().await;
    world.metric_reaches(UP, 0.0).await;
    assert_eq!((old.asked(), new.asked()), (1, 1), "nobody leads, so nobody is asked");
    assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 200);
}

#[tokio::test]
async fn a_leader_that_refuses_is_asked_again_and_calls_go_by_status_meanwhile() {
    let world = World::new().await;
    let leader = LeaderStand::start(world.ca.operator()).await;
    leader.refuse(2);
    world.place();
    world.leader.set(Some(leader.address));
    world.metric_comes_to(RECONNECTS, 1.0).await;
    assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 200);
    let told = leader.stream().await;
    assert_eq!((leader.asked(), world.metric(RECONNECTS)), (3, Some(2.0)));
    told.say(PlacementLine::Synced);
    world.metric_reaches(UP, 1.0).await;
}

#[tokio::test]
async fn who_does_not_show_the_operators_certificate_is_not_listened_to() {
    let world = World::new().await;
    let other = LeaderStand::start(world.ca.sidecar(SERVER_UID)).await;
    world.leader.set(Some(other.address));
    world.metric_comes_to(RECONNECTS, 2.0).await;
    assert_eq!((other.asked(), world.metric(UP)), (0, Some(0.0)));
}

#[tokio::test]
async fn the_leader_does_not_bring_back_a_session_whose_deletion_has_begun() {
    let (world, leader) = led().await;
    let unknown = world.call(&post("/demo/none/github/mcp", "alice", "{}")).await;
    let told = leader.stream().await;
    told.place(UID, Some(world.sidecar.address.ip()));
    told.say(PlacementLine::Synced);
    world.metric_reaches(UP, 1.0).await;
    world.apply(&json!({}), &json!({}));
    assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 200);
    world.delete();
    told.place(UID, Some(world.sidecar.address.ip()));
    assert_eq!(world.call(&post(PATH, "alice", "{}")).await, unknown);
}

#[tokio::test]
async fn the_leader_is_asked_once_for_a_session_that_its_sidecar_does_not_hold_and_not_waited_for() {
    let (world, leader) = led().await;
    let moved = second_pod(&world).await;
    let told = leader.stream().await;
    world.place();
    let calls: Vec<_> = {
        let mut calls = Vec::new();
        for _ in 0..3 {
            world.sidecar.script(Script::Status(StatusCode::MISDIRECTED_REQUEST));
            calls.push(Client::send(world.address, &post(PATH, "alice", "{}")).await);
        }
        calls
    };
    world.sidecar.reached(3).await;
    assert_eq!(leader.woken(1).await, [UID]);
    // No wake is answered yet.
    told.place(UID, Some(moved.address.ip()));
    for call in calls {
        assert_eq!(call.read_all().await.status, 200);
    }
    assert_eq!(moved.count(), 3);
    assert_eq!(leader.woken(1).await, [UID], "the three calls asked as one");

    leader.answer_wakes(100);
    world.baseline().await;
}

#[tokio::test]
async fn a_call_that_is_refused_twice_asks_once() {
    let world = World::with(Settings { retry_pause: Duration::from_millis(50), ..settings() }).await;
    let leader = LeaderStand::start(world.ca.operator()).await;
    leader.answer_wakes(100);
    world.leader.set(Some(leader.address));
    world.place();
    for _ in 0..2 {
        world.sidecar.script(Script::Status(StatusCode::MISDIRECTED_REQUEST));
    }
    assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 200);
    assert_eq!(world.sidecar.count(), 3);
    assert_eq!(leader.woken(1).await, [UID]);
}
