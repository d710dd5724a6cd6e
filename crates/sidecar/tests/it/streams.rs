//! What the server says outside of calls: GET streams on both sides.

use crate::support::client::{initialize, tool_call, tool_call_with_progress};
use crate::support::eventually;
use crate::support::harness::{EndBounds, Harness, read, spec};
use crate::support::upstream::{Act, Books, Upstream};
use berth_sidecar::upstream::Dialer;
use berth_wire::Outcome;
use http::StatusCode;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn notification(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": format!("notifications/{method}"), "params": params})
}

#[tokio::test]
async fn one_stream_of_the_upstream_serves_all_clients_that_listen() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let (one, two) = (harness.initialized("s").await, harness.initialized("s").await);
    let _silent = harness.initialized("s").await;
    let (mut first, mut second) = tokio::join!(one.listen(), two.listen());
    assert_eq!(upstream.books().gets, [("upstream-1".to_owned(), None)]);
    for news in [
        notification("tools/list_changed", json!({})),
        notification("message", json!({"level": "info", "data": {"x": 1.5}})),
        notification("vendor/unknown", json!({"x": "y"})),
    ] {
        upstream.say(&news);
        assert_eq!((first.next().await, second.next().await), (Some(news.clone()), Some(news)));
    }
    // Another GET of the same client: each message goes to one of its streams.
    let mut newest = one.listen().await;
    let news = notification("prompts/list_changed", json!({}));
    upstream.say(&news);
    assert_eq!((newest.next().await, second.next().await), (Some(news.clone()), Some(news)));
    drop(newest);
    assert_eq!(harness.metrics.upstream_streams.get(), 1);
    assert_eq!(harness.list().await[0].activity.requests, 3, "listening is no activity");
    harness.end_now("s").await;
    assert_eq!((first.next().await, second.next().await), (None, None), "the end ends the streams");
    harness.assert_baseline().await;
    eventually("the upstream sees its stream end", || upstream.listeners() == 0).await;
}

/// CASES.md 24.
#[tokio::test]
async fn of_a_storm_of_news_of_a_list_a_client_hears_few_and_the_last() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let mut stream = client.listen().await;
    let news = |number: u64| notification("tools/list_changed", json!({"_meta": {"number": number}}));
    let begun = Instant::now();
    for number in 1..=1_000 {
        upstream.say(&news(number));
    }
    let mut heard = vec![stream.next().await.unwrap()];
    assert_eq!(heard[0], news(1), "the first at once");
    while heard.last() != Some(&news(1_000)) {
        heard.push(stream.next().await.unwrap());
    }
    // One at once, and one for each second that it took them to come.
    let most = 3 + usize::try_from(begun.elapsed().as_secs()).unwrap();
    assert!(heard.len() <= most, "{} of 1,000, where {most} may be", heard.len());
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn news_on_the_answer_of_a_call_reach_its_client_once_on_the_call_or_else_on_its_stream() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let mut stream = client.listen().await;
    let news = |list: &str| notification(&format!("{list}/list_changed"), json!({}));
    let call = |list: &str| tool_call(json!(1), "news", &json!({"news": news(list)}));
    let messages = client.begin(&call("tools")).await.messages().await;
    assert_eq!(messages.first(), Some(&news("tools")), "the call brings it");
    let (status, answer) = client.json_only(&call("prompts")).await;
    assert_eq!((status, answer.get("result")), (StatusCode::OK, Some(&Value::Null)));
    assert_eq!(
        stream.next().await,
        Some(news("prompts")),
        "the call could not, and the other was not repeated"
    );
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_upstream_without_a_stream_is_asked_once() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    upstream.books().on_get = Some(405);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    for _ in 0..5 {
        let response = client.get().await;
        assert_eq!(
            (response.status(), &response.headers()["allow"]),
            (StatusCode::METHOD_NOT_ALLOWED, &"POST, DELETE".parse().unwrap())
        );
    }
    assert_eq!(upstream.books().gets.len(), 1);
    let stranger = harness.client("s");
    assert_eq!(stranger.get().await.status(), StatusCode::BAD_REQUEST);
    let (status, _) = read(harness.client("unknown").get().await).await;
    assert_eq!(status, StatusCode::MISDIRECTED_REQUEST);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_stream_that_ends_is_taken_up_where_it_was() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let mut stream = client.listen().await;
    let news = notification("tools/list_changed", json!({}));
    upstream.say_raw(&format!("id: event-9\ndata: {news}\n\n"));
    assert_eq!(stream.next().await, Some(news.clone()));
    upstream.hang_up();
    upstream.until("the next GET", |books| books.gets.len() == 2).await;
    assert_eq!(upstream.books().gets[1], ("upstream-1".to_owned(), Some("event-9".to_owned())));
    eventually("the stream is open", || upstream.listeners() == 1).await;
    upstream.say(&news);
    assert_eq!(stream.next().await, Some(news), "the client's stream stayed open");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_large_event_needs_no_more_memory_than_a_large_answer() {
    let upstream = Upstream::start().await;
    // A quarter of what a pod has, and of the largest limit that there may be.
    let harness = Harness::start_with(1, Dialer::system().unwrap(), 72 / 4).await;
    let mut session = spec("s", &upstream);
    session.limits.response_bytes = 32 * 1024 * 1024 / 4;
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    let mut stream = client.listen().await;
    for mebibytes in [5, 7] {
        let large = notification("message", json!({"data": "x".repeat(mebibytes * 1024 * 1024)}));
        upstream.say(&large);
        assert!(stream.next().await == Some(large), "{mebibytes} MiB");
    }
    assert_eq!(upstream.books().gets.len(), 1);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_event_that_never_fits_is_skipped_and_not_asked_for_again() {
    let upstream = Upstream::start().await;
    let harness = Harness::start_with(1, Dialer::system().unwrap(), 4).await;
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let mut stream = client.listen().await;
    let large = notification("message", json!({"data": "x".repeat(3 * 1024 * 1024)}));
    upstream.say_raw(&format!("id: large\ndata: {large}\n\n"));
    let news = notification("tools/list_changed", json!({}));
    upstream.say(&news);
    assert_eq!(stream.next().await, Some(news));
    upstream.hang_up();
    upstream.until("the next GET", |books| books.gets.len() == 2).await;
    assert_eq!(upstream.books().gets[1], ("upstream-1".to_owned(), Some("large".to_owned())));
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_event_without_room_is_asked_for_again_later() {
    let upstream = Upstream::start().await;
    let harness = Harness::start_with(1, Dialer::system().unwrap(), 24).await;
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let mut stream = client.listen().await;
    let news = notification("tools/list_changed", json!({}));
    upstream.say_raw(&format!("id: first\ndata: {news}\n\n"));
    assert_eq!(stream.next().await, Some(news));
    let unread = client.begin(&tool_call(json!(1), "large", &json!({"bytes": 10 * 1024 * 1024}))).await;
    let large = notification("message", json!({"data": "x".repeat(10 * 1024 * 1024)}));
    upstream.say_raw(&format!("id: second\ndata: {large}\n\n"));
    upstream.until("the next GET", |books| books.gets.len() == 2).await;
    assert_eq!(upstream.books().gets[1], ("upstream-1".to_owned(), Some("first".to_owned())));
    assert!(unread.messages().await.pop().unwrap()["result"].is_object());
    eventually("the memory is free again, and the stream open", || {
        harness.budget.left() == harness.budget.whole() && upstream.listeners() == 1
    })
    .await;
    upstream.say_raw(&format!("id: second\ndata: {large}\n\n"));
    assert!(stream.next().await == Some(large), "the client's stream stayed open");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_client_listens_on_over_a_connection_that_is_replaced() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let mut stream = client.listen().await;
    upstream.forget_sessions();
    client.call("echo", json!({})).await;
    upstream
        .until("the next GET", |books| books.gets.iter().any(|(session, _)| session == "upstream-2"))
        .await;
    let news = notification("tools/list_changed", json!({}));
    eventually("one stream is open", || upstream.listeners() == 1).await;
    upstream.say(&news);
    assert_eq!(stream.next().await, Some(news));
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn news_of_a_resource_reach_those_who_subscribed() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let (one, two) = (harness.initialized("s").await, harness.initialized("s").await);
    let (mut first, mut second) = (one.listen().await, two.listen().await);
    let ask = |verb: &str, uri: &str| json!({"jsonrpc": "2.0", "id": 1, "method": format!("resources/{verb}"), "params": {"uri": uri}});
    let updated = |uri: &str| notification("resources/updated", json!({"uri": uri}));
    for (client, uri) in [(&one, "a://1"), (&one, "a://both"), (&two, "a://both")] {
        assert_eq!(client.json(&ask("subscribe", uri)).await.1["result"], json!({}));
    }
    // One that the upstream refuses is none.
    assert!(two.json(&ask("subscribe", "refused://1")).await.1["error"].is_object());
    for uri in ["a://1", "a://both", "refused://1", "a://2"] {
        upstream.say(&updated(uri));
    }
    upstream.say(&notification("message", json!({})));
    for expected in [updated("a://1"), updated("a://both"), notification("message", json!({}))] {
        assert_eq!(first.next().await, Some(expected));
    }
    for expected in [updated("a://both"), notification("message", json!({}))] {
        assert_eq!(second.next().await, Some(expected));
    }
    // The upstream knows one subscription for both.
    assert_eq!(one.json(&ask("unsubscribe", "a://both")).await.1["result"], json!({}));
    assert!(upstream.books().of_method("resources/unsubscribe").is_empty());
    upstream.say(&updated("a://both"));
    assert_eq!(second.next().await, Some(updated("a://both")));
    two.json(&ask("unsubscribe", "a://both")).await;
    assert_eq!(upstream.books().of_method("resources/unsubscribe").len(), 1);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn subscriptions_are_made_again_where_the_upstream_forgot_them() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let (one, two) = (harness.initialized("s").await, harness.initialized("s").await);
    let mut stream = one.listen().await;
    let ask = |verb: &str, uri: &str| json!({"jsonrpc": "2.0", "id": 1, "method": format!("resources/{verb}"), "params": {"uri": uri}});
    for (client, uri) in [(&one, "a://1"), (&one, "a://both"), (&two, "a://both"), (&one, "a://left")] {
        assert_eq!(client.json(&ask("subscribe", uri)).await.1["result"], json!({}));
    }
    one.json(&ask("unsubscribe", "a://left")).await;
    upstream.forget_sessions();
    one.call("echo", json!({})).await;
    let of_the_new = |books: &Books| -> Vec<String> {
        let subscribes = books.messages.iter().filter(|(session, _, message)| {
            session == "upstream-2" && message["method"] == "resources/subscribe"
        });
        subscribes.map(|(_, _, message)| message["params"]["uri"].as_str().unwrap().to_owned()).collect()
    };
    upstream.until("each is made again", |books| of_the_new(books) == ["a://1", "a://both"]).await;
    eventually("one stream is open", || upstream.listeners() == 1).await;
    let updated = notification("resources/updated", json!({"uri": "a://both"}));
    upstream.say(&updated);
    assert_eq!(stream.next().await, Some(updated));
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_end_does_not_wait_for_subscriptions_that_hang() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let _stream = client.listen().await;
    let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": {"uri": "a://1"}});
    assert_eq!(client.json(&ask).await.1["result"], json!({}));
    upstream.forget_sessions();
    upstream.books().on_resource = Act::Hold;
    client.call("echo", json!({})).await;
    upstream.until("it is made again", |books| books.of_method("resources/subscribe").len() == 2).await;
    let begun = Instant::now();
    let report = harness.end("s", EndBounds { drain: 60_000, close: 5_000, wait: 60_000 }).await.1;
    assert_eq!((report.drain, report.close), (Outcome::NotNeeded, Outcome::Confirmed));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}, of a drain of a minute", begun.elapsed());
    upstream.release();
    harness.assert_baseline().await;
}

#[tokio::test]
async fn progress_on_the_upstreams_stream_reaches_its_call_before_the_result() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let (client, other) = (harness.initialized("s").await, harness.initialized("s").await);
    let _listening = other.listen().await;
    let call = tool_call_with_progress(json!("c"), json!("token"), "wait", &json!({}));
    let (mut answer, id) = tokio::join!(client.begin(&call), async {
        upstream.until("the call", |books| books.of_method("tools/call").len() == 1).await;
        let id = upstream.books().of_method("tools/call")[0]["id"].clone();
        for progress in 0..500 {
            upstream.say(&notification("progress", json!({"progressToken": id, "progress": progress})));
        }
        id
    });
    for progress in 0..500 {
        let expected = notification("progress", json!({"progressToken": "token", "progress": progress}));
        assert_eq!(answer.next().await, Some(expected));
    }
    upstream.release();
    assert_eq!(answer.next().await.unwrap()["result"], json!({"waited": true}));
    assert_eq!(answer.next().await, None);
    upstream.say(&notification("progress", json!({"progressToken": id, "progress": 501})));
    assert_eq!(client.call("echo", json!({"x": 1})).await["result"], json!({"x": 1}));
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_request_outside_of_calls_goes_to_the_latest_client_that_can_take_it() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let old = harness.initialized("s").await;
    let mut bare = harness.client("s");
    let mut message = initialize("init");
    message["params"]["capabilities"] = json!({});
    bare.initialize_as(&message).await.unwrap();
    let new = harness.initialized("s").await;
    let mut bare_stream = bare.listen().await;
    let ask = |id: u32, method: &str| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {}});
    upstream.say(&ask(1, "elicitation/create"));
    upstream.until("a refusal", |books| books.responses_to(&json!(1)).len() == 1).await;
    assert_eq!(upstream.books().responses_to(&json!(1))[0]["error"]["code"], -32600, "nobody is there");
    upstream.say(&ask(2, "roots/list"));
    upstream.until("a refusal", |books| books.responses_to(&json!(2)).len() == 1).await;
    assert_eq!(upstream.books().responses_to(&json!(2))[0]["error"]["code"], -32601, "nobody can");
    let (mut old_stream, mut new_stream) = (old.listen().await, new.listen().await);
    upstream.say(&ask(3, "elicitation/create"));
    assert_eq!(new_stream.next().await.unwrap()["id"], 3);
    old.tell(&json!({"jsonrpc": "2.0", "id": 3, "result": {"by": "old"}})).await;
    new.tell(&json!({"jsonrpc": "2.0", "id": 3, "result": {"by": "new"}})).await;
    upstream.until("the answer", |books| books.responses_to(&json!(3)).len() == 1).await;
    assert_eq!(upstream.books().responses_to(&json!(3))[0]["result"]["by"], "new");
    // A ping is answered here, and one that is withdrawn is withdrawn from the client.
    old.call("echo", json!({})).await;
    upstream.say(&ask(4, "elicitation/create"));
    assert_eq!(old_stream.next().await.unwrap()["id"], 4);
    let withdrawn = notification("cancelled", json!({"requestId": 4}));
    upstream.say(&withdrawn);
    assert_eq!(old_stream.next().await, Some(withdrawn));
    upstream.say(&ask(5, "ping"));
    upstream.until("the pong", |books| books.responses_to(&json!(5)).len() == 1).await;
    let news = notification("message", json!({}));
    upstream.say(&news);
    assert_eq!(bare_stream.next().await, Some(news), "and saw nothing else");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_client_that_ends_its_scope_while_asked_is_answered_for() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let mut stream = client.listen().await;
    upstream.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {}}));
    assert_eq!(stream.next().await.unwrap()["id"], 1);
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    assert_eq!(stream.next().await, None);
    upstream.until("the refusal", |books| books.responses_to(&json!(1)).len() == 1).await;
    assert_eq!(client.get().await.status(), StatusCode::NOT_FOUND);
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_loses_its_stream_and_nobody_else_anything() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let (slow, quick) = (harness.initialized("s").await, harness.initialized("s").await);
    let (slow_stream, mut quick_stream) = (slow.listen().await, quick.listen().await);
    let text = "x".repeat(256 * 1024);
    for number in 0..100 {
        let news = notification("message", json!({"n": number, "data": text}));
        upstream.say(&news);
        assert_eq!(quick_stream.next().await, Some(news));
        assert!(harness.budget.left() > 88 * 1024 * 1024, "what waits for the slow one is bounded");
    }
    assert_eq!(quick.call("echo", json!({"x": 1})).await["result"], json!({"x": 1}));
    let read = slow_stream.messages().await.len();
    assert!(read < 100, "the slow one's stream ended after {read}");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

#[tokio::test]
async fn an_answer_whose_stream_is_ended_on_purpose_is_taken_up_again() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    harness.put(&spec("s", &upstream)).await;
    let client = harness.initialized("s").await;
    let call = tool_call_with_progress(json!("c"), json!("t"), "polled", &json!({}));
    let mut answer = client.begin(&call).await;
    assert_eq!(answer.next().await.unwrap()["params"], json!({"progressToken": "t", "progress": 0}));
    eventually("the rest is asked for", || upstream.listeners() == 1).await;
    assert_eq!(upstream.books().gets, [("upstream-1".to_owned(), Some("7".to_owned()))]);
    let id = upstream.books().of_method("tools/call")[0]["id"].clone();
    upstream.say(&json!({"jsonrpc": "2.0", "id": id, "result": {"polled": true}}));
    assert_eq!(answer.messages().await.pop().unwrap()["result"], json!({"polled": true}));
    assert_eq!(upstream.books().of_method("tools/call").len(), 1, "the request was not sent again");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}

/// The one test that waits for the interval itself; that it repeats is shown on a clock of the test's own.
#[tokio::test]
async fn silent_answers_and_streams_get_comments() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let mut session = spec("s", &upstream);
    (session.timeouts.request_millis, session.timeouts.request_max_millis) = (60_000, 60_000);
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    let (mut listening, mut silent) =
        (client.listen().await, client.begin(&tool_call(json!(1), "silent", &json!({}))).await);
    let late = tool_call(json!(2), "wait", &json!({}));
    let (comment, other, mut late) = tokio::join!(listening.bytes(), silent.bytes(), client.begin(&late));
    assert_eq!((&*comment, &*other, &*late.bytes().await), (":\n\n", ":\n\n", ":\n\n"));
    upstream.release();
    assert_eq!(late.messages().await.pop().unwrap()["result"], json!({"waited": true}));
    harness.end_now("s").await;
    harness.assert_baseline().await;
}
