//! Reads the ConfigMap or Secret with the authorities that a server trusts.
//!
//! Secrets are watched. ConfigMaps are not, since most of a cluster's are none of Berth's business: one that is named is read at
//! each look at its server, which comes once a minute at least; sessions go by what was read last.

use crate::context::Context;
use crate::controller::server::dereference::{Error, Found, named_secret};
use crate::found_good::Key;
use berth_api::{AgentSession, CaKind, McpServer};
use berth_plan::server::authorities::{CaState, ca_ref};
use berth_plan::time::Moment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a ConfigMap is read.
pub const LOOK: Duration = Duration::from_mins(1);
/// One that nobody has read for so long is named by no server any more.
const FORGET: Duration = Duration::from_mins(10);

/// What was found of the object that a server names.
pub enum FoundCa {
    /// None is named, or there is none.
    Missing,
    /// A Secret.
    Secret(Found),
    /// A ConfigMap.
    ConfigMap(Arc<ConfigMap>),
}

impl FoundCa {
    /// The same for `validate`.
    pub fn state(&self) -> CaState<'_> {
        match self {
            Self::Missing => CaState::Missing,
            Self::Secret(found) => CaState::Secret(found.state()),
            Self::ConfigMap(map) => CaState::ConfigMap(map),
        }
    }
}

/// The ConfigMaps as they were read last.
#[derive(Default)]
pub struct ConfigMaps(Mutex<HashMap<Key, Read>>);

struct Read {
    at: Moment,
    found: Option<Arc<ConfigMap>>,
}

/// How old a ConfigMap may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// It is read now.
    New,
    /// Not older than [`LOOK`].
    Recent,
}

/// Whether `server` has to be looked at again for what no event tells.
pub fn is_to_be_looked_at(server: &McpServer) -> bool {
    ca_ref(server).is_some_and(|named| named.kind == CaKind::ConfigMap)
}

/// The object that `server` names.
pub async fn find(server: &McpServer, age: Age, ctx: &Context) -> Result<FoundCa, Error> {
    let Some(named) = ca_ref(server) else { return Ok(FoundCa::Missing) };
    let namespace = server.namespace().unwrap_or_default();
    match named.kind {
        CaKind::Secret => named_secret(&namespace, &named.name, ctx).await.map(FoundCa::Secret),
        CaKind::ConfigMap => {
            let found = config_map(Key { namespace, name: named.name.clone() }, age, ctx).await?;
            Ok(found.map_or(FoundCa::Missing, FoundCa::ConfigMap))
        }
    }
}

async fn config_map(key: Key, age: Age, ctx: &Context) -> Result<Option<Arc<ConfigMap>>, Error> {
    let now = ctx.clock.now();
    let held = ctx.config_maps.book().get(&key).map(|read| (read.at, read.found.clone()));
    if let Some((at, found)) = &held
        && age == Age::Recent
        && at.plus(LOOK) > now
    {
        return Ok(found.clone());
    }
    let found = match ctx.api::<ConfigMap>(&key.namespace).get_opt(&key.name).await {
        Ok(found) => found.map(Arc::new),
        Err(source) => {
            let error = Error::ReadConfigMap { config_map: key.name, source: Box::new(source) };
            let Some((_, found)) = held else { return Err(error) };
            // What was good a while ago is not taken away since the API server has a bad moment.
            tracing::warn!(namespace = key.namespace, %error, "going on with the certificates that were read before");
            return Ok(found);
        }
    };
    let changed = held.is_some_and(|(_, before)| data(before.as_deref()) != data(found.as_deref()));
    let mut book = ctx.config_maps.book();
    book.retain(|_, read| read.at.plus(FORGET) > now);
    book.insert(key.clone(), Read { at: now, found: found.clone() });
    drop(book);
    if changed {
        wake(&key, ctx);
    }
    Ok(found)
}

/// Asks for a look at everybody whom a ConfigMap concerns.
fn wake(key: &Key, ctx: &Context) {
    let names = |server: &McpServer| {
        let named = ca_ref(server).filter(|named| named.kind == CaKind::ConfigMap);
        server.namespace().as_ref() == Some(&key.namespace)
            && named.is_some_and(|named| named.name == key.name)
    };
    let servers = ctx.stores.servers.state_filter(names);
    let concerned: HashSet<String> = servers.iter().map(|server| server.name_any()).collect();
    for server in &servers {
        ctx.triggers.servers.fire(ObjectRef::from_obj(&**server));
    }
    let uses = |session: &AgentSession| {
        session.namespace().as_ref() == Some(&key.namespace)
            && session.spec.servers.iter().any(|binding| concerned.contains(&binding.name))
    };
    for session in ctx.stores.sessions.state_filter(uses) {
        ctx.triggers.sessions.fire(ObjectRef::from_obj(&*session));
    }
}

type Data<'a> = (
    Option<&'a std::collections::BTreeMap<String, String>>,
    Option<&'a std::collections::BTreeMap<String, k8s_openapi::ByteString>>,
);

fn data(map: Option<&ConfigMap>) -> Option<Data<'_>> {
    map.map(|map| (map.data.as_ref(), map.binary_data.as_ref()))
}

impl ConfigMaps {
    fn book(&self) -> MutexGuard<'_, HashMap<Key, Read>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{context, deleted_session, failure, server, store_of};
    use futures::{FutureExt, StreamExt};
    use serde_json::{Value, json};
    use std::sync::atomic::{AtomicU16, Ordering};

    fn trusting(kind: &str) -> McpServer {
        let tls = json!({"caRef": {"kind": kind, "name": "corp", "key": "ca.crt"}});
        let http = json!({"url": "https://a.test/mcp", "tls": tls});
        server("everything", &json!({"transport": {"type": "Http", "http": http}}))
    }

    fn map(value: &str) -> Value {
        json!({"metadata": {"name": "corp", "namespace": "demo"}, "data": {"ca.crt": value}})
    }

    fn text(found: &FoundCa) -> String {
        match found {
            FoundCa::Missing => "missing".to_owned(),
            FoundCa::Secret(_) => "secret".to_owned(),
            FoundCa::ConfigMap(map) => map.data.as_ref().unwrap()["ca.crt"].clone(),
        }
    }

    #[tokio::test]
    async fn sessions_go_by_what_was_read_last_and_all_are_woken_when_it_changes() {
        let turn = Arc::new(AtomicU16::new(0));
        let at = turn.clone();
        let (mut ctx, log) = context(move |_| match at.load(Ordering::Relaxed) {
            0 => (200, map("first")),
            1 => (200, map("second")),
            2 => failure(500, "InternalError", "etcd is away"),
            _ => failure(404, "NotFound", "gone"),
        })
        .await;
        ctx.stores.servers = store_of(vec![trusting("ConfigMap")]);
        ctx.stores.sessions = store_of(vec![deleted_session(&json!({}))]);
        let server = trusting("ConfigMap");
        let find = async |age| text(&find(&server, age, &ctx).await.unwrap());
        let woken = || {
            let mut looks = Box::pin(ctx.triggers.sessions.stream());
            looks.next().now_or_never().flatten().is_some()
        };
        assert_eq!((find(Age::Recent).await, find(Age::Recent).await), ("first".into(), "first".into()));
        assert_eq!(log.lines(), ["GET /api/v1/namespaces/demo/configmaps/corp"]);
        assert!(!woken(), "nobody went by anything else");
        turn.store(1, Ordering::Relaxed);
        assert_eq!(find(Age::Recent).await, "first");
        assert_eq!((find(Age::New).await, woken()), ("second".into(), true));
        assert_eq!((find(Age::New).await, woken()), ("second".into(), false));
        turn.store(2, Ordering::Relaxed);
        assert_eq!((find(Age::New).await, woken()), ("second".into(), false), "a bad moment changes nothing");
        turn.store(3, Ordering::Relaxed);
        assert_eq!((find(Age::New).await, woken()), ("missing".into(), true));
    }

    #[tokio::test]
    async fn a_config_map_that_cannot_be_read_is_no_missing_one() {
        let (ctx, _) = context(|_| failure(403, "Forbidden", "no")).await;
        let error = find(&trusting("ConfigMap"), Age::New, &ctx).await.err().unwrap();
        assert!(error.to_string().starts_with("failed to read configmap \"corp\""), "{error}");
        assert!(is_to_be_looked_at(&trusting("ConfigMap")) && !is_to_be_looked_at(&trusting("Secret")));
        assert_eq!(text(&find(&trusting("Secret"), Age::New, &ctx).await.unwrap()), "secret");
        let none = server("everything", &json!({}));
        assert_eq!(text(&find(&none, Age::New, &ctx).await.unwrap()), "missing");
    }
}
