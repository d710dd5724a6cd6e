//! A scripted MCP server of the legacy era that keeps books of what it saw.

mod tools;

use super::eventually;
use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::post};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, StatusCode, Uri};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::net::TcpListener;
use tokio::sync::{Notify, broadcast};

/// Bytes of its answer that the tool "stalled" sends before it waits for [`Upstream::release`].
pub const STALLED_AT: usize = 64 * 1024;

/// What the server does with a kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// As a server should.
    Well,
    /// Waits for [`Upstream::release`], then as a server should.
    Hold,
    /// Answers this status.
    Status(u16),
    /// Waits for [`Upstream::release`], then answers this status.
    LateStatus(u16),
    /// Answers this status and asks to wait so many seconds.
    RetryAfter(u16, u32),
    /// Answers 200 with a JSON-RPC error.
    RpcError,
    /// Answers what is not MCP.
    Rubbish,
    /// Answers with one header of so many bytes.
    Head(usize),
}

/// How the server answers a request of a session that is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// 404, as the specification asks for.
    NotFound,
    /// 400 with an error that says so, as several SDKs do.
    BadRequest,
    /// 400 with an error in words of the server's own.
    OwnWords,
    /// 200 with the error as JSON.
    Json,
    /// 200 with the error in an event stream.
    Event,
    /// 200 with an event of the name `error` that is no message.
    ErrorEvent,
}

impl Unknown {
    pub const ALL: [Self; 5] = [Self::NotFound, Self::BadRequest, Self::Json, Self::Event, Self::ErrorEvent];
}

/// What the server saw and is told to do.
pub struct Books {
    pub on_initialize: Act,
    pub on_delete: Act,
    /// What is done with responses.
    pub on_response: Act,
    /// What is done with requests about resources.
    pub on_resource: Act,
    pub unknown: Unknown,
    /// Gives no session ids, and wants none.
    pub sessionless: bool,
    /// Forgets each session as soon as it is established.
    pub forgetful: bool,
    /// Addresses from which a request came: one for each socket.
    pub sockets: HashSet<SocketAddr>,
    /// Bodies of `initialize`.
    pub initializes: Vec<Value>,
    /// Session ids that came with them.
    pub initialize_sessions: Vec<String>,
    /// Sessions that `notifications/initialized` came for.
    pub initialized: Vec<String>,
    /// Sessions that are open.
    pub open: HashSet<String>,
    /// Sessions that a DELETE came for.
    pub deletes: Vec<String>,
    /// Everything else: session, socket, message.
    pub messages: Vec<(String, SocketAddr, Value)>,
    /// Values of the Authorization header of messages.
    pub credentials: Vec<String>,
    /// Values of the Authorization header of DELETEs.
    pub credentials_of_deletes: Vec<Option<String>>,
    /// Bodies of everything else, as they came.
    pub raw: Vec<String>,
    /// Answers to GETs; none is a stream.
    pub on_get: Option<u16>,
    /// What the streams of GETs say without end, if anything.
    pub flood: Option<Value>,
    /// GETs: session and Last-Event-ID.
    pub gets: Vec<(String, Option<String>)>,
    next_session: u32,
}

impl Books {
    /// Responses to the server's request `id`.
    pub fn responses_to(&self, id: &Value) -> Vec<&Value> {
        let is_response = |message: &&Value| message.get("method").is_none() && message["id"] == *id;
        self.messages.iter().map(|(_, _, message)| message).filter(is_response).collect()
    }

    /// Messages of one method.
    pub fn of_method(&self, method: &str) -> Vec<&Value> {
        self.messages
            .iter()
            .map(|(_, _, message)| message)
            .filter(|message| message["method"] == method)
            .collect()
    }
}

/// A server that runs as long as its test.
#[derive(Clone)]
pub struct Upstream {
    address: SocketAddr,
    books: Arc<Mutex<Books>>,
    released: Arc<Notify>,
    responses: broadcast::Sender<Value>,
    /// What is said on the streams of GETs; none ends them.
    speech: broadcast::Sender<Option<String>>,
}

impl Upstream {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let books = Books {
            on_initialize: Act::Well,
            on_delete: Act::Well,
            on_response: Act::Well,
            on_resource: Act::Well,
            unknown: Unknown::NotFound,
            sessionless: false,
            forgetful: false,
            sockets: HashSet::new(),
            initializes: Vec::new(),
            initialize_sessions: Vec::new(),
            initialized: Vec::new(),
            open: HashSet::new(),
            deletes: Vec::new(),
            messages: Vec::new(),
            credentials: Vec::new(),
            credentials_of_deletes: Vec::new(),
            raw: Vec::new(),
            on_get: None,
            flood: None,
            gets: Vec::new(),
            next_session: 1,
        };
        let upstream = Self {
            address: listener.local_addr().unwrap(),
            books: Arc::new(Mutex::new(books)),
            released: Arc::new(Notify::new()),
            responses: broadcast::channel(64).0,
            speech: broadcast::channel(16 * 1024).0,
        };
        let app = Router::new()
            .route("/mcp", post(receive).get(listen).delete(delete))
            .fallback(redirect)
            .with_state(upstream.clone());
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, app).await });
        upstream
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    /// Lets those who wait go on, and whoever comes later.
    pub fn release(&self) {
        {
            let books = &mut *self.books();
            for act in [
                &mut books.on_initialize,
                &mut books.on_delete,
                &mut books.on_response,
                &mut books.on_resource,
            ] {
                if *act == Act::Hold {
                    *act = Act::Well;
                }
            }
        }
        self.released.notify_waiters();
    }

    /// Says something on the streams of GETs.
    pub fn say(&self, message: &Value) {
        self.say_raw(&format!("data: {message}\n\n"));
    }

    /// The same, as the text of an event.
    pub fn say_raw(&self, event: &str) {
        self.speech.send(Some(event.to_owned())).expect("a stream is open");
    }

    /// Ends the streams of GETs.
    pub fn hang_up(&self) {
        let _ = self.speech.send(None);
    }

    /// Streams of GETs that are open.
    pub fn listeners(&self) -> usize {
        self.speech.receiver_count()
    }

    /// Forgets every session, as a restart does.
    pub fn forget_sessions(&self) {
        self.books().open.clear();
    }

    /// Waits until the books show something.
    pub async fn until(&self, what: &str, shows: impl Fn(&Books) -> bool) {
        eventually(what, || shows(&self.books())).await;
    }

    async fn act(&self, act: Act) -> Option<Response> {
        match act {
            Act::Well => None,
            Act::Hold => {
                self.released.notified().await;
                None
            }
            Act::LateStatus(status) => {
                self.released.notified().await;
                Some(StatusCode::from_u16(status).unwrap().into_response())
            }
            Act::Status(status) => Some(StatusCode::from_u16(status).unwrap().into_response()),
            Act::RetryAfter(status, seconds) => {
                let headers = [("retry-after", seconds.to_string())];
                Some((StatusCode::from_u16(status).unwrap(), headers).into_response())
            }
            Act::RpcError => Some(json_answer(
                &json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32602, "message": "no", "x": 1}}),
            )),
            Act::Rubbish => Some((StatusCode::OK, "hello\n").into_response()),
            Act::Head(bytes) => Some([("x-large", "x".repeat(bytes))].into_response()),
        }
    }
}

/// Paths that redirect, each in its way.
async fn redirect(uri: Uri) -> Response {
    let (status, location) = match uri.path() {
        "/once" => (307, "/mcp"),
        "/thrice" => (308, "/twice?x=1"),
        "/twice" => (307, "once#there"),
        "/forever" => (307, "/forever"),
        "/away" => (307, "https://other.test/mcp?token=hunter2"),
        "/lossy" => (302, "/mcp"),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    (StatusCode::from_u16(status).unwrap(), [("location", location)]).into_response()
}

async fn receive(
    State(upstream): State<Upstream>,
    ConnectInfo(socket): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let message: Value = serde_json::from_slice(&body).unwrap();
    let session = session_of(&headers);
    {
        let mut books = upstream.books();
        books.sockets.insert(socket);
        books
            .credentials
            .extend(headers.get("authorization").map(|value| value.to_str().unwrap().to_owned()));
    }
    if message["method"] == "initialize" {
        upstream.books().initialize_sessions.push(session);
        return initialize(&upstream, message).await;
    }
    if !upstream.books().open.contains(&session) {
        return unknown_session(upstream.books().unknown, &message["id"]);
    }
    if message["method"] == "notifications/initialized" {
        let mut books = upstream.books();
        if books.forgetful {
            books.open.remove(&session);
        }
        books.initialized.push(session);
        return StatusCode::ACCEPTED.into_response();
    }
    upstream.books().messages.push((session.clone(), socket, message.clone()));
    upstream.books().raw.push(String::from_utf8(body.to_vec()).unwrap());
    if message.get("method").is_none() {
        let act = upstream.books().on_response;
        if let Some(response) = upstream.act(act).await {
            return response;
        }
        let _ = upstream.responses.send(message);
        return StatusCode::ACCEPTED.into_response();
    }
    if message.get("id").is_none() {
        return StatusCode::ACCEPTED.into_response();
    }
    if message["method"].as_str().is_some_and(|method| method.starts_with("resources/"))
        && message["params"]["uri"].as_str().is_some_and(|uri| uri.starts_with("a://"))
    {
        let act = upstream.books().on_resource;
        if let Some(response) = upstream.act(act).await {
            return response;
        }
        return json_answer(&json!({"jsonrpc": "2.0", "id": message["id"], "result": {}}));
    }
    if message["params"]["name"] == "credential" {
        let seen = headers.get("authorization").map(|value| value.to_str().unwrap());
        return json_answer(&json!({"jsonrpc": "2.0", "id": message["id"], "result": {"credential": seen}}));
    }
    tools::tool(&upstream, &session, &message)
}

fn unknown_session(unknown: Unknown, id: &Value) -> Response {
    let error = |id: &Value| {
        let (code, text) = match unknown {
            Unknown::BadRequest => (-32000, "Bad Request: No valid session ID provided"),
            Unknown::OwnWords => (-32000, "this session belongs to another replica"),
            _ => (-32001, "Session not found"),
        };
        json!({"jsonrpc": "2.0", "error": {"code": code, "message": text}, "id": id})
    };
    match unknown {
        Unknown::NotFound => (StatusCode::NOT_FOUND, json_answer(&error(&Value::Null))).into_response(),
        Unknown::BadRequest | Unknown::OwnWords => {
            (StatusCode::BAD_REQUEST, json_answer(&error(&Value::Null))).into_response()
        }
        Unknown::Json => json_answer(&error(id)),
        Unknown::Event => events(stream::iter([error(id)])),
        Unknown::ErrorEvent => event_stream(Body::from("event: error\ndata: Session not found\n\n")),
    }
}

async fn initialize(upstream: &Upstream, message: Value) -> Response {
    let act = {
        let mut books = upstream.books();
        books.initializes.push(message.clone());
        books.on_initialize
    };
    if let Some(response) = upstream.act(act).await {
        return response;
    }
    let session = {
        let mut books = upstream.books();
        let session =
            if books.sessionless { String::new() } else { format!("upstream-{}", books.next_session) };
        books.next_session += 1;
        books.open.insert(session.clone());
        session
    };
    let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
        "serverInfo": {"name": "scripted", "version": "1"}, "x-vendor": 1.0});
    let mut response = json_answer(&json!({"jsonrpc": "2.0", "id": message["id"], "result": result}));
    if !session.is_empty() {
        response.headers_mut().insert("mcp-session-id", session.parse().unwrap());
    }
    response
}

async fn listen(State(upstream): State<Upstream>, headers: HeaderMap) -> Response {
    let last = headers.get("last-event-id").map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(headers["accept"], "text/event-stream");
    let (answer, flood) = {
        let mut books = upstream.books();
        books.gets.push((session_of(&headers), last));
        (books.on_get, books.flood.clone())
    };
    if let Some(message) = flood {
        return events(stream::repeat(message));
    }
    if let Some(status) = answer {
        return StatusCode::from_u16(status).unwrap().into_response();
    }
    let speech = upstream.speech.subscribe();
    let events = stream::unfold(speech, async |mut speech| {
        let said = speech.recv().await.expect("nobody says more than is read")?;
        Some((Ok::<_, std::convert::Infallible>(said), speech))
    });
    event_stream(Body::from_stream(events))
}

async fn delete(State(upstream): State<Upstream>, headers: HeaderMap) -> Response {
    let session = session_of(&headers);
    let act = {
        let mut books = upstream.books();
        books.deletes.push(session.clone());
        let credential = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
        books.credentials_of_deletes.push(credential);
        books.on_delete
    };
    if let Some(response) = upstream.act(act).await {
        return response;
    }
    let known = upstream.books().open.remove(&session);
    (if known { StatusCode::OK } else { StatusCode::NOT_FOUND }).into_response()
}

fn session_of(headers: &HeaderMap) -> String {
    headers.get("mcp-session-id").map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

fn json_answer(message: &Value) -> Response {
    ([("content-type", "application/json")], message.to_string()).into_response()
}

fn events(messages: impl Stream<Item = Value> + Send + 'static) -> Response {
    let events = messages
        .map(|message| Ok::<_, std::convert::Infallible>(format!("event: message\ndata: {message}\n\n")));
    event_stream(Body::from_stream(events))
}

fn event_stream(body: Body) -> Response {
    ([("content-type", "text/event-stream")], body).into_response()
}
