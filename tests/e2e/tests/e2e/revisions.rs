//! Revisions of the protocol: what client and upstream agree on is theirs.

use berth_e2e::{Probe, gateway_url, in_namespace, initialize, mcp_server, post, session, tool_call};
use futures::future::join_all;
use http::StatusCode;
use serde_json::json;

/// What README.md says.
const CLAIMED: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

#[tokio::test]
async fn each_revision_that_is_claimed_reaches_the_upstream_and_comes_back() {
    in_namespace("revisions", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        join_all(CLAIMED.map(|revision| session(&namespace, revision, "alice", &["probe"]))).await;
        let bearer = format!("Bearer {}", namespace.token("alice").await);
        for (number, revision) in CLAIMED.into_iter().enumerate() {
            let url = format!("{}/{}/{revision}/probe/mcp", gateway_url(), namespace.name);
            let mut hello = initialize(&json!({}));
            hello["params"]["protocolVersion"] = json!(revision);
            let answer = post(&url, &[("authorization", &bearer)], &hello).await;
            let result = &answer.answer_to(&json!(0))["result"];
            assert_eq!(result["protocolVersion"], revision, "{answer:?}");
            let client = answer.headers["mcp-session-id"].to_str().unwrap();
            let mut headers = vec![("authorization", bearer.as_str()), ("mcp-session-id", client)];
            // The header came with 2025-06-18.
            if revision >= "2025-06-18" {
                headers.push(("mcp-protocol-version", revision));
            }
            let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
            assert_eq!(post(&url, &headers, &initialized).await.status, StatusCode::ACCEPTED);
            let call = tool_call(&json!(1), "echo", json!({"message": revision}));
            let answer = post(&url, &headers, &call).await.answer_to(&json!(1));
            assert_eq!(answer["result"]["content"][0]["text"], revision, "{answer}");

            let upstream = &probe.books().await.sessions()[number];
            assert_eq!(upstream["requestedProtocolVersion"], revision, "{upstream}");
            assert_eq!(upstream["protocolVersion"], revision, "{upstream}");
            assert_eq!(upstream["lastHeaders"]["mcp-protocol-version"], revision, "{upstream}");
            assert_eq!(upstream["calls"]["echo"], 1, "{upstream}");
        }
        assert_eq!(probe.books().await.sessions().len(), CLAIMED.len());
    })
    .await;
}
