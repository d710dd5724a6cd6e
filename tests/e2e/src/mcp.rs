//! A raw MCP client: it sends exactly what a test says and keeps exactly what came back.

use crate::Live;
use bytes::Bytes;
use http::request::Builder;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use std::time::Duration;

/// No answer of a healthy system takes longer.
const ANSWER_BOUND: Duration = Duration::from_mins(1);

/// Base URL of the gateway.
pub fn gateway_url() -> String {
    std::env::var("BERTH_GATEWAY").unwrap_or_else(|_| "http://127.0.0.1:18080".to_owned())
}

/// One answer, whole.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// HTTP headers.
    pub headers: HeaderMap,
    /// The body as it came.
    pub body: Bytes,
}

impl Answer {
    /// The JSON-RPC messages in the body, of JSON or of an event stream.
    pub fn messages(&self) -> Vec<Value> {
        let text = std::str::from_utf8(&self.body).expect("an answer is UTF-8");
        if self.headers.get("content-type").is_some_and(|t| t.as_bytes().starts_with(b"text/event-stream")) {
            let data = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
            return data.filter(|d| !d.is_empty()).map(|d| serde_json::from_str(d).unwrap()).collect();
        }
        if text.is_empty() {
            Vec::new()
        } else {
            vec![serde_json::from_str(text).expect("a JSON answer is JSON")]
        }
    }

    /// The message that answers the request `id`.
    pub fn answer_to(&self, id: &Value) -> Value {
        let messages = self.messages();
        messages
            .iter()
            .find(|m| m["id"] == *id && m.get("method").is_none())
            .unwrap_or_else(|| panic!("no answer to {id} in {} {messages:?}", self.status))
            .clone()
    }
}

/// Sends one POST with a JSON body and gives the whole answer.
pub async fn post(url: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    try_post(url, headers, body).await.expect("the gateway answers, and its body comes whole")
}

/// The same where the connection may break, as it does when the process at its other end is killed.
pub async fn try_post(url: &str, headers: &[(&str, &str)], body: &Value) -> Result<Answer, String> {
    let mut request = Request::post(url)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(request.body(Full::from(serde_json::to_vec(body).unwrap())).unwrap()).await
}

/// A connection of its own for each request; an error when it broke before the answer was whole.
async fn send(request: Request<Full<Bytes>>) -> Result<Answer, String> {
    send_by(&http_client(), request).await
}

type HttpClient = Client<HttpConnector, Full<Bytes>>;

fn http_client() -> HttpClient {
    Client::builder(TokioExecutor::new()).build_http()
}

async fn send_by(client: &HttpClient, request: Request<Full<Bytes>>) -> Result<Answer, String> {
    let whole = async {
        let answer = client.request(request).await.map_err(|error| error.to_string())?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
        Ok(Answer { status: head.status, headers: head.headers, body })
    };
    tokio::time::timeout(ANSWER_BOUND, whole).await.expect("an answer in time")
}

/// One client of one session's server: a URL, a token and, after `initialize`, an MCP session.
#[derive(Clone)]
pub struct McpClient {
    url: String,
    token: String,
    mcp_session: Option<String>,
    /// Set, its connections are used again; else each request has its own.
    http: Option<HttpClient>,
}

impl McpClient {
    /// A client for `{gateway}/{namespace}/{session}/{server}/mcp`.
    pub fn new(namespace: &str, session: &str, server: &str, token: &str) -> Self {
        Self {
            url: format!("{}/{namespace}/{session}/{server}/mcp", gateway_url()),
            token: token.to_owned(),
            mcp_session: None,
            http: None,
        }
    }

    /// The same, with connections that are kept, as most clients do.
    #[must_use]
    pub fn keeping_connections(self) -> Self {
        Self { http: Some(http_client()), ..self }
    }

    /// The same by way of another address that leads to the gateway.
    #[must_use]
    pub fn by_way_of(self, base: &str) -> Self {
        Self { url: self.url.replacen(&gateway_url(), base, 1), ..self }
    }

    /// Sends `initialize` and `notifications/initialized`; gives the result of the first.
    pub async fn initialize(&mut self) -> Value {
        self.initialize_with(&json!({})).await
    }

    /// The same for a client that declares these capabilities.
    pub async fn initialize_with(&mut self, capabilities: &Value) -> Value {
        let answer = self.try_initialize(capabilities).await;
        answer.get("result").unwrap_or_else(|| panic!("initialize fails: {answer}")).clone()
    }

    /// The same where the upstream may not be had: gives the whole JSON-RPC answer.
    pub async fn try_initialize(&mut self, capabilities: &Value) -> Value {
        self.mcp_session = None;
        let answer = self.send(&initialize(capabilities)).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        let message = answer.answer_to(&json!(0));
        if message.get("result").is_some() {
            let session = answer.headers.get("mcp-session-id").expect("initialize gives a session id");
            self.mcp_session = Some(session.to_str().unwrap().to_owned());
            let initialized =
                self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
            assert_eq!(initialized.status, StatusCode::ACCEPTED, "{initialized:?}");
        }
        message
    }

    /// Sends a request and gives the whole JSON-RPC answer.
    pub async fn request(&self, id: &Value, method: &str, params: &Value) -> Value {
        let answer = self.send(&request(id, method, params)).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        answer.answer_to(id)
    }

    /// Calls a tool under a given JSON-RPC id and gives the whole JSON-RPC answer.
    pub async fn call_as(&self, id: &Value, tool: &str, arguments: Value) -> Value {
        let answer = self.send(&tool_call(id, tool, arguments)).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        answer.answer_to(id)
    }

    /// Calls a tool and gives the text of its result.
    pub async fn call(&self, tool: &str, arguments: Value) -> String {
        let answer = self.call_as(&json!(1), tool, arguments).await;
        let text = answer["result"]["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("{tool} gives text, not {answer}")).to_owned()
    }

    /// Calls a tool where the connection may break: an error then, whatever an answer says is a matter of the test.
    pub async fn try_call(&self, tool: &str, arguments: Value) -> Result<Answer, String> {
        self.try_send(&tool_call(&json!(1), tool, arguments)).await
    }

    /// Sends one message with this client's token and MCP session.
    pub async fn send(&self, message: &Value) -> Answer {
        self.try_send(message).await.expect("the gateway answers, and its body comes whole")
    }

    /// The same where the connection may break.
    pub async fn try_send(&self, message: &Value) -> Result<Answer, String> {
        let request = self.head(Method::POST).body(Full::from(serde_json::to_vec(message).unwrap())).unwrap();
        match &self.http {
            Some(http) => send_by(http, request).await,
            None => send(request).await,
        }
    }

    /// Sends one message; its answer is read as it comes.
    pub async fn begin(&self, message: &Value) -> Live {
        let body = serde_json::to_vec(message).unwrap();
        Live::open(self.head(Method::POST), body).await.expect("the gateway answers")
    }

    /// Asks for the stream of what the server says outside of calls.
    pub async fn listen(&self) -> Live {
        Live::open(self.head(Method::GET), Vec::new()).await.expect("the gateway answers")
    }

    /// Ends the MCP session.
    pub async fn delete(&self) -> Answer {
        let request = self.head(Method::DELETE).body(Full::default()).unwrap();
        send(request).await.expect("the gateway answers, and its body comes whole")
    }

    fn head(&self, method: Method) -> Builder {
        let accept = match method {
            Method::GET => "text/event-stream",
            _ => "application/json, text/event-stream",
        };
        let mut head = Request::builder().method(method).uri(&self.url).header("accept", accept);
        head = head.header("content-type", "application/json");
        head = head.header("authorization", format!("Bearer {}", self.token));
        if let Some(session) = &self.mcp_session {
            head = head.header("mcp-session-id", session).header("mcp-protocol-version", "2025-11-25");
        }
        head
    }
}

/// An `initialize` request, of id 0.
pub fn initialize(capabilities: &Value) -> Value {
    let client = json!({"name": "berth-e2e", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": client});
    request(&json!(0), "initialize", &params)
}

/// A `tools/call` request.
pub fn tool_call(id: &Value, tool: &str, arguments: Value) -> Value {
    let mut call = request(id, "tools/call", &json!({"name": tool}));
    call["params"]["arguments"] = arguments;
    call
}

/// The same with these members of `params._meta`.
pub fn tool_call_with(id: &Value, tool: &str, arguments: Value, meta: Value) -> Value {
    let mut call = tool_call(id, tool, arguments);
    call["params"]["_meta"] = meta;
    call
}

fn request(id: &Value, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}
