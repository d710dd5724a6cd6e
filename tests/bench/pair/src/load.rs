//! The client of all ways: a closed loop over connections that are kept, told by HTTP what to send, and how long.

use crate::Error;
use crate::percentile::percentile;
use bytes::Bytes;
use futures::future::try_join_all;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{client, server};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Stands in a [`Run`]'s body where each connection writes its number, as ids are to differ.
pub const NUMBER: &str = "000000";
/// Most of an answer that a failure shows.
const SHOWN: usize = 300;

/// One POST.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Post {
    /// Where to.
    pub to: SocketAddr,
    /// Path of the URL.
    pub path: String,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: String,
}

/// The answer to one POST.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers that are text.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: String,
}

/// The same POST again and again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// What is sent.
    pub post: Post,
    /// What each answer must contain.
    pub expect: String,
    /// Connections, each with one call at a time.
    pub connections: u16,
    /// How long.
    pub millis: u64,
}

/// What came of a [`Run`]. Each connection has opened and made one call before the time began.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ran {
    /// Calls answered as expected.
    pub calls: u64,
    /// From the first call to the last answer.
    pub nanos: u64,
    /// The time that half of the calls took at most.
    pub p50_nanos: u64,
    /// The time that 99 of 100 calls took at most.
    pub p99_nanos: u64,
}

/// Serves `POST /once` ([`Post`] to [`Answer`]) and `POST /run` ([`Run`] to [`Ran`]). One call that fails fails the whole.
pub async fn serve(listener: TcpListener) -> Result<(), Error> {
    loop {
        let (stream, _) = listener.accept().await?;
        let served =
            server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(told));
        tokio::spawn(served);
    }
}

async fn told(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match act(request).await {
        Ok(done) => (StatusCode::OK, done),
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error}\n")),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    Ok(response)
}

async fn act(request: Request<Incoming>) -> Result<String, Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    match (head.method, head.uri.path()) {
        (Method::POST, "/once") => Ok(serde_json::to_string(&once(&serde_json::from_slice(&body)?).await?)?),
        (Method::POST, "/run") => Ok(serde_json::to_string(&run(&serde_json::from_slice(&body)?).await?)?),
        (method, path) => Err(format!("there is no {method} {path}").into()),
    }
}

/// Sends one POST on a connection of its own.
pub async fn once(post: &Post) -> Result<Answer, Error> {
    let answer = Client::open(post, "").await?.call().await?;
    let text = |value: &http::HeaderValue| value.to_str().ok().map(str::to_owned);
    let headers = answer.headers().iter().filter_map(|(name, value)| Some((name.to_string(), text(value)?)));
    Ok(Answer {
        status: answer.status().as_u16(),
        headers: headers.collect(),
        body: String::from_utf8_lossy(answer.body()).into_owned(),
    })
}

/// Sends until the time is over.
pub async fn run(run: &Run) -> Result<Ran, Error> {
    let open = (0..run.connections).map(|number| async move {
        let mut client = Client::open(&run.post, &format!("{number:06}")).await?;
        client.call_expecting(&run.expect).await?;
        Ok::<_, Error>(client)
    });
    let clients = try_join_all(open).await?;
    let began = Instant::now();
    let end = began + Duration::from_millis(run.millis);
    let expect: Arc<str> = run.expect.as_str().into();
    // Tasks, since a joined future would be looked at whenever any of the others moves.
    let mut running = JoinSet::new();
    for client in clients {
        running.spawn(client.repeat(expect.clone(), end));
    }
    let mut took = Vec::new();
    while let Some(ended) = running.join_next().await {
        took.extend(ended??);
    }
    let nanos = as_nanos(began.elapsed());
    took.sort_unstable();
    Ok(Ran {
        calls: took.len() as u64,
        nanos,
        p50_nanos: percentile(&took, 50),
        p99_nanos: percentile(&took, 99),
    })
}

/// One connection and the request that it repeats.
struct Client {
    sender: client::conn::http1::SendRequest<Full<Bytes>>,
    request: Request<Bytes>,
}

impl Client {
    async fn open(post: &Post, number: &str) -> Result<Self, Error> {
        let stream = TcpStream::connect(post.to).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = Request::post(&post.path).header("host", post.to.to_string());
        for (name, value) in &post.headers {
            request = request.header(name, value);
        }
        let body = if number.is_empty() { post.body.clone() } else { post.body.replacen(NUMBER, number, 1) };
        Ok(Self { sender, request: request.body(Bytes::from(body))? })
    }

    async fn call(&mut self) -> Result<Response<Bytes>, Error> {
        self.sender.ready().await?;
        let answer = self.sender.send_request(self.request.clone().map(Full::new)).await?;
        let (head, body) = answer.into_parts();
        Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
    }

    async fn call_expecting(&mut self, expect: &str) -> Result<(), Error> {
        let answer = self.call().await?;
        let text = std::str::from_utf8(answer.body())?;
        if answer.status() == StatusCode::OK && text.contains(expect) {
            return Ok(());
        }
        let shown: String = text.chars().take(SHOWN).collect();
        Err(format!("an answer that is not expected: {} {shown}", answer.status()).into())
    }

    /// Calls until `end`; the nanoseconds that each took.
    async fn repeat(mut self, expect: Arc<str>, end: Instant) -> Result<Vec<u64>, Error> {
        let mut took = Vec::new();
        let mut now = Instant::now();
        while now < end {
            self.call_expecting(&expect).await?;
            let answered = Instant::now();
            took.push(as_nanos(answered - now));
            now = answered;
        }
        Ok(took)
    }
}

fn as_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
