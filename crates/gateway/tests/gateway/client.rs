//! A client that sees every byte of what it gets.

use crate::world::soon;
use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One connection with one request.
pub struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

/// The head of a request for a connection that is closed after the answer. `headers` are whole lines without line ends.
pub fn head(method: &str, path: &str, headers: &[&str]) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: gateway.test\r\nconnection: close\r\n");
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    head + "\r\n"
}

/// A POST of `body` as an MCP client sends it.
pub fn post(path: &str, user: &str, body: &str) -> String {
    let (length, token) =
        (format!("content-length: {}", body.len()), format!("authorization: Bearer token-{user}"));
    let accept = "accept: application/json, text/event-stream";
    head("POST", path, &[&token, "content-type: application/json", accept, &length]) + body
}

/// A GET of the stream that listens.
pub fn get(path: &str, user: &str) -> String {
    head("GET", path, &[&format!("authorization: Bearer token-{user}"), "accept: text/event-stream"])
}

impl Client {
    pub async fn send(gateway: SocketAddr, request: &str) -> Self {
        let mut stream = TcpStream::connect(gateway).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        Self { stream, received: Vec::new() }
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Reads on until `text` has come.
    pub async fn read_until(&mut self, text: &str) {
        let step = format!("{text:?} comes");
        while !String::from_utf8_lossy(&self.received).contains(text) {
            let read = soon(&step, self.stream.read_buf(&mut self.received)).await.unwrap();
            assert!(
                read > 0,
                "the connection ended before {text:?}: {}",
                String::from_utf8_lossy(&self.received)
            );
        }
    }

    /// Reads on to the end of the connection and gives back everything.
    pub async fn read_all(mut self) -> Answer {
        soon("the connection ends", self.stream.read_to_end(&mut self.received)).await.unwrap();
        Answer::of(&self.received)
    }
}

/// A whole answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// Status line and headers, without the date.
    pub head: String,
    /// What follows, with its chunks.
    pub body: String,
}

impl Answer {
    fn of(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let head: Vec<_> = head.split("\r\n").filter(|line| !line.starts_with("date: ")).collect();
        Self { status, head: head.join("\n"), body: body.to_owned() }
    }

    /// The error in an answer to no call in particular.
    pub fn error(&self) -> Value {
        self.error_of(&Value::Null)
    }

    /// The error in the answer to the call with that id.
    pub fn error_of(&self, id: &Value) -> Value {
        let body: Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!((&body["jsonrpc"], &body["id"]), (&"2.0".into(), id), "{body}");
        body["error"].clone()
    }
}
