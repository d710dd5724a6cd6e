//! Watches every `AgentSession` and keeps the index as the API server tells it.

use crate::entry::Entry;
use crate::index::Index;
use berth_api::AgentSession;
use berth_cluster::Pauses;
use futures::StreamExt;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Objects a page of a list: bounds what is held unpruned at once.
const PAGE: u32 = 100;
/// First and longest pause between attempts to watch. The longest bounds how late sessions come that were made right after
/// the API server was away.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// An object as it arrives. One that cannot be read must not stop the list of all others.
type Received = DeserializeGuard<AgentSession>;

/// Keeps `index` until cancelled. Broken watches are resumed with a backoff; the index stays as it was meanwhile.
pub async fn follow(client: Client, index: Arc<Index>, cancel: CancellationToken) {
    let api = Api::<Received>::all(client);
    let pauses = Pauses::new(PAUSES.0, PAUSES.1);
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default().page_size(PAGE)).backoff(pauses));
    loop {
        let event = tokio::select! {
            () = cancel.cancelled() => return,
            event = events.next() => event,
        };
        match event {
            Some(Ok(event)) => take(&index, event),
            Some(Err(error)) => {
                tracing::warn!(%error, "cannot watch agentsessions; the index stays as it is");
            }
            None => return tracing::error!("the watch of agentsessions has ended"),
        }
    }
}

/// Takes one event into the index.
fn take(index: &Index, event: Event<Received>) {
    match event {
        Event::Init => index.begin_list(),
        Event::InitApply(session) => {
            index.listed(&key(&session));
            apply(index, session);
        }
        Event::Apply(session) => apply(index, session),
        Event::Delete(session) => index.remove(&key(&session)),
        Event::InitDone => {
            index.end_list();
            tracing::info!(sessions = index.len(), "index of sessions is complete");
        }
    }
}

fn apply(index: &Index, session: Received) {
    let key = key(&session);
    match session.0.map(|session| Entry::of(&session)) {
        Ok(Some(entry)) => index.apply(&key, entry),
        Ok(None) => tracing::warn!(session = key, "session without a UID ignored"),
        Err(error) => {
            tracing::warn!(session = key, %error, "session cannot be read; what was known of it stays");
        }
    }
}

fn key(session: &Received) -> String {
    format!("{}/{}", session.namespace().unwrap_or_default(), session.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn received(name: &str, servers: &serde_json::Value) -> Received {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "AgentSession",
            "metadata": {"name": name, "namespace": "demo", "uid": format!("uid-{name}")},
            "spec": {"subject": {"name": "alice"}, "servers": servers},
        }))
        .unwrap()
    }

    #[test]
    fn events_of_a_watch_make_the_index() {
        let index = Index::default();
        let (a, b) = (received("a", &json!([])), received("b", &json!([])));
        for event in [Event::Init, Event::InitApply(a.clone()), Event::InitDone, Event::Apply(b.clone())] {
            take(&index, event);
        }
        assert!(index.is_synced() && index.get("demo/a").is_some() && index.get("demo/b").is_some());
        take(&index, Event::Delete(a));
        assert!(index.get("demo/a").is_none());
    }

    #[test]
    fn a_session_that_cannot_be_read_keeps_what_was_known_and_stops_nobody_else() {
        let index = Index::default();
        take(&index, Event::Apply(received("a", &json!([{"name": "s"}]))));
        let broken = received("a", &json!("not a list"));
        assert!(broken.0.is_err());
        for event in [
            Event::Init,
            Event::InitApply(broken),
            Event::InitApply(received("b", &json!([]))),
            Event::InitDone,
        ] {
            take(&index, event);
        }
        assert_eq!(index.get("demo/a").unwrap().servers.len(), 1);
        assert!(index.get("demo/b").is_some());
    }
}
