//! A stand-in for the API server, and a context that talks to it, for tests of effects.

use crate::ca::Ca;
use crate::context::{Clock, Context, Settings, Triggers};
use crate::controller::retry::Failures;
use crate::controller::{ConfigMaps, Policies};
use crate::fleet::Fleet;
use crate::lead::Lead;
use crate::metrics::Metrics;
use crate::slots::Slots;
use crate::watch::Stores;
use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use berth_api::{AgentSession, McpServer};
use berth_net::client::PeerClient;
use berth_plan::server::build::{Proxy, Sidecar};
use berth_plan::time::Moment;
use http::{Method, StatusCode, header};
use http_body_util::BodyExt;
use kube::runtime::reflector::{Lookup, Store};
use kube::runtime::{reflector, watcher};
use kube::{Client, Resource};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

/// A request that reached the stand-in.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its method.
    pub method: Method,
    /// Its path, without the query.
    pub path: String,
    /// Its body; null without one.
    pub body: Value,
}

/// The requests that reached the stand-in, those for Secrets left out.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<Seen>>>);

impl Log {
    /// The requests so far, taken out.
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// Method and path of the requests so far, taken out.
    pub fn lines(&self) -> Vec<String> {
        self.take().iter().map(|seen| format!("{} {}", seen.method, seen.path)).collect()
    }
}

/// A context whose API server answers as `answer` says: an HTTP status and a body. Secrets do not exist and may be
/// created; `unreadable` cannot be read, and `unlabelled` and `labelled` are there, for those who ask for their metadata.
pub async fn context(
    answer: impl Fn(&Seen) -> (u16, Value) + Clone + Send + Sync + 'static,
) -> (Context, Log) {
    let log = Log::default();
    let seen_by = log.clone();
    let router = Router::new().fallback(move |request: Request| {
        let (answer, log) = (answer.clone(), seen_by.clone());
        async move { reply(request, &answer, &log).await }
    });
    let client = Client::new(router, "default");
    let clock = Clock::SYSTEM;
    let ca = Ca::open(client.clone(), "berth", clock.now()).await.unwrap();
    let (identity, _) = ca.own_identity(clock.now()).unwrap();
    let (triggers, slots) = (Triggers::default(), Arc::new(Slots::default()));
    let metrics = Metrics::new(&mut Registry::default());
    let lead = Lead::for_test(1);
    let fleet = Fleet::new(
        PeerClient::new(identity),
        lead.clone(),
        triggers.clone(),
        slots.clone(),
        metrics.clone(),
        CancellationToken::new(),
    );
    let stores = Stores {
        servers: reflector::store().0,
        sessions: reflector::store().0,
        pods: reflector::store().0,
        secrets: reflector::store().0,
    };
    let sidecar = Sidecar { image: "berth:1".into(), proxy: Proxy::default() };
    let settings = Settings { sidecar, gateway_url: "http://gateway.test".into() };
    let failures = Failures::default();
    // It has run for long: nothing waits for what a start brings.
    let started = Moment(0);
    (
        Context {
            client,
            lead,
            stores,
            fleet,
            slots,
            ca,
            policies: Policies::new(None),
            config_maps: ConfigMaps::default(),
            triggers,
            failures,
            metrics,
            clock,
            started,
            settings,
        },
        log,
    )
}

async fn reply(request: Request, answer: &(impl Fn(&Seen) -> (u16, Value) + Sync), log: &Log) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let bytes = request.into_body().collect().await.unwrap().to_bytes();
    let seen = Seen { method, path, body: serde_json::from_slice(&bytes).unwrap_or_default() };
    let (code, body) = if seen.path.contains("/secrets") {
        if seen.path.ends_with("/unreadable") {
            failure(500, "InternalError", "etcd is away")
        } else if seen.path.ends_with("/labelled") && seen.method == Method::GET {
            let labels = json!({"berth.dev/credential": "session"});
            let metadata = json!({"name": "labelled", "labels": labels});
            (
                200,
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}),
            )
        } else if seen.path.ends_with("/unlabelled") && seen.method == Method::GET {
            (
                200,
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "unlabelled"}}),
            )
        } else if seen.method == Method::GET {
            failure(404, "NotFound", "no such secret")
        } else {
            (201, seen.body.clone())
        }
    } else {
        let answered = answer(&seen);
        log.0.lock().unwrap().push(seen);
        answered
    };
    (StatusCode::from_u16(code).unwrap(), [(header::CONTENT_TYPE, "application/json")], body.to_string())
        .into_response()
}

/// A store that holds `objects`.
pub fn store_of<K>(objects: Vec<K>) -> Store<K>
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + 'static,
{
    let (store, mut writer) = reflector::store();
    for object in objects {
        writer.apply_watcher_event(&watcher::Event::Apply(object));
    }
    store
}

/// The API server's form of an error.
pub fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": reason, "message": message, "code": code,
    });
    (code, status)
}

/// A session that was deleted an hour ago and holds its finalizer, with what `status` says.
pub fn deleted_session(status: &Value) -> AgentSession {
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "AgentSession",
        "metadata": {
            "name": "chat", "namespace": "demo", "uid": "77-session", "generation": 2,
            "finalizers": ["other.test/first", "berth.dev/session-cleanup"],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "subject": {"issuer": "", "name": "alice"},
            "servers": [{"name": "everything"}],
            "end": {"reason": "Completed"},
        },
        "status": status,
    }))
    .unwrap()
}

/// The server of that name, with the UID `server` and what `spec` says beside its transport.
pub fn server(name: &str, spec: &Value) -> McpServer {
    let mut whole = json!({"transport": {"type": "Http", "http": {"url": "http://everything.test/mcp"}}});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "McpServer",
        "metadata": {"name": name, "namespace": "demo", "uid": "server", "generation": 3},
        "spec": whole,
    }))
    .unwrap()
}
