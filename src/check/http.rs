//! One HTTP request without a client library: the gateway is asked one thing, in plain HTTP, and never by a name to resolve.

use http::StatusCode;
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Most of an answer that is read.
const MAX_ANSWER: u64 = 16 * 1024;
/// Most of a body that is kept for a message.
const MAX_BODY: usize = 400;

/// A POST of one JSON-RPC message.
pub struct Request<'a> {
    /// Value of the header Host.
    pub host: &'a str,
    /// Path.
    pub path: &'a str,
    /// Bearer token.
    pub token: &'a str,
    /// The message.
    pub body: &'a str,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The beginning of the body.
    pub body: String,
}

/// Sends the request and reads the answer until the other side closes.
pub async fn post(address: SocketAddr, request: &Request<'_>) -> io::Result<Answer> {
    let Request { host, path, token, body } = request;
    let text = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len(),
    );
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(text.as_bytes()).await?;
    let mut bytes = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut bytes).await?;
    read(&String::from_utf8_lossy(&bytes)).ok_or_else(|| io::Error::other("the answer is not HTTP"))
}

fn read(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    Some(Answer { status: status.parse().ok()?, body: body.chars().take(MAX_BODY).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::extract::Request as Received;
    use http_body_util::BodyExt;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_request_arrives_as_it_is_and_its_answer_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().fallback(|received: Received| async move {
            let (head, body) = received.into_parts();
            let header = |name: &str| head.headers[name].to_str().unwrap().to_owned();
            let told = [head.uri.to_string(), header("host"), header("authorization")];
            let body = body.collect().await.unwrap().to_bytes();
            (StatusCode::NOT_FOUND, format!("{told:?} {}", String::from_utf8(body.to_vec()).unwrap()))
        });
        tokio::spawn(async { axum::serve(listener, app).await });
        let request = Request { host: "gateway.test", path: "/a/b/mcp", token: "t", body: "{}" };
        let answer = post(address, &request).await.unwrap();
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
        assert!(answer.body.contains(r#"["/a/b/mcp", "gateway.test", "Bearer t"] {}"#), "{}", answer.body);
    }

    #[test]
    fn what_is_not_http_is_no_answer() {
        for text in ["", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 200 OK\r\n"] {
            assert!(read(text).is_none(), "{text}");
        }
    }
}
