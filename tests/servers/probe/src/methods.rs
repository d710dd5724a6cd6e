//! What each JSON-RPC method does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json, value::RawValue};

use crate::{
    Probe,
    arrival::Arrival,
    books::{Row, Ticket},
    mcp::{self, NEWEST, VERSIONS, refuse},
    rpc::{INVALID_PARAMS, METHOD_NOT_FOUND, Message, RpcError, result_text},
    session::Session,
    tools,
};

const RESOURCES: &str = r#"{"resources":[{"uri":"probe://about","name":"about","mimeType":"text/plain","x-probe-vendor":"kept"}]}"#;
const RESOURCE: &str =
    r#"{"contents":[{"uri":"probe://about","mimeType":"text/plain","text":"A server for tests."}]}"#;
const TEMPLATES: &str = r#"{"resourceTemplates":[{"uriTemplate":"probe://numbers/{number}","name":"number","mimeType":"text/plain"}]}"#;
const PROMPTS: &str = r#"{"prompts":[{"name":"greet","description":"A greeting","arguments":[{"name":"name","required":false}]}]}"#;

/// `initialize`: the one request that needs no session, and starts one.
pub fn initialize(
    probe: &Probe,
    arrival: &Arrival,
    ticket: Ticket,
    id: &RawValue,
    params: &Value,
) -> Response {
    let field = |name| params.get(name).cloned().unwrap_or_default();
    let asked = field("protocolVersion");
    if !asked.is_string() {
        let error = RpcError::new(INVALID_PARAMS, "Invalid params: protocolVersion is required");
        return refuse(StatusCode::BAD_REQUEST, &error, Some(id));
    }
    let version = VERSIONS.iter().copied().find(|version| asked == *version).unwrap_or(NEWEST);
    let session = probe.sessions.mint(field("capabilities"), arrival.authorization.clone());
    probe.books.minted(
        ticket,
        Row {
            id: session.id.clone(),
            initialized_at: 0,
            ended: None,
            client_info: field("clientInfo"),
            protocol_version: version.to_owned(),
            requested_protocol_version: asked,
            capabilities: field("capabilities"),
            authorization_sha256_at_initialize: arrival.authorization.clone(),
            authorization_sha256s: BTreeSet::from([arrival.authorization.clone()]),
            requests: BTreeMap::from([("initialize".to_owned(), 1)]),
            calls: BTreeMap::new(),
            cancelled: 0,
            interrupted: 0,
            last_headers: arrival.headers.iter().cloned().collect(),
        },
    );
    let result = json!({
        "protocolVersion": version,
        "capabilities": {"tools": {"listChanged": true}, "resources": {"listChanged": true, "subscribe": true},
            "prompts": {"listChanged": true}, "completions": {}, "logging": {}},
        "serverInfo": {"name": "probe", "title": "Probe", "version": env!("CARGO_PKG_VERSION")},
        "instructions": "A server for tests.",
    });
    let mut response = mcp::json(StatusCode::OK, result_text(id, &result.to_string()));
    if let Ok(value) = HeaderValue::from_str(&session.id) {
        response.headers_mut().insert("mcp-session-id", value);
    }
    response
}

/// A request inside a session.
#[derive(Debug)]
pub struct Asked {
    /// Its id, as it was written.
    pub id: Box<RawValue>,
    /// Its method.
    pub method: String,
    /// Its parameters.
    pub params: Value,
    /// The same, as they were written.
    pub raw: Option<Box<RawValue>>,
    /// All of it, as it was written.
    pub body: Bytes,
    /// Digest of its credential.
    pub authorization: String,
}

impl Asked {
    fn text(&self, name: &str) -> Option<&str> {
        self.params.get(name)?.as_str()
    }
}

/// Any request inside a session.
pub async fn request(probe: &Arc<Probe>, session: &Arc<Session>, asked: Asked) -> Response {
    let result = match asked.method.as_str() {
        "tools/call" => return tools::call(probe, session, asked).await,
        "tools/list" => probe.catalogue.get().page(asked.text("cursor")),
        "ping" => Ok("{}".to_owned()),
        "logging/setLevel" => set_log_level(session, &asked),
        "resources/list" => Ok(RESOURCES.to_owned()),
        "resources/templates/list" => Ok(TEMPLATES.to_owned()),
        "resources/read" => read(&asked),
        "resources/subscribe" => subscribe(session, &asked, true),
        "resources/unsubscribe" => subscribe(session, &asked, false),
        "prompts/list" => Ok(PROMPTS.to_owned()),
        "prompts/get" => prompt(&asked.params),
        "completion/complete" => Ok(complete(&asked.params)),
        // A method that no SDK knows.
        "probe.test/raw" => Ok(json!({ "request": String::from_utf8_lossy(&asked.body) }).to_string()),
        _ => Err(RpcError::new(METHOD_NOT_FOUND, "Method not found")),
    };
    let text =
        result.map_or_else(|error| error.text(Some(&asked.id)), |result| result_text(&asked.id, &result));
    mcp::json(StatusCode::OK, text)
}

fn set_log_level(session: &Session, asked: &Asked) -> Result<String, RpcError> {
    let level = asked.params.get("level").cloned().unwrap_or_default();
    let level = serde_json::from_value(level).map_err(|_| RpcError::new(INVALID_PARAMS, "Unknown level"))?;
    session.set_log_level(level);
    Ok("{}".to_owned())
}

fn read(asked: &Asked) -> Result<String, RpcError> {
    if asked.text("uri") == Some("probe://about") {
        return Ok(RESOURCE.to_owned());
    }
    Err(RpcError::new(-32002, "Resource not found"))
}

fn subscribe(session: &Session, asked: &Asked, wanted: bool) -> Result<String, RpcError> {
    let uri = asked.text("uri").ok_or_else(|| RpcError::new(INVALID_PARAMS, "uri must be a string"))?;
    session.subscribe(uri, wanted);
    Ok("{}".to_owned())
}

/// Three values that begin with what is there.
fn complete(params: &Value) -> String {
    let begin = params.pointer("/argument/value").and_then(Value::as_str).unwrap_or_default();
    let values: Vec<_> = ["a", "b", "c"].iter().map(|end| format!("{begin}{end}")).collect();
    json!({"completion": {"values": values, "total": 3, "hasMore": false}}).to_string()
}

fn prompt(params: &Value) -> Result<String, RpcError> {
    if params.get("name").is_none_or(|name| name != "greet") {
        return Err(RpcError::new(INVALID_PARAMS, "Unknown prompt"));
    }
    let name = params.pointer("/arguments/name").and_then(Value::as_str).unwrap_or("you");
    let content = json!({"type": "text", "text": format!("Greet {name}.")});
    Ok(json!({"messages": [{"role": "user", "content": content}]}).to_string())
}

/// Any notification inside a session.
pub fn notification(probe: &Probe, session: &Session, method: &str, message: &Message) {
    if method != "notifications/cancelled" {
        return;
    }
    // Compared as it was written: 1 and 1.0 are different ids, and "1" is a third.
    let id = message.params.as_deref().and_then(|raw| {
        let params: BTreeMap<String, Box<RawValue>> = serde_json::from_str(raw.get()).ok()?;
        params.get("requestId").map(|id| id.get().to_owned())
    });
    let interrupted = id.is_some_and(|id| session.cancel_call(&id));
    probe.books.cancelled(&session.id, interrupted);
}
