//! Subscriptions outlive the upstream session that they were made in: an upstream that began anew knows of none, and no client
//! would ask for what it believes to have.

use super::call::notify;
use crate::session::Session;
use crate::upstream::Connection;
use berth_mcp::method;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Makes the subscriptions of all clients again on `connection`, each once, until the session's end begins. One that the upstream
/// refuses now is not told to its client, which learns from the mark on its next result that the upstream began anew.
pub(super) async fn resubscribe(session: Arc<Session>, connection: Arc<Connection>) {
    tokio::select! {
        () = subscribe_all(&session, &connection) => {}
        () = session.fenced().cancelled() => {}
    }
}

async fn subscribe_all(session: &Arc<Session>, connection: &Arc<Connection>) {
    let wanted: BTreeSet<Box<str>> =
        session.scopes().iter().flat_map(|scope| scope.subscriptions()).collect();
    for uri in wanted {
        // Its client may have taken it back meanwhile.
        if !session.scopes().iter().any(|scope| scope.is_subscribed(&uri)) {
            continue;
        }
        let id = session.fresh_upstream_id();
        let message =
            json!({"jsonrpc": "2.0", "id": id, "method": method::SUBSCRIBE, "params": {"uri": uri}});
        let message = message.to_string();
        let Some(_going) = session.outgoing(message.len()).await else {
            session.shared.metrics.outgoing_dropped.inc();
            continue;
        };
        notify(session.clone(), connection.clone(), message).await;
    }
}
