//! A server on a free loopback port, and a client that knows nothing of MCP but headers and bytes.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use probe::{Probe, Settings, accept, ports::Port};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time,
};

/// Longer than anything that is to happen, shorter than anyone's patience.
pub(crate) const SOON: Duration = Duration::from_secs(10);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) probe: Arc<Probe>,
    pub(crate) task: JoinHandle<()>,
}

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// An answer whose body is read event by event.
pub(crate) struct Stream {
    body: Incoming,
    text: String,
}

impl Stream {
    /// The message of the next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        time::timeout(SOON, async {
            loop {
                if let Some((event, rest)) = self.text.split_once("\n\n") {
                    let data = event.strip_prefix("event: message\ndata: ").map(str::to_owned);
                    self.text = rest.to_owned();
                    if let Some(data) = data {
                        return Some(serde_json::from_str(&data).unwrap());
                    }
                    continue;
                }
                let frame = self.body.frame().await?.ok()?;
                self.text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
            }
        })
        .await
        .expect("an event in time")
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        let settings = Settings { keep_alive: Duration::from_millis(20), ..Settings::default() };
        let probe = Probe::new(settings).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(accept::serve(listener, Arc::clone(&probe)));
        Self { address, probe, task }
    }

    /// Opens one more port of the same server.
    pub(crate) async fn listen(&self, port: Port) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(accept::serve_port(port, listener, Arc::clone(&self.probe)));
        address
    }

    /// Sends one request on a connection of its own; the head of the answer, or an error.
    pub(crate) async fn send(
        &self,
        verb: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> hyper::Result<http::Response<Incoming>> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        send_on(stream, verb, path, headers, body).await
    }

    pub(crate) async fn ask(&self, verb: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let whole = async {
            let response = self.send(verb, path, headers, body).await.unwrap();
            let (parts, body) = response.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = String::from_utf8(body.to_vec()).unwrap();
            Answer { status: parts.status, headers: parts.headers, body }
        };
        time::timeout(SOON, whole).await.expect("an answer in time")
    }

    pub(crate) async fn initialize(&self, token: &str) -> String {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}, "sampling": {}},
            "clientInfo": {"name": "suite", "version": "1"}});
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string();
        let answer = self.ask("POST", "/mcp", &[("authorization", token)], &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let id = answer.headers["mcp-session-id"].to_str().unwrap().to_owned();
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let answer = self.ask("POST", "/mcp", &[("mcp-session-id", &id)], initialized).await;
        assert_eq!((answer.status, answer.body.as_str()), (StatusCode::ACCEPTED, ""));
        id
    }

    /// Posts a message in a session.
    pub(crate) async fn post(&self, session: &str, body: &Value) -> Answer {
        self.ask("POST", "/mcp", &[("mcp-session-id", session)], &body.to_string()).await
    }

    /// Calls a tool whose answer is plain JSON.
    pub(crate) async fn call(&self, session: &str, tool: &str, arguments: Value) -> Value {
        let answer = self.post(session, &call(1, tool, arguments)).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.headers["content-type"], "application/json");
        answer.json()
    }

    /// Posts a message, or opens the GET stream if there is none, and reads events.
    pub(crate) async fn stream(&self, session: &str, body: Option<&Value>) -> Stream {
        let verb = if body.is_some() { "POST" } else { "GET" };
        let body = body.map(Value::to_string).unwrap_or_default();
        let response = self.send(verb, "/mcp", &[("mcp-session-id", session)], &body).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Stream { body: response.into_body(), text: String::new() }
    }

    pub(crate) async fn faults(&self, faults: Value) -> Value {
        let answer = self.ask("POST", "/faults", &[], &faults.to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        answer.json()
    }

    pub(crate) async fn books(&self) -> Value {
        self.ask("GET", "/books", &[], "").await.json()
    }

    /// Waits until the books fit.
    pub(crate) async fn until(&self, fit: impl Fn(&Value) -> bool) -> Value {
        let wait = async {
            loop {
                let books = self.books().await;
                if fit(&books) {
                    return books;
                }
                time::sleep(Duration::from_millis(5)).await;
            }
        };
        time::timeout(SOON, wait).await.expect("fitting books in time")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.probe.shutdown.cancel();
    }
}

/// Sends one request on a connection that is open.
pub(crate) async fn send_on<S>(
    stream: S,
    verb: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> hyper::Result<http::Response<Incoming>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut settings = http1::Builder::new();
    let (mut sender, connection) =
        settings.max_buf_size(1 << 20).max_headers(200).handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut request = Request::builder().method(verb).uri(path).header("host", "probe.test");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    sender.send_request(request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()).await
}

/// Reads a body until it ends or breaks off: what came, and whether it ended well.
pub(crate) async fn drain(response: http::Response<Incoming>) -> (String, bool) {
    let mut body = response.into_body();
    let mut text = String::new();
    let ended = time::timeout(SOON, async {
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return false };
            text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        }
        true
    });
    let ended = ended.await.expect("an end in time");
    (text, ended)
}

pub(crate) fn call(id: u64, tool: &str, arguments: Value) -> Value {
    let mut params = json!({"name": tool, "_meta": {"progressToken": format!("t{id}")}});
    params["arguments"] = arguments;
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

pub(crate) fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer}"))
}
