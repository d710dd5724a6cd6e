//! An API server in memory, for tests of effects that read back what they wrote: objects by their path, lists by label,
//! resource versions that fence writes, finalizers that hold a deletion up.

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode, header};
use http_body_util::BodyExt;
use kube::Client;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::fixture::failure;

/// A rule of a test that comes before everything else: an answer for a method and path, or none.
type Rule = Box<dyn Fn(&Method, &str) -> Option<(u16, Value)> + Send>;

/// The server; clones share it.
#[derive(Clone, Default)]
pub struct MemoryApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    writes: Vec<String>,
    rules: Vec<Rule>,
}

impl MemoryApi {
    /// A client to it.
    pub fn client(&self) -> Client {
        let server = self.clone();
        let router = Router::new().fallback(move |request: Request| {
            let server = server.clone();
            async move { server.answer(request).await }
        });
        Client::new(router, "default")
    }

    /// Puts an object there.
    pub fn put(&self, path: &str, object: Value) {
        self.0.lock().unwrap().store(path, object);
    }

    /// The object of that path.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().unwrap().objects.get(path).cloned()
    }

    /// Takes an object away, whatever holds it.
    pub fn remove(&self, path: &str) {
        self.0.lock().unwrap().objects.remove(path);
    }

    /// The paths of all objects.
    pub fn paths(&self) -> Vec<String> {
        self.0.lock().unwrap().objects.keys().cloned().collect()
    }

    /// Method and path of the writes so far, taken out.
    pub fn writes(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().writes)
    }

    /// Answers what `rule` has an answer for with that.
    pub fn rule(&self, rule: impl Fn(&Method, &str) -> Option<(u16, Value)> + Send + 'static) {
        self.0.lock().unwrap().rules.push(Box::new(rule));
    }

    async fn answer(&self, request: Request) -> Response {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let selector = request.uri().query().and_then(selector_of).unwrap_or_default();
        let apply = request
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/apply"));
        let bytes = request.into_body().collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        let (code, body) = self.0.lock().unwrap().act(&method, &path, &selector, apply, body);
        (StatusCode::from_u16(code).unwrap(), [(header::CONTENT_TYPE, "application/json")], body.to_string())
            .into_response()
    }
}

impl State {
    fn act(&mut self, method: &Method, path: &str, selector: &str, apply: bool, body: Value) -> (u16, Value) {
        if method != Method::GET {
            self.writes.push(format!("{method} {path}"));
        }
        if let Some(answer) = self.rules.iter().find_map(|rule| rule(method, path)) {
            return answer;
        }
        let (item, subresource) = path.strip_suffix("/scale").map_or((path, false), |item| (item, true));
        let found = self.objects.get(item).cloned();
        match (method.as_str(), found) {
            ("POST", _) => {
                let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
                if self.objects.contains_key(&path) {
                    return failure(409, "AlreadyExists", "it exists");
                }
                (201, self.store(&path, body))
            }
            ("GET", Some(found)) => (200, found),
            ("GET", None) if !is_item(path) => (200, self.list(path, selector)),
            ("PATCH", None) if apply => (201, self.store(item, body)),
            ("PATCH", Some(mut found)) => {
                let fence = &body["metadata"]["resourceVersion"];
                if !fence.is_null() && fence != &found["metadata"]["resourceVersion"] {
                    return failure(409, "Conflict", "it has changed");
                }
                merge(&mut found, &body);
                let stored = self.store(item, found);
                (200, if subresource { json!({"metadata": {}, "spec": stored["spec"]}) } else { stored })
            }
            ("DELETE", Some(mut found)) => {
                if found["metadata"]["finalizers"].as_array().is_some_and(|held| !held.is_empty()) {
                    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                    self.store(item, found.clone());
                } else {
                    self.objects.remove(item);
                }
                (200, found)
            }
            _ => failure(404, "NotFound", "no such object"),
        }
    }

    /// Stores an object; one whose last finalizer has gone while it is being deleted is gone too.
    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        let metadata = object["metadata"].as_object_mut().unwrap();
        metadata.insert("resourceVersion".into(), self.version.to_string().into());
        metadata.entry("uid").or_insert_with(|| format!("uid-{}", self.version).into());
        let held = metadata.get("finalizers").and_then(Value::as_array).is_some_and(|held| !held.is_empty());
        if metadata.contains_key("deletionTimestamp") && !held {
            self.objects.remove(path);
        } else {
            self.objects.insert(path.to_owned(), object.clone());
        }
        object
    }

    fn list(&self, path: &str, selector: &str) -> Value {
        let (group, plural) = path.rsplit_once('/').unwrap();
        let listed = |(item, object): &(&String, &Value)| {
            let (collection, _) = item.rsplit_once('/').unwrap();
            let anywhere = collection.strip_prefix(group).is_some_and(|rest| {
                rest.starts_with("/namespaces/") && rest.ends_with(&format!("/{plural}"))
            });
            (collection == path || anywhere) && selects(selector, object)
        };
        let items: Vec<&Value> = self.objects.iter().filter(listed).map(|(_, object)| object).collect();
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})
    }
}

/// Whether a path names one object: those of tests are namespaces, or in one, or definitions of kinds.
fn is_item(path: &str) -> bool {
    path.split_once("/namespaces/")
        .map_or(path.contains("/customresourcedefinitions/"), |(_, rest)| rest.split('/').count() != 2)
}

fn selector_of(query: &str) -> Option<String> {
    let selector = query.split('&').find_map(|pair| pair.strip_prefix("labelSelector="))?;
    Some(selector.replace("%3D", "=").replace("%2C", ",").replace("%2F", "/"))
}

fn selects(selector: &str, object: &Value) -> bool {
    selector.split(',').filter(|term| !term.is_empty()).all(|term| {
        let (key, value) = term.split_once('=').unwrap_or((term, ""));
        object["metadata"]["labels"][key] == value
    })
}

/// A JSON merge patch.
fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let target = target.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
