//! A leading operator that says what a test wants it to say, and remembers whom it was asked for.

use crate::world::{SERVER_UID, soon};
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use berth_net::identity::Identity;
use berth_net::peer::Peer;
use berth_net::serve::serve;
use berth_wire::{PlacementLine, ServerPlacement, SessionPlacements};
use bytes::Bytes;
use futures::stream;
use http::StatusCode;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

pub struct LeaderStand {
    pub address: SocketAddr,
    books: Arc<Books>,
    _serving: DropGuard,
}

struct Books {
    /// Asked for streams so far, those that were refused too.
    asked: watch::Sender<usize>,
    /// How many streams are refused from now on.
    refuse: Mutex<usize>,
    /// The streams that no test has taken yet.
    streams: Mutex<Vec<Told>>,
    /// Whom wakes were asked for.
    woken: watch::Sender<Vec<String>>,
    /// Wakes that may be answered.
    wakes: Semaphore,
}

impl Books {
    fn new() -> Self {
        Self {
            asked: watch::Sender::default(),
            refuse: Mutex::default(),
            streams: Mutex::default(),
            woken: watch::Sender::default(),
            wakes: Semaphore::new(0),
        }
    }
}

/// A stream from the side of the leader; it ends when this is dropped.
pub struct Told(mpsc::UnboundedSender<PlacementLine>);

impl Told {
    pub fn say(&self, line: PlacementLine) {
        self.0.send(line).unwrap();
    }

    /// The session `demo/s` has its slot in the pod at that address, or nowhere.
    pub fn place(&self, session_uid: &str, address: Option<IpAddr>) {
        let slot = |address| ServerPlacement {
            server: "github".into(),
            server_uid: SERVER_UID.into(),
            pod_uid: format!("pod-{address}"),
            address,
        };
        let servers = address.into_iter().map(slot).collect();
        let (namespace, name) = ("demo".into(), "s".into());
        let placements = SessionPlacements { uid: session_uid.into(), namespace, name, servers };
        self.say(PlacementLine::Session(placements));
    }

    /// Waits until the other end is gone.
    pub async fn left(&self) {
        soon("the stream is left", self.0.closed()).await;
    }
}

impl LeaderStand {
    pub async fn start(identity: Identity) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, books) = (listener.local_addr().unwrap(), Arc::new(Books::new()));
        let app = Router::new()
            .route("/v1/placements", get(placements))
            .route("/v1/sessions/{uid}/wake", post(wake))
            .with_state(books.clone());
        let cancel = CancellationToken::new();
        tokio::spawn(serve(listener, Some(identity), app, 100, cancel.clone()));
        Self { address, books, _serving: cancel.drop_guard() }
    }

    /// Answers that many streams with 503 first.
    pub fn refuse(&self, streams: usize) {
        *self.books.refuse.lock().unwrap() = streams;
    }

    /// The next stream that is open.
    pub async fn stream(&self) -> Told {
        let mut asked = self.books.asked.subscribe();
        let opened = async {
            loop {
                if let Some(told) = self.books.streams.lock().unwrap().pop() {
                    return told;
                }
                asked.changed().await.unwrap();
            }
        };
        soon("a stream is asked for", opened).await
    }

    pub fn asked(&self) -> usize {
        *self.books.asked.borrow()
    }

    /// Waits until wakes were asked for that often, and gives back for whom.
    pub async fn woken(&self, times: usize) -> Vec<String> {
        let mut woken = self.books.woken.subscribe();
        soon("wakes are asked for", woken.wait_for(|woken| woken.len() >= times)).await.unwrap().clone()
    }

    /// Lets that many wakes be answered.
    pub fn answer_wakes(&self, wakes: usize) {
        self.books.wakes.add_permits(wakes);
    }
}

async fn placements(
    State(books): State<Arc<Books>>,
    Extension(peer): Extension<Peer>,
    uri: http::Uri,
) -> Response {
    assert_eq!((peer, uri.query()), (Peer::Gateway, Some("watch=true")));
    let refused = {
        let mut refuse = books.refuse.lock().unwrap();
        let refused = *refuse > 0;
        *refuse = refuse.saturating_sub(1);
        refused
    };
    let (sender, receiver) = mpsc::unbounded_channel::<PlacementLine>();
    if !refused {
        books.streams.lock().unwrap().push(Told(sender));
    }
    books.asked.send_modify(|asked| *asked += 1);
    if refused {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let lines = stream::unfold(receiver, async |mut receiver| {
        let line = serde_json::to_string(&receiver.recv().await?).unwrap();
        Some((Ok::<_, Infallible>(Bytes::from(line + "\n")), receiver))
    });
    Body::from_stream(lines).into_response()
}

async fn wake(
    State(books): State<Arc<Books>>,
    Extension(peer): Extension<Peer>,
    Path(uid): Path<String>,
) -> StatusCode {
    assert_eq!(peer, Peer::Gateway);
    books.woken.send_modify(|woken| woken.push(uid));
    books.wakes.acquire().await.unwrap().forget();
    StatusCode::ACCEPTED
}
