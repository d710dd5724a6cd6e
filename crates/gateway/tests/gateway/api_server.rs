//! An API server by a script, over HTTP as kube's client speaks it: both reviews, and list and watch of agentsessions.

use crate::world::soon;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use berth_gateway::authenticate::{TokenReviewer, User};
use berth_gateway::authorize::AccessReviewer;
use berth_gateway::index::Index;
use berth_gateway::kube_review::KubeReviewer;
use berth_gateway::leader::{Leader, lease};
use berth_gateway::review::ReviewError;
use berth_gateway::watch;
use bytes::Bytes;
use futures::stream;
use http::StatusCode;
use http_body_util::BodyExt;
use kube::{Client, Config};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// What the API server holds and was asked.
#[derive(Default)]
pub struct Books {
    pub sessions: Mutex<Vec<Value>>,
    /// The operator's Lease, if there is one.
    pub lease: Mutex<Option<Value>>,
    reviews: Mutex<Vec<Value>>,
    /// The open watch of sessions: lines that are sent here are its events, `None` ends it.
    watch: Mutex<Option<Watch>>,
    /// The open watch of the Lease.
    lease_watch: Mutex<Option<Watch>>,
    broken: Mutex<bool>,
}

type Watch = mpsc::UnboundedSender<Option<Value>>;

pub struct ApiServer {
    pub config: Config,
    pub books: Arc<Books>,
    /// Lists that may be answered.
    pub lists: Arc<Semaphore>,
}

type Shared = State<(Arc<Books>, Arc<Semaphore>)>;

impl ApiServer {
    pub async fn start() -> Self {
        let (books, lists) = (Arc::new(Books::default()), Arc::new(Semaphore::new(0)));
        let app = Router::new()
            .route("/apis/authentication.k8s.io/v1/tokenreviews", post(token_review))
            .route("/apis/authorization.k8s.io/v1/subjectaccessreviews", post(access_review))
            .route("/apis/berth.dev/v1alpha1/agentsessions", get(sessions))
            .route("/apis/coordination.k8s.io/v1/namespaces/berth/leases", get(leases))
            .with_state((books.clone(), lists.clone()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        config.default_retry = false;
        tokio::spawn(berth_net::serve::serve(listener, None, app, 100, CancellationToken::new()));
        Self { config, books, lists }
    }

    pub fn client(&self) -> Client {
        Client::try_from(self.config.clone()).unwrap()
    }

    fn event(&self, type_: &str, object: &Value) {
        let watch = self.books.watch.lock().unwrap();
        watch.as_ref().unwrap().send(Some(json!({"type": type_, "object": object}))).unwrap();
    }

    async fn watched(&self) {
        until("the watch is open", || self.books.watch.lock().unwrap().is_some()).await;
    }

    /// The Lease is gone, and the watch of it with it.
    fn lease_watch_ends(&self) {
        let expired = json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"});
        let watch = self.books.lease_watch.lock().unwrap();
        watch.as_ref().unwrap().send(Some(json!({"type": "ERROR", "object": expired}))).unwrap();
    }

    /// The Lease is so from now on, and whoever watches it is told.
    pub async fn lease_changes(&self, lease: Value) {
        until("the Lease is watched", || self.books.lease_watch.lock().unwrap().is_some()).await;
        let watch = self.books.lease_watch.lock().unwrap();
        watch.as_ref().unwrap().send(Some(json!({"type": "MODIFIED", "object": lease}))).unwrap();
    }
}

/// The operator's Lease when its holder is at that address.
pub fn held_at(address: SocketAddr) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "berth-operator", "namespace": "berth", "uid": "lease", "resourceVersion": "8",
            "annotations": {"berth.dev/leader-address": address}},
        "spec": {"holderIdentity": "operator-1", "leaseTransitions": 3},
    })
}

pub fn session(name: &str) -> Value {
    json!({
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "AgentSession",
        "metadata": {"name": name, "namespace": "demo", "uid": format!("uid-{name}"), "resourceVersion": "7"},
        "spec": {"subject": {"name": "alice"}, "servers": [{"name": "github"}]},
    })
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let holds = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon(what, holds).await;
}

async fn record(books: &Books, request: Request) -> Value {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    books.reviews.lock().unwrap().push(review.clone());
    review
}

async fn token_review(State((books, _)): Shared, request: Request) -> Response {
    let mut review = record(&books, request).await;
    review["status"] = match review["spec"]["token"].as_str().unwrap() {
        "good" => json!({"authenticated": true, "audiences": ["berth"],
            "user": {"username": "alice", "uid": "u1", "groups": ["g"], "extra": {"k": ["v"]}}}),
        "forbidden" => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
                "code": 403, "message": "tokenreviews is forbidden"});
            return (StatusCode::FORBIDDEN, Json(status)).into_response();
        }
        "429" => return (StatusCode::TOO_MANY_REQUESTS, "slow down").into_response(),
        "500" => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        "503" => return (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "1")]).into_response(),
        "rubbish" => return (StatusCode::OK, "<html>a proxy says hello</html>").into_response(),
        _ => json!({"authenticated": false, "error": "invalid bearer token"}),
    };
    (StatusCode::CREATED, Json(review)).into_response()
}

async fn access_review(State((books, _)): Shared, request: Request) -> Response {
    let mut review = record(&books, request).await;
    review["status"] = json!({"allowed": review["spec"]["user"] == "admin"});
    (StatusCode::CREATED, Json(review)).into_response()
}

async fn sessions(State((books, lists)): Shared, Query(query): Query<HashMap<String, String>>) -> Response {
    if *books.broken.lock().unwrap() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    if is_watch(&query) {
        return watch(&books.watch);
    }
    lists.acquire().await.unwrap().forget();
    let items = books.sessions.lock().unwrap().clone();
    list("berth.dev/v1alpha1", "AgentSessionList", &items)
}

async fn leases(State((books, _)): Shared, Query(query): Query<HashMap<String, String>>) -> Response {
    assert_eq!(query.get("fieldSelector").map(String::as_str), Some("metadata.name=berth-operator"));
    if is_watch(&query) {
        return watch(&books.lease_watch);
    }
    let items: Vec<_> = books.lease.lock().unwrap().clone().into_iter().collect();
    list("coordination.k8s.io/v1", "LeaseList", &items)
}

fn is_watch(query: &HashMap<String, String>) -> bool {
    query.get("watch").is_some_and(|watch| watch == "true")
}

/// An answer of the events that are sent to what is left in `open`.
fn watch(open: &Mutex<Option<Watch>>) -> Response {
    let (sender, receiver) = mpsc::unbounded_channel();
    *open.lock().unwrap() = Some(sender);
    let lines = stream::unfold(receiver, async |mut receiver: mpsc::UnboundedReceiver<Option<Value>>| {
        let line = receiver.recv().await.flatten()?;
        Some((Ok::<_, Infallible>(Bytes::from(format!("{line}\n"))), receiver))
    });
    Body::from_stream(lines).into_response()
}

fn list(version: &str, kind: &str, items: &[Value]) -> Response {
    let metadata = json!({"resourceVersion": "7"});
    Json(json!({"apiVersion": version, "kind": kind, "metadata": metadata, "items": items})).into_response()
}

#[tokio::test]
async fn a_token_is_reviewed_for_our_audience() {
    let api = ApiServer::start().await;
    let reviewer = KubeReviewer::new(api.client(), "berth".into());
    let user = reviewer.review("good").await.unwrap().unwrap();
    let extra = [("k".to_owned(), vec!["v".to_owned()])].into();
    assert_eq!(user, User { name: "alice".into(), uid: "u1".into(), groups: vec!["g".into()], extra });
    assert_eq!(reviewer.review("bad").await.unwrap(), None);
    assert_eq!(
        api.books.reviews.lock().unwrap()[0]["spec"],
        json!({"token": "good", "audiences": ["berth"]})
    );
}

#[tokio::test]
async fn a_refused_review_is_an_error_in_the_api_servers_words_without_the_token() {
    let api = ApiServer::start().await;
    let error =
        KubeReviewer::new(api.client(), "berth".into()).review("forbidden").await.unwrap_err().to_string();
    assert_eq!(error, "cannot review at the API server: tokenreviews is forbidden");
}

#[tokio::test]
async fn whatever_is_no_review_is_an_error_and_never_a_refusal() {
    let api = ApiServer::start().await;
    let reviews = KubeReviewer::new(api.client(), "berth".into());
    for answer in ["forbidden", "429", "500", "503", "rubbish"] {
        let answered = soon("the review is answered", reviews.review(answer)).await;
        assert!(matches!(answered, Err(ReviewError::Api(_))), "{answer}: {answered:?}");
    }
    let nobody = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
    let reviews = KubeReviewer::new(nobody, "berth".into());
    let answered = reviews.may_connect(&User::default(), "demo", "s").await;
    assert!(matches!(answered, Err(ReviewError::Api(_))), "{answered:?}");
}

#[tokio::test]
async fn an_access_is_reviewed_with_all_that_is_known_of_the_user() {
    let api = ApiServer::start().await;
    let reviewer = KubeReviewer::new(api.client(), "berth".into());
    let extra = [("k".to_owned(), vec!["v".to_owned()])].into();
    let user = User { name: "admin".into(), uid: "u2".into(), groups: vec!["g".into()], extra };
    assert!(reviewer.may_connect(&user, "demo", "s").await.unwrap());
    assert!(
        !reviewer.may_connect(&User { name: "bob".into(), ..User::default() }, "demo", "s").await.unwrap()
    );
    let expected = json!({
        "user": "admin", "uid": "u2", "groups": ["g"], "extra": {"k": ["v"]},
        "resourceAttributes": {"group": "berth.dev", "resource": "agentsessions", "subresource": "connect",
            "verb": "create", "namespace": "demo", "name": "s"},
    });
    assert_eq!(api.books.reviews.lock().unwrap()[0]["spec"], expected);
}

#[tokio::test]
async fn the_index_follows_the_watch_and_forgets_nothing_while_it_is_broken() {
    let api = ApiServer::start().await;
    let index = Arc::new(Index::default());
    *api.books.sessions.lock().unwrap() = vec![session("a"), session("b")];
    tokio::spawn(watch::follow(api.client(), index.clone(), CancellationToken::new()));
    assert!(!index.is_synced(), "the list is held back");
    api.lists.add_permits(1);
    soon("the index is synced", index.synced()).await;
    assert_eq!(index.len(), 2);

    api.watched().await;
    api.event("ADDED", &session("c"));
    until("c comes", || index.get("demo/c").is_some()).await;
    api.event("DELETED", &session("b"));
    until("b goes", || index.get("demo/b").is_none()).await;

    // The API server breaks off the watch, answers errors, and comes back having lost a; the list is held back again.
    *api.books.broken.lock().unwrap() = true;
    api.event("ERROR", &json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}));
    let open = api.books.watch.lock().unwrap().take();
    soon("the broken watch is dropped", open.unwrap().closed()).await;
    assert_eq!(index.len(), 2, "a broken watch removes nothing");
    *api.books.sessions.lock().unwrap() = vec![session("c")];
    *api.books.broken.lock().unwrap() = false;
    api.lists.add_permits(1);
    until("the complete list removes a", || index.get("demo/a").is_none()).await;
    assert_eq!(index.len(), 1);
}

#[tokio::test]
async fn the_leader_is_where_the_lease_says() {
    let (api, leader, cancel) = (ApiServer::start().await, Leader::default(), CancellationToken::new());
    let (client, followed, guard) = (api.client(), leader.clone(), cancel.clone().drop_guard());
    let following = tokio::spawn(async move { lease::follow(client, "berth", &followed, cancel).await });
    let (first, second) = ("10.0.0.7:8443".parse().unwrap(), "[fd00::7]:8443".parse().unwrap());
    let mut addresses = leader.follow();
    api.lease_changes(held_at(first)).await;
    soon("it is there", addresses.wait_for(|address| *address == Some(first))).await.unwrap();
    api.lease_changes(held_at(second)).await;
    soon("it moves", addresses.wait_for(|address| *address == Some(second))).await.unwrap();
    // A watch that ends tells nothing new; a list without the Lease does.
    api.lease_watch_ends();
    soon("the Lease is gone", addresses.wait_for(Option::is_none)).await.unwrap();
    drop(guard);
    soon("it ends", following).await.unwrap();
}
