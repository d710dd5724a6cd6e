//! Notifications of every kind.

use serde_json::{Value, json};

use crate::client::{Server, call};

async fn notify(server: &Server, body: Value) -> Value {
    server.ask("POST", "/notify", &[], &body.to_string()).await.json()
}

#[tokio::test]
async fn lists_change_on_the_call_and_on_the_stream() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let mut listening = server.stream(&session, None).await;
    for kind in ["tools", "prompts", "resources"] {
        let method = format!("notifications/{kind}/list_changed");
        let mut calling =
            server.stream(&session, Some(&call(1, "notify", json!({"kind": kind, "count": 2})))).await;
        for _ in 0..2 {
            assert_eq!(calling.next().await.unwrap(), json!({"jsonrpc": "2.0", "method": method}));
        }
        assert_eq!(calling.next().await.unwrap()["result"]["structuredContent"]["sent"], 2);
        let mut calling =
            server.stream(&session, Some(&call(1, "notify", json!({"kind": kind, "via": "stream"})))).await;
        assert_eq!(listening.next().await.unwrap()["method"], method.as_str());
        assert_eq!(calling.next().await.unwrap()["result"]["structuredContent"]["sent"], 1);
        assert_eq!(notify(&server, json!({"kind": kind, "session": session})).await, json!({"sent": 1}));
        assert_eq!(listening.next().await.unwrap()["method"], method.as_str());
    }
}

#[tokio::test]
async fn a_storm_comes_whole() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let mut listening = server.stream(&session, None).await;
    let reading = async {
        for _ in 0..3000 {
            listening.next().await.unwrap();
        }
    };
    let (sent, ()) = tokio::join!(notify(&server, json!({"kind": "tools", "count": 3000})), reading);
    assert_eq!(sent, json!({"sent": 3000}));
}

#[tokio::test]
async fn updates_come_to_who_subscribed() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let mut listening = server.stream(&session, None).await;
    let updated = json!({"kind": "updated"});
    assert_eq!(notify(&server, updated.clone()).await, json!({"sent": 0}));
    let request = |method: &str| json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"uri": "probe://about"}});
    server.post(&session, &request("resources/subscribe")).await;
    assert_eq!(notify(&server, updated.clone()).await, json!({"sent": 1}));
    let event = listening.next().await.unwrap();
    assert_eq!(
        (&event["method"], &event["params"]["uri"]),
        (&json!("notifications/resources/updated"), &json!("probe://about"))
    );
    server.post(&session, &request("resources/unsubscribe")).await;
    assert_eq!(notify(&server, updated).await, json!({"sent": 0}));
    assert_eq!(notify(&server, json!({"kind": "updated", "force": true})).await, json!({"sent": 1}));
    let totals = server.books().await["totals"].clone();
    assert_eq!((&totals["resourcesSubscribe"], &totals["resourcesUnsubscribe"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn messages_are_logged_by_level() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let mut listening = server.stream(&session, None).await;
    let levels = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
    let level = |level: &str| json!({"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": {"level": level}});
    assert_eq!(server.post(&session, &level("loud")).await.json()["error"]["code"], -32602);
    for (least, name) in levels.iter().enumerate() {
        assert_eq!(server.post(&session, &level(name)).await.json()["result"], json!({}));
        for (at, level) in levels.iter().enumerate() {
            let sent = notify(&server, json!({"kind": "log", "level": level, "text": "t"})).await;
            assert_eq!(sent, json!({"sent": u64::from(at >= least)}), "{level} at {name}");
            if at >= least {
                let event = listening.next().await.unwrap();
                let expected = json!({"level": level, "logger": "probe", "data": {"text": "t", "number": 1}});
                assert_eq!(
                    (&event["method"], &event["params"]),
                    (&json!("notifications/message"), &expected)
                );
            }
        }
    }
}

#[tokio::test]
async fn two_thousand_steps_come_in_order_and_the_books_have_the_token() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let mut stream = server.stream(&session, Some(&call(9, "progress", json!({"steps": 2000})))).await;
    for step in 1..=2000 {
        assert_eq!(stream.next().await.unwrap()["params"]["progress"], step);
    }
    assert!(stream.next().await.unwrap().get("result").is_some());
    let entry = server.books().await["journal"][2].clone();
    assert_eq!((&entry["jsonrpcId"], &entry["progressToken"]), (&json!(9), &json!("t9")));
}
