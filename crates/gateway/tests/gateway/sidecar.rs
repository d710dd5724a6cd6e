//! A sidecar that answers by a script and remembers every request as it came.

use crate::world::soon;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::{Extension, Router};
use berth_net::identity::Identity;
use berth_net::peer::Peer;
use berth_net::serve::serve;
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, Method, StatusCode, header};
use http_body_util::BodyExt;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// What a request is answered with; without a script it is 200 and an empty object.
pub enum Script {
    Status(StatusCode),
    Reply(Response),
    /// An event stream of what is sent on the other end, which sees the drop of the stream as a closed channel.
    Stream(mpsc::Receiver<Bytes>),
    /// No answer at all; the other end sees the drop of the request as a closed channel.
    Hang(mpsc::Receiver<Bytes>),
}

pub struct Seen {
    pub peer: Peer,
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

#[derive(Default)]
struct Books {
    scripts: Mutex<VecDeque<Script>>,
    seen: Mutex<Vec<Seen>>,
    count: watch::Sender<usize>,
}

#[derive(Clone)]
pub struct Sidecar {
    pub address: SocketAddr,
    books: Arc<Books>,
}

impl Sidecar {
    pub async fn start(address: SocketAddr, identity: Identity) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let sidecar = Self { address: listener.local_addr().unwrap(), books: Arc::default() };
        let app = Router::new().fallback(answer).with_state(sidecar.books.clone());
        tokio::spawn(serve(listener, Some(identity), app, 100, CancellationToken::new()));
        sidecar
    }

    pub fn script(&self, script: Script) {
        self.books.scripts.lock().unwrap().push_back(script);
    }

    /// The next request gets an event stream of what is sent here.
    pub fn script_stream(&self) -> mpsc::Sender<Bytes> {
        let (sender, receiver) = mpsc::channel(1);
        self.script(Script::Stream(receiver));
        sender
    }

    pub fn count(&self) -> usize {
        *self.books.count.borrow()
    }

    /// Waits until that many requests have come.
    pub async fn reached(&self, count: usize) {
        let mut counts = self.books.count.subscribe();
        soon("the sidecar is called", counts.wait_for(|seen| *seen >= count)).await.unwrap();
    }

    /// Takes what was seen so far.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.books.seen.lock().unwrap())
    }
}

async fn answer(
    State(books): State<Arc<Books>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let (method, path) = (head.method, head.uri.to_string());
    books.seen.lock().unwrap().push(Seen { peer, method, path, headers: head.headers, body });
    let script = books.scripts.lock().unwrap().pop_front();
    books.count.send_modify(|count| *count += 1);
    match script {
        None => Response::builder()
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from("{}"))
            .unwrap(),
        Some(Script::Status(status)) => Response::builder().status(status).body(Body::empty()).unwrap(),
        Some(Script::Reply(response)) => response,
        Some(Script::Stream(receiver)) => {
            let events = stream::unfold(receiver, async |mut receiver| {
                receiver.recv().await.map(|event| (Ok::<_, Infallible>(event), receiver))
            });
            let response = Response::builder().header(header::CONTENT_TYPE, "text/event-stream");
            response.body(Body::from_stream(events)).unwrap()
        }
        Some(Script::Hang(receiver)) => {
            let _held_until_dropped = receiver;
            std::future::pending().await
        }
    }
}

/// A sidecar that takes each request and closes its connection without an answer. Gives back the count of those.
pub async fn start_losing(address: SocketAddr, identity: Identity) -> (SocketAddr, watch::Receiver<usize>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (count, counted) = watch::channel(0);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream =
                tokio_rustls::TlsAcceptor::from(identity.server_config()).accept(stream).await.unwrap();
            let read = stream.read(&mut [0; 1024]).await.unwrap();
            assert!(read > 0, "a request was sent");
            count.send_modify(|count| *count += 1);
        }
    });
    (address, counted)
}
