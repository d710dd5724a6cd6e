//! A legacy MCP client of a session, as the gateway passes it on.

use super::PATIENCE;
use super::harness::{As, Harness, data_request, read};
use axum::body::Body;
use berth_mcp::sse::Decoder;
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// One client.
pub struct Client<'a> {
    pub harness: &'a Harness,
    pub uid: String,
    pub scope: Option<String>,
}

impl<'a> Client<'a> {
    pub fn new(harness: &'a Harness, uid: &str) -> Self {
        Self { harness, uid: uid.to_owned(), scope: None }
    }

    /// Opens a scope; gives the result, or the error.
    pub async fn initialize(&mut self) -> Result<Value, Value> {
        self.initialize_as(&initialize("init")).await
    }

    /// Opens a scope by `message`, whose id is `init`.
    pub async fn initialize_as(&mut self, message: &Value) -> Result<Value, Value> {
        let response = self.post(message.to_string()).await;
        let scope = response.headers().get("mcp-session-id").map(|value| value.to_str().unwrap().to_owned());
        let (status, body) = read(response).await;
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(answer["id"], "init");
        match answer.get("result") {
            Some(result) => {
                self.scope = Some(scope.expect("a session id with the result"));
                Ok(result.clone())
            }
            None => Err(answer["error"].clone()),
        }
    }

    /// Sends one raw message.
    pub async fn post(&self, message: impl Into<Body>) -> Response<Incoming> {
        let request = data_request(Method::POST, &self.uid, self.scope.as_deref(), message);
        self.harness.send(As::Gateway, request).await
    }

    /// Sends one raw message and reads the whole answer as one JSON message.
    pub async fn json(&self, message: &Value) -> (StatusCode, Value) {
        let (status, body) = read(self.post(message.to_string()).await).await;
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// The same for a client that takes no event stream.
    pub async fn json_only(&self, message: &Value) -> (StatusCode, Value) {
        let mut request = data_request(Method::POST, &self.uid, self.scope.as_deref(), message.to_string());
        request.headers_mut().insert("accept", "application/json".parse().unwrap());
        let (status, body) = read(self.harness.send(As::Gateway, request).await).await;
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// Begins a tool call; its answer is read as it comes.
    pub async fn begin(&self, message: &Value) -> Answer {
        Answer::new(self.post(message.to_string()).await)
    }

    /// A GET of the client's.
    pub async fn get(&self) -> Response<Incoming> {
        let request = data_request(Method::GET, &self.uid, self.scope.as_deref(), Body::empty());
        self.harness.send(As::Gateway, request).await
    }

    /// Opens the client's stream for what the server says outside of calls.
    pub async fn listen(&self) -> Answer {
        let answer = Answer::new(self.get().await);
        assert!(answer.is_stream);
        answer
    }

    /// Sends a message that must be accepted.
    pub async fn tell(&self, message: &Value) {
        assert_eq!(self.json(message).await.0, StatusCode::ACCEPTED);
    }

    /// Calls a tool and gives the last message of the answer.
    pub async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.begin(&tool_call(json!(1), tool, &arguments)).await.messages().await.pop().expect("an answer")
    }

    /// The same client with its scope, at another session's path.
    pub fn client_of(&self, uid: &str) -> Self {
        Self { harness: self.harness, uid: uid.to_owned(), scope: self.scope.clone() }
    }

    /// Ends the scope.
    pub async fn delete(&self) -> StatusCode {
        let request = data_request(Method::DELETE, &self.uid, self.scope.as_deref(), Body::empty());
        read(self.harness.send(As::Gateway, request).await).await.0
    }
}

/// An `initialize` request.
pub fn initialize(id: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"},
    }})
}

/// A `tools/call` request.
pub fn tool_call(id: Value, tool: &str, arguments: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
}

/// A `tools/call` request that wants progress.
pub fn tool_call_with_progress(id: Value, token: Value, tool: &str, arguments: &Value) -> Value {
    let mut message = tool_call(id, tool, arguments);
    message["params"]["_meta"] = json!({"progressToken": token});
    message
}

/// The answer to a request, JSON or a stream.
pub struct Answer {
    body: Incoming,
    is_stream: bool,
    decoder: Decoder,
    ready: VecDeque<Value>,
}

impl Answer {
    fn new(response: Response<Incoming>) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        let is_stream =
            response.headers().get("content-type").is_some_and(|value| value == "text/event-stream");
        Self {
            body: response.into_body(),
            is_stream,
            decoder: Decoder::new(32 * 1024 * 1024),
            ready: VecDeque::new(),
        }
    }

    /// The next message; none at the end.
    pub async fn next(&mut self) -> Option<Value> {
        while self.ready.is_empty() {
            if !self.is_stream {
                let body = std::mem::replace(&mut self.is_stream, true);
                assert!(!body);
                let whole =
                    tokio::time::timeout(PATIENCE, (&mut self.body).collect()).await.expect("a body in time");
                return serde_json::from_slice(&whole.unwrap().to_bytes()).ok();
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("an event in time")?;
            self.decoder.feed(&frame.unwrap().into_data().unwrap());
            while let Some(event) = self.decoder.next_event() {
                self.ready.push_back(serde_json::from_str(&event.unwrap().data).unwrap());
            }
        }
        self.ready.pop_front()
    }

    /// The next bytes, whatever they are.
    pub async fn bytes(&mut self) -> String {
        let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("bytes in time");
        String::from_utf8(frame.unwrap().unwrap().into_data().unwrap().to_vec()).unwrap()
    }

    /// All messages up to the end.
    pub async fn messages(mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(message) = self.next().await {
            messages.push(message);
        }
        messages
    }
}
