//! Nothing connects before the first call, and a burst of first calls connects once.

use berth_e2e::{McpClient, Probe, in_namespace, mcp_server, session};
use futures::future::join_all;
use serde_json::json;

#[tokio::test]
async fn twenty_ready_sessions_connect_nothing_until_a_call_and_then_once() {
    in_namespace("lazy", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let names: Vec<String> = (0..20).map(|n| format!("s{n}")).collect();
        join_all(names.iter().map(|name| session(&namespace, name, "alice", &["probe"]))).await;

        let books = probe.books().await;
        assert_eq!((books.connections(), books.total("initialize")), (0, 0), "{books:?}");

        let token = namespace.token("alice").await;
        let mut first = McpClient::new(&namespace.name, "s0", "probe", &token);
        first.initialize().await;
        assert_eq!(first.call("echo", json!({"message": "hello"})).await, "hello");
        let books = probe.books().await;
        assert_eq!((books.sessions().len(), books.total("initialize")), (1, 1), "{books:?}");

        let calls = (0..20).map(|n| {
            let mut client = McpClient::new(&namespace.name, "s1", "probe", &token);
            async move {
                client.initialize().await;
                client.call("echo", json!({"message": format!("call {n}")})).await
            }
        });
        let answers = join_all(calls).await;
        assert_eq!(answers, (0..20).map(|n| format!("call {n}")).collect::<Vec<_>>());
        let books = probe.books().await;
        assert_eq!(
            (books.sessions().len(), books.total("initialize")),
            (2, 2),
            "one more for twenty first calls: {books:?}"
        );
    })
    .await;
}
