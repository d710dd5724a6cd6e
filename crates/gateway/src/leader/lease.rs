//! Watches the Lease by which operators elect the one that leads: its annotation says where that one is.

use super::Leader;
use berth_api::label::{LEADER_ADDRESS, LEADER_LEASE};
use berth_cluster::Pauses;
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, ResourceExt};
use std::net::SocketAddr;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// First and longest pause between attempts to watch.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Keeps `leader` until cancelled. While the watch is broken the last known address stays; a Lease that is gone, or names no
/// address, has none.
pub async fn follow(client: Client, namespace: &str, leader: &Leader, cancel: CancellationToken) {
    let leases = Api::<PartialObjectMeta<Lease>>::namespaced(client, namespace);
    let pauses = Pauses::new(PAUSES.0, PAUSES.1);
    let mut states = std::pin::pin!(watch_object(leases, LEADER_LEASE).backoff(pauses));
    let mut broken = false;
    loop {
        let state = tokio::select! {
            () = cancel.cancelled() => return,
            state = states.next() => state,
        };
        match state {
            Some(Ok(lease)) => {
                broken = false;
                take(leader, lease.as_ref());
            }
            // Said once, since without the right to watch it this never ends.
            Some(Err(error)) if !std::mem::replace(&mut broken, true) => {
                tracing::warn!(%error, "cannot watch the operator's Lease; places come from status meanwhile");
            }
            Some(Err(error)) => tracing::debug!(%error, "cannot watch the operator's Lease"),
            None => return tracing::error!("the watch of the operator's Lease has ended"),
        }
    }
}

fn take(leader: &Leader, lease: Option<&PartialObjectMeta<Lease>>) {
    let text = lease.and_then(|lease| lease.annotations().get(LEADER_ADDRESS));
    let address = text.and_then(|text| text.parse::<SocketAddr>().ok());
    if let (Some(text), None) = (text, address) {
        tracing::warn!(text, "the operator's Lease names no usable address");
    }
    if address != leader.address() {
        tracing::info!(?address, "the leading operator is there");
    }
    leader.set(address);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lease(annotations: &serde_json::Value) -> PartialObjectMeta<Lease> {
        let metadata = json!({"name": LEADER_LEASE, "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"renewTime": "not read"}})).unwrap()
    }

    #[test]
    fn the_annotation_says_where_the_leader_is_and_everything_else_is_nowhere() {
        let leader = Leader::default();
        let mut changes = leader.follow();
        for address in ["10.0.0.7:8443", "[fd00::7]:8443"] {
            let at = Some(address.parse().unwrap());
            take(&leader, Some(&lease(&json!({LEADER_ADDRESS: address}))));
            assert_eq!(leader.address(), at);
            assert!(changes.has_changed().unwrap());
            changes.mark_unchanged();
            take(&leader, Some(&lease(&json!({LEADER_ADDRESS: address, "other": "changed"}))));
            assert!(!changes.has_changed().unwrap(), "a renewal is no change");
        }
        for lease in [None, Some(lease(&json!({}))), Some(lease(&json!({LEADER_ADDRESS: "operator:8443"})))] {
            leader.set(Some("10.0.0.7:8443".parse().unwrap()));
            take(&leader, lease.as_ref());
            assert_eq!(leader.address(), None, "{lease:?}");
        }
    }
}
