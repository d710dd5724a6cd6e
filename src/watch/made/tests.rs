use super::*;
use crate::fixture::{server, store_of};
use crate::memory_api::MemoryApi;
use berth_plan::time::Moment;
use futures::{FutureExt, stream};
use serde_json::json;
use std::time::Duration;
use watcher::Event;

const NOW: Moment = Moment(1_800_000_000_000);

type Meta = PartialObjectMeta<Secret>;

fn named(namespace: &str, name: &str) -> Key {
    Key { namespace: namespace.into(), name: name.into() }
}

/// Key of the certificate of a server of the stage.
fn certificate(namespace: &str, server: &str) -> Key {
    named(namespace, &name::certificate(server, "server"))
}

fn object(key: &Key, version: &str) -> Meta {
    let metadata = json!({"namespace": key.namespace, "name": key.name, "resourceVersion": version});
    serde_json::from_value(json!({"metadata": metadata})).unwrap()
}

struct Stage {
    good: FoundGood,
    looks: Trigger<McpServer>,
    ca: Ca,
    servers: Store<McpServer>,
}

impl Stage {
    /// Servers `a` and `b` of one namespace, and another `a` elsewhere; the certificates of all are good in version 1, and so
    /// are the operator's own.
    async fn new() -> Self {
        let mut elsewhere = server("a", &json!({}));
        elsewhere.metadata.namespace = Some("elsewhere".into());
        let servers = store_of(vec![server("a", &json!({})), server("b", &json!({})), elsewhere]);
        let ca = Ca::open(MemoryApi::default().client(), "berth", NOW).await.unwrap();
        let stage = Self { good: ca.good().clone(), looks: Trigger::default(), ca, servers };
        for key in stage.all() {
            stage.good.begin(key).keep(Some("1".into()), NOW);
        }
        stage
    }

    fn all(&self) -> Vec<Key> {
        let of_servers = [("demo", "a"), ("demo", "b"), ("elsewhere", "a")];
        let of_servers = of_servers.map(|(namespace, server)| certificate(namespace, server));
        of_servers.into_iter().chain(self.ca.own_secrets()).collect()
    }

    /// What is asked to be looked at after those events: servers, and `ca`.
    async fn after(&self, events: Vec<watcher::Result<Event<Meta>>>) -> Vec<String> {
        let made = Made {
            good: self.good.clone(),
            name: name::certificate,
            servers: self.servers.clone(),
            looks: self.looks.clone(),
            ca: Some(self.ca.clone()),
        };
        let name = follow("watch", made, stream::iter(events), CancellationToken::new()).await;
        assert_eq!(name, "watch");
        let mut looks = Box::pin(self.looks.stream());
        let mut asked: Vec<String> = std::iter::from_fn(|| looks.next().now_or_never().flatten())
            .map(|server| format!("{}/{}", server.namespace.unwrap_or_default(), server.name))
            .collect();
        asked.extend(self.ca.asked().now_or_never().map(|()| "ca".to_owned()));
        asked.sort();
        asked
    }

    /// A whole list of all objects in version 1, but for what `change` says of one.
    fn list(&self, of: &Key, change: Option<&str>) -> Vec<watcher::Result<Event<Meta>>> {
        let listed = self.all().into_iter().filter_map(|key| {
            let version = if key == *of { change? } else { "1" };
            Some(Event::InitApply(object(&key, version)))
        });
        std::iter::once(Event::Init).chain(listed).chain([Event::InitDone]).map(Ok).collect()
    }
}

#[tokio::test]
async fn what_others_change_or_delete_is_looked_at_by_who_keeps_it() {
    let stage = Stage::new().await;
    let [own_ca, gateway] = stage.ca.own_secrets();
    for (key, asked) in [
        (certificate("demo", "a"), "demo/a"),
        (certificate("elsewhere", "a"), "elsewhere/a"),
        (own_ca, "ca"),
        (gateway, "ca"),
    ] {
        assert!(stage.after(vec![Ok(Event::Apply(object(&key, "1")))]).await.is_empty(), "as it was found");
        assert!(stage.good.trusts(&key, NOW));
        for event in [Event::Apply(object(&key, "2")), Event::Delete(object(&key, "3"))] {
            stage.good.begin(key.clone()).keep(Some("1".into()), NOW);
            assert_eq!(stage.after(vec![Ok(event)]).await, [asked]);
            assert!(!stage.good.trusts(&key, NOW));
        }
    }
    // What belongs to nobody is of no concern: a server that is gone, a Secret of that name in another namespace.
    for key in [certificate("demo", "gone"), named("demo", "berth-ca")] {
        assert!(stage.after(vec![Ok(Event::Delete(object(&key, "1")))]).await.is_empty());
    }
}

#[tokio::test]
async fn a_watch_that_begins_anew_finds_what_it_missed() {
    let stage = Stage::new().await;
    let [own_ca, gateway] = stage.ca.own_secrets();
    let nothing = named("demo", "nothing");
    assert!(stage.after(stage.list(&nothing, None)).await.is_empty(), "all is as it was found");
    for (key, asked) in [(certificate("demo", "b"), "demo/b"), (own_ca, "ca"), (gateway, "ca")] {
        for change in [None, Some("2")] {
            stage.good.begin(key.clone()).keep(Some("1".into()), NOW);
            assert_eq!(stage.after(stage.list(&key, change)).await, [asked], "{change:?}");
            assert!(!stage.good.trusts(&key, NOW));
        }
        stage.good.begin(key).keep(Some("1".into()), NOW);
    }
    // A list that broke off says nothing of what it did not come to.
    let key = certificate("demo", "a");
    let broken = vec![
        Ok(Event::Init),
        Ok(Event::InitApply(object(&key, "1"))),
        Err(watcher::Error::NoResourceVersion),
    ];
    let events = broken.into_iter().chain(stage.list(&key, None)).collect();
    assert_eq!(stage.after(events).await, ["demo/a"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_it_is_cancelled() {
    let stage = Stage::new().await;
    let cancel = CancellationToken::new();
    let made = Made {
        good: stage.good.clone(),
        name: name::certificate,
        servers: stage.servers.clone(),
        looks: stage.looks.clone(),
        ca: None,
    };
    let followed = tokio::spawn(follow::<Secret>("watch", made, stream::pending(), cancel.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!followed.is_finished());
    cancel.cancel();
    assert_eq!(followed.await.unwrap(), "watch");
}
