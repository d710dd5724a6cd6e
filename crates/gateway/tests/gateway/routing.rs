//! Where calls go while places come, change and go.

use crate::client::{Client, get, post};
use crate::sidecar::{Script, Sidecar, start_losing};
use crate::world::{PATH, SERVER_UID, World, settings, soon};
use berth_gateway::Settings;
use http::StatusCode;
use serde_json::json;
use std::time::Duration;

const WAITING: &str = "berth_gateway_placement_waiting";

#[tokio::test]
async fn a_call_waits_for_its_place_and_is_woken_by_the_watch() {
    let world = World::new().await;
    world.apply(&json!({}), &json!({}));
    let client = Client::send(world.address, &post(PATH, "alice", "{}")).await;
    world.metric_reaches(WAITING, 1.0).await;
    world.place();
    assert_eq!(client.read_all().await.status, 200);
    assert_eq!(world.sidecar.count(), 1);
    assert_eq!(world.metric("berth_gateway_placement_wait_seconds_count"), Some(1.0));
    world.baseline().await;
}

#[tokio::test]
async fn a_session_made_just_now_is_found_when_the_watch_tells_of_it() {
    let world = World::with(Settings { settle: Duration::from_secs(30), ..settings() }).await;
    let client = Client::send(world.address, &post(PATH, "alice", "{}")).await;
    world.metric_reaches(WAITING, 1.0).await;
    world.place();
    assert_eq!(client.read_all().await.status, 200);
}

#[tokio::test]
async fn a_call_that_is_not_placed_in_time_gets_503_with_the_reason() {
    let world = World::with(Settings { placement_wait: Duration::from_millis(50), ..settings() }).await;
    world.apply(
        &json!({"servers": [{"name": "github", "state": "Pending", "reason": "LimitReached"}]}),
        &json!({}),
    );
    let answer = world.call(&post(PATH, "alice", "{}")).await;
    assert_eq!(answer.status, 503);
    assert!(answer.head.contains("\nretry-after: 1"), "{}", answer.head);
    assert_eq!(answer.error()["data"]["reason"], "LimitReached");
    world.baseline().await;
}

#[tokio::test]
async fn what_somebody_must_repair_is_told_at_once_and_a_repair_meanwhile_is_taken_up() {
    let pending =
        |reason: &str| json!({"servers": [{"name": "github", "state": "Pending", "reason": reason}]});
    let call = post(PATH, "alice", r#"{"jsonrpc":"2.0","id":"c1","method":"ping"}"#);
    // The bounds are those of World::new: who waited for a place would wait longer than this test does.
    let world = World::new().await;
    for reason in ["RefNotFound", "RefNotPermitted", "InvalidCredential", "InvalidSpec"] {
        world.apply(&pending(reason), &json!({}));
        let answer = world.call(&call).await;
        assert_eq!(answer.status, 503);
        assert!(answer.head.contains("\nretry-after: 5"), "{}", answer.head);
        let error = answer.error_of(&"c1".into());
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(reason) && message.contains("describe agentsession "), "{error}");
        assert_eq!((&error["data"]["reason"], &error["data"]["server"]), (&reason.into(), &"github".into()));
    }
    world.baseline().await;

    let world = World::with(Settings { settle: Duration::from_secs(30), ..settings() }).await;
    world.apply(&pending("RefNotFound"), &json!({}));
    let client = Client::send(world.address, &call).await;
    world.metric_reaches(WAITING, 1.0).await;
    world.place();
    assert_eq!(client.read_all().await.status, 200);
}

#[tokio::test]
async fn a_session_deleted_while_a_call_waits_is_not_found() {
    let world = World::new().await;
    let unknown = world.call(&post("/demo/none/github/mcp", "alice", "{}")).await;
    world.apply(&json!({}), &json!({}));
    let client = Client::send(world.address, &post(PATH, "alice", "{}")).await;
    world.metric_reaches(WAITING, 1.0).await;
    world.delete();
    assert_eq!(client.read_all().await, unknown);
    world.baseline().await;
}

#[tokio::test]
async fn a_call_that_the_pod_does_not_know_is_sent_once_more_to_the_new_place() {
    let world = World::new().await;
    let moved = Sidecar::start(world.pod_address("127.0.0.2"), world.ca.sidecar(SERVER_UID)).await;
    world.place();
    world.sidecar.script(Script::Status(StatusCode::MISDIRECTED_REQUEST));
    let client = Client::send(world.address, &post(PATH, "alice", r#"{"id":7}"#)).await;
    world.sidecar.reached(1).await;
    world.place_at(moved.address.ip());
    assert_eq!(client.read_all().await.status, 200);
    assert_eq!((world.sidecar.count(), moved.count()), (1, 1));
    assert_eq!(moved.take_seen()[0].body, r#"{"id":7}"#);
    world.baseline().await;
}

#[tokio::test]
async fn a_pod_that_gets_the_session_back_is_tried_again_after_a_pause() {
    let world = World::with(Settings { retry_pause: Duration::from_millis(20), ..settings() }).await;
    world.place();
    world.sidecar.script(Script::Status(StatusCode::MISDIRECTED_REQUEST));
    assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 200);
    assert_eq!(world.sidecar.count(), 2);
}

#[tokio::test]
async fn a_call_for_which_a_sidecar_had_no_connection_is_sent_again() {
    let world = World::with(Settings { retry_pause: Duration::from_millis(20), ..settings() }).await;
    world.place();
    let full = http::Response::builder().status(503).header(berth_wire::NOT_ACCEPTED_HEADER, "true");
    world.sidecar.script(Script::Reply(full.body(axum::body::Body::from("full\n")).unwrap()));
    assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 200);
    assert_eq!(world.sidecar.count(), 2);
}

#[tokio::test]
async fn a_pod_that_never_accepts_is_given_up_with_503() {
    let bounds = Settings { placement_wait: Duration::from_millis(100), ..settings() };
    let world = World::with(Settings { retry_pause: Duration::from_millis(30), ..bounds }).await;
    world.place();
    for _ in 0..50 {
        world.sidecar.script(Script::Status(StatusCode::MISDIRECTED_REQUEST));
    }
    let answer = world.call(&post(PATH, "alice", "{}")).await;
    assert_eq!((answer.status, &answer.error()["data"]["reason"]), (503, &"SidecarUnavailable".into()));
    assert!(world.sidecar.count() <= 5, "{} attempts in 100 ms", world.sidecar.count());
    world.baseline().await;
}

#[tokio::test]
async fn a_pod_that_cannot_be_reached_is_waited_for_and_then_503() {
    let world = World::with(Settings { placement_wait: Duration::from_millis(100), ..settings() }).await;
    world.place_at("127.0.0.9".parse().unwrap());
    let answer = world.call(&post(PATH, "alice", "{}")).await;
    assert_eq!(answer.status, 503);
    assert!(answer.head.contains("\nretry-after: "), "{}", answer.head);
    assert_eq!(world.sidecar.count(), 0);
    world.baseline().await;
}

#[tokio::test]
async fn a_call_moves_from_a_pod_that_cannot_be_reached_to_the_new_place() {
    let world = World::new().await;
    world.place_at("127.0.0.9".parse().unwrap());
    let client = Client::send(world.address, &post(PATH, "alice", "{}")).await;
    // The first attempt fails at once.
    world.metric_reaches(WAITING, 1.0).await;
    world.place();
    assert_eq!(client.read_all().await.status, 200);
    assert_eq!(world.sidecar.count(), 1);
}

#[tokio::test]
async fn nothing_is_sent_to_a_pod_that_shows_another_servers_certificate() {
    let world = World::with(Settings { placement_wait: Duration::from_millis(100), ..settings() }).await;
    let other = Sidecar::start(world.pod_address("127.0.0.3"), world.ca.sidecar("another-server")).await;
    world.place_at(other.address.ip());
    assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 503);
    assert_eq!(other.count(), 0);
}

#[tokio::test]
async fn a_call_that_was_lost_after_it_was_sent_is_502_and_never_sent_again() {
    let world = World::new().await;
    let (losing, mut lost) = start_losing(world.pod_address("127.0.0.4"), world.ca.sidecar(SERVER_UID)).await;
    world.place_at(losing.ip());
    let call = post(PATH, "alice", r#"{"jsonrpc":"2.0","id":7,"method":"tools/call"}"#);
    let client = Client::send(world.address, &call).await;
    soon("the call is taken", lost.wait_for(|count| *count == 1)).await.unwrap();
    world.place();
    let answer = client.read_all().await;
    let error = answer.error_of(&7.into());
    assert_eq!((answer.status, &error["data"]["reason"]), (502, &"OutcomeUnknown".into()));
    assert_eq!((*lost.borrow(), world.sidecar.count()), (1, 0));
    world.baseline().await;
}

/// The `McpServer` is deleted under a live session: its status names no pod any more and says why.
#[tokio::test]
async fn a_session_whose_server_is_deleted_says_so_at_once_to_callers_new_and_waiting() {
    // The bounds are those of World::new: who waited for a place, or for the same pod again, would wait longer than this test.
    let world = World::new().await;
    let lost = json!({"servers": [{"name": "github", "state": "Pending", "reason": "RefNotFound"}]});
    world.place();
    assert_eq!(world.call(&post(PATH, "alice", "{}")).await.status, 200);
    // Its pod is on the way out, and takes no more calls.
    world.sidecar.script(Script::Status(StatusCode::MISDIRECTED_REQUEST));
    let waiting = Client::send(world.address, &post(PATH, "alice", "{}")).await;
    world.sidecar.reached(2).await;
    world.metric_reaches(WAITING, 1.0).await;
    world.apply(&lost, &json!({}));
    for answer in [waiting.read_all().await, world.call(&post(PATH, "alice", "{}")).await] {
        assert_eq!(answer.status, 503);
        assert_eq!(answer.error()["data"]["reason"], "RefNotFound");
    }
    assert_eq!(world.sidecar.count(), 2);
    world.baseline().await;
}

/// A sidecar that is frozen while its kernel acknowledges what comes.
#[tokio::test]
async fn a_sidecar_that_begins_no_answer_in_time_is_given_up_where_the_client_takes_a_stream() {
    let world = World::with(Settings { head_wait: Duration::from_secs(1), ..settings() }).await;
    world.place();
    let held = || {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        world.sidecar.script(Script::Hang(receiver));
        sender
    };
    let patient = held();
    let plain = post(PATH, "alice", "{}").replace(", text/event-stream", "");
    let _plain = Client::send(world.address, &plain).await;
    world.sidecar.reached(1).await;
    for call in [post(PATH, "alice", r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#), get(PATH, "alice")] {
        let given_up = held();
        let answer = world.call(&call).await;
        let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((answer.status, &body["error"]["data"]["reason"]), (502, &"OutcomeUnknown".into()));
        soon("the sidecar's side of the call is over", given_up.closed()).await;
    }
    // Its client has nothing to see before the whole answer, and was asked before the others.
    assert!(!patient.is_closed());
    assert_eq!(world.sidecar.count(), 3);
}

#[tokio::test]
async fn the_wait_for_a_place_begins_when_the_body_has_come() {
    let wait = Duration::from_millis(200);
    let world = World::with(Settings { placement_wait: wait, ..settings() }).await;
    world.apply(&json!({}), &json!({}));
    let call = post(PATH, "alice", "{}");
    let (head, body) = call.split_at(call.len() - 1);
    let mut client = Client::send(world.address, head).await;
    world.metric_reaches("berth_gateway_requests_in_flight", 1.0).await;
    // The upload takes longer than a place is waited for.
    tokio::time::sleep(2 * wait).await;
    let whole = std::time::Instant::now();
    client.write(body.as_bytes()).await;
    assert_eq!(client.read_all().await.status, 503);
    assert!(whole.elapsed() >= wait, "{:?}", whole.elapsed());
}
