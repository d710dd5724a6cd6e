//! The end of an operator whose own namespace is being deleted.
//!
//! Kubernetes deletes the pods of such a namespace first, and sessions in it after that: nobody would be left to drop their
//! finalizer, and the namespace would stay for ever. So an operator that is asked to end looks whether that is why, and ends
//! the sessions of that namespace before it goes, for at most 50 seconds. Sessions of other namespaces are not touched: their
//! finalizer stays until an operator runs again.

use crate::namespace::is_terminating;
use crate::uninstall::POLL;
use berth_api::AgentSession;
use kube::api::{DeleteParams, ListParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How long the operator stays for its sessions: the default bound of an end, and less than the pod's grace period.
const STAY: Duration = Duration::from_secs(50);
/// How long one question may take.
const CALL: Duration = Duration::from_secs(3);

/// A token that is cancelled when the process may end: at once when it is `asked` to, but after the sessions of `namespace`
/// when that is being deleted.
pub fn may_end(asked: CancellationToken, client: Client, namespace: String) -> CancellationToken {
    let token = CancellationToken::new();
    let ended = token.clone().drop_guard();
    tokio::spawn(async move {
        asked.cancelled().await;
        if timeout(CALL, is_terminating(&namespace, &client)).await == Ok(true) {
            tracing::info!(
                namespace,
                "the operator's own namespace is being deleted: sessions in it end first"
            );
            let left = end_sessions(&client, &namespace).await;
            tracing::info!(namespace, left, "going");
        }
        drop(ended);
    });
    token
}

/// Deletes the sessions of a namespace, which the leading operator then ends, and waits for it. Says how many are left.
async fn end_sessions(client: &Client, namespace: &str) -> usize {
    let api: Api<PartialObjectMeta<AgentSession>> = Api::namespaced(client.clone(), namespace);
    let deadline = Instant::now() + STAY;
    let mut left = 0;
    loop {
        if let Ok(Ok(listed)) = timeout(CALL, api.list_metadata(&ListParams::default())).await {
            left = listed.items.len();
            if left == 0 {
                return 0;
            }
            for session in listed.iter().filter(|session| session.metadata.deletion_timestamp.is_none()) {
                let _ = timeout(CALL, api.delete(&session.name_any(), &DeleteParams::default())).await;
            }
        }
        if Instant::now() + POLL > deadline {
            return left;
        }
        sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_api::MemoryApi;
    use futures::FutureExt;
    use serde_json::json;

    const SESSION: &str = "/apis/berth.dev/v1alpha1/namespaces/berth/agentsessions/chat";

    fn stage(terminating: bool) -> (MemoryApi, CancellationToken, CancellationToken) {
        let api = MemoryApi::default();
        let mut metadata = json!({"name": "berth", "finalizers": ["kubernetes"]});
        if terminating {
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        api.put("/api/v1/namespaces/berth", json!({"metadata": metadata}));
        let metadata =
            json!({"name": "chat", "namespace": "berth", "finalizers": ["berth.dev/session-cleanup"]});
        api.put(SESSION, json!({"metadata": metadata}));
        let asked = CancellationToken::new();
        let may_end = may_end(asked.clone(), api.client(), "berth".into());
        (api, asked, may_end)
    }

    #[tokio::test(start_paused = true)]
    async fn an_operator_whose_namespace_stays_ends_when_it_is_asked() {
        let (api, asked, may_end) = stage(false);
        sleep(POLL).await;
        assert!(!may_end.is_cancelled());
        asked.cancel();
        may_end.cancelled().await;
        assert!(api.writes().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_operator_whose_namespace_goes_stays_for_its_sessions() {
        let (api, asked, may_end) = stage(true);
        asked.cancel();
        sleep(POLL * 3).await;
        assert_eq!(api.writes(), [format!("DELETE {SESSION}")]);
        assert!(may_end.cancelled().now_or_never().is_none());
        // The operator has ended it.
        api.remove(SESSION);
        sleep(POLL).await;
        assert!(may_end.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn an_operator_goes_in_the_end_whatever_is_left() {
        let (_, asked, may_end) = stage(true);
        let begun = Instant::now();
        asked.cancel();
        may_end.cancelled().await;
        assert!(begun.elapsed() <= STAY);
    }
}
