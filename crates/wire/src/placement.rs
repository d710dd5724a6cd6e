//! What the leading operator tells gateways: the stream `GET /v1/placements?watch=true`.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// One line of the stream: first every placement, then `Synced`, then changes as they happen. A gateway forgets all of it when
/// the stream ends: the status of the sessions is the public record, and this only comes earlier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum PlacementLine {
    /// A session is placed as this says now; replaces what was known of it.
    Session(SessionPlacements),
    /// Every placement has been sent.
    Synced,
    /// Nothing happened lately, the stream is alive. Sent at least every ten seconds.
    Alive,
}

/// Every slot that a sidecar has confirmed for one session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionPlacements {
    /// UID of the `AgentSession`.
    pub uid: String,
    /// Namespace of the `AgentSession`.
    pub namespace: String,
    /// Name of the `AgentSession`.
    pub name: String,
    /// Its slots; none once they are given back.
    pub servers: Vec<ServerPlacement>,
}

/// One slot of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerPlacement {
    /// Name of the `McpServer`, as in `spec.servers`.
    pub server: String,
    /// UID of the `McpServer`: the name in the pod's certificate.
    pub server_uid: String,
    /// UID of the pod.
    pub pod_uid: String,
    /// Address of the pod.
    pub address: IpAddr,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back() {
        let placements = SessionPlacements {
            uid: "u".into(),
            namespace: "demo".into(),
            name: "first".into(),
            servers: vec![ServerPlacement {
                server: "everything".into(),
                server_uid: "s".into(),
                pod_uid: "p".into(),
                address: "10.1.2.3".parse().unwrap(),
            }],
        };
        for line in [PlacementLine::Session(placements), PlacementLine::Synced, PlacementLine::Alive] {
            let text = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<PlacementLine>(&text).unwrap(), line, "{text}");
        }
    }
}
