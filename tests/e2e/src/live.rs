//! An answer that is read as it comes, over a connection of its own.

use bytes::Bytes;
use http::request::Builder;
use http::{HeaderMap, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Nothing that is read here is silent for longer, comments among it.
const SILENCE: Duration = Duration::from_mins(1);

/// An answer whose head is there. Dropping it closes its connection.
#[derive(Debug)]
pub struct Live {
    /// HTTP status.
    pub status: StatusCode,
    /// HTTP headers.
    pub headers: HeaderMap,
    /// Comments that came so far.
    pub comments: u32,
    body: Incoming,
    /// What came and is no whole line yet.
    rest: Vec<u8>,
    /// Lines of `data:` of the event that is under way.
    data: Vec<String>,
    ready: VecDeque<Value>,
    connection: JoinHandle<()>,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Live {
    /// Sends a request, whose URI is the whole URL, and waits for the head of its answer.
    pub async fn open(request: Builder, body: Vec<u8>) -> Result<Self, String> {
        let mut request = request.body(Full::new(Bytes::from(body))).expect("a request can be formed");
        let uri = request.uri().clone();
        let authority = uri.authority().expect("a URL has an authority").clone();
        request.headers_mut().insert("host", authority.as_str().parse().expect("a host is a header's value"));
        *request.uri_mut() = path_of(&uri);
        let stream = TcpStream::connect(authority.as_str()).await.map_err(|error| error.to_string())?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // The end of the connection shows in the answer.
        let connection = tokio::spawn(async { drop(connection.await) });
        let answer = timeout(SILENCE, sender.send_request(request)).await.expect("a head in time");
        let (head, body) = match answer {
            Ok(answer) => answer.into_parts(),
            Err(error) => {
                connection.abort();
                return Err(error.to_string());
            }
        };
        let (rest, data, ready) = (Vec::new(), Vec::new(), VecDeque::new());
        Ok(Self {
            status: head.status,
            headers: head.headers,
            comments: 0,
            body,
            rest,
            data,
            ready,
            connection,
        })
    }

    /// Whether it is an event stream.
    pub fn is_stream(&self) -> bool {
        self.headers.get("content-type").is_some_and(|t| t.as_bytes().starts_with(b"text/event-stream"))
    }

    /// The next message; none at the end, an error if the connection broke.
    pub async fn try_next(&mut self) -> Result<Option<Value>, String> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(Some(message));
            }
            let Some(bytes) = self.bytes().await? else {
                let whole = std::mem::take(&mut self.rest);
                let is_message = !self.is_stream() && !whole.is_empty();
                return Ok(is_message.then(|| serde_json::from_slice(&whole).expect("a JSON answer is JSON")));
            };
            self.rest.extend_from_slice(&bytes);
            if self.is_stream() {
                self.read_lines();
            }
        }
    }

    /// The next message of an answer that does not break; none at the end.
    pub async fn next(&mut self) -> Option<Value> {
        self.try_next().await.expect("the answer does not break")
    }

    /// All messages up to the end.
    pub async fn messages(mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(message) = self.next().await {
            messages.push(message);
        }
        messages
    }

    /// The next bytes; none at the end.
    async fn bytes(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            let frame = timeout(SILENCE, self.body.frame()).await.expect("an answer is not silent for long");
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(error.to_string()),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    fn read_lines(&mut self) {
        let Some(last) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return };
        let rest = self.rest.split_off(last + 1);
        let lines = std::mem::replace(&mut self.rest, rest);
        for line in String::from_utf8(lines).expect("events are UTF-8").lines() {
            match line.split_once(':') {
                Some(("", _)) => self.comments += 1,
                Some(("data", data)) => self.data.push(data.strip_prefix(' ').unwrap_or(data).to_owned()),
                None if line.is_empty() && !self.data.is_empty() => {
                    let data = std::mem::take(&mut self.data).join("\n");
                    self.ready.push_back(serde_json::from_str(&data).expect("an event holds JSON"));
                }
                _ => {}
            }
        }
    }
}

fn path_of(uri: &Uri) -> Uri {
    uri.path_and_query().map_or("/", |path| path.as_str()).parse().expect("a path is a URI")
}
