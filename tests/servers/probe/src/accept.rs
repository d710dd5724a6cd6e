//! The accept loop: the one place where TCP connections are born, counted and dropped.

use std::{
    convert::Infallible,
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, response::Response};
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::{
    net::{TcpListener, TcpStream},
    time,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

use crate::{Probe, app};

/// How long requests may go on after the server was told to end.
const GRACE: Duration = Duration::from_secs(2);

/// Counts of TCP connections.
#[derive(Debug, Default)]
pub struct Connections {
    accepted: AtomicU64,
    open: AtomicU64,
    mcp_accepted: AtomicU64,
    mcp_open: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionCounts {
    /// Accepted since the last reset, whatever they carried.
    pub accepted: u64,
    /// Open now, whatever they carried.
    pub open: u64,
    /// Accepted since the last reset, and carried a request to `/mcp` (probes and admin calls do not).
    pub mcp_accepted: u64,
    /// Open now, and carried a request to `/mcp`.
    pub mcp_open: u64,
}

impl Connections {
    /// The counts now.
    pub fn counts(&self) -> ConnectionCounts {
        ConnectionCounts {
            accepted: self.accepted.load(Ordering::Relaxed),
            open: self.open.load(Ordering::Relaxed),
            mcp_accepted: self.mcp_accepted.load(Ordering::Relaxed),
            mcp_open: self.mcp_open.load(Ordering::Relaxed),
        }
    }

    /// Forgets how many were accepted; what is open stays true.
    pub fn reset(&self) {
        self.accepted.store(0, Ordering::Relaxed);
        self.mcp_accepted.store(0, Ordering::Relaxed);
    }
}

/// One open TCP connection; dropping it counts it as closed.
#[derive(Debug)]
pub struct Connection {
    counts: Arc<Connections>,
    mcp: AtomicBool,
}

impl Connection {
    fn open(counts: &Arc<Connections>) -> Self {
        counts.accepted.fetch_add(1, Ordering::Relaxed);
        counts.open.fetch_add(1, Ordering::Relaxed);
        Self { counts: Arc::clone(counts), mcp: AtomicBool::new(false) }
    }

    /// Notes that this connection carried a request to `/mcp`.
    pub fn mark_mcp(&self) {
        if !self.mcp.swap(true, Ordering::Relaxed) {
            self.counts.mcp_accepted.fetch_add(1, Ordering::Relaxed);
            self.counts.mcp_open.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
        if self.mcp.load(Ordering::Relaxed) {
            self.counts.mcp_open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Put into the extensions of a response: the connection is dropped instead of answering.
#[derive(Clone, Copy, Debug)]
pub struct Abort;

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connection dropped on purpose")
    }
}

impl std::error::Error for Abort {}

/// Serves until `probe.shutdown`, then lets running requests go on for a short grace.
pub async fn serve(listener: TcpListener, probe: Arc<Probe>) {
    let router = app::router(Arc::clone(&probe));
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = probe.shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = Connection::open(&probe.connections);
                tasks.spawn(talk(stream, connection, router.clone(), probe.shutdown.clone()));
            }
            Err(error) => pause_after(&error).await,
        }
    }
    tasks.close();
    // What still hangs after the grace is dropped with the runtime: a hung request never answers.
    let _ = time::timeout(GRACE, tasks.wait()).await;
}

/// Running out of descriptors would else make the loop spin.
async fn pause_after(error: &io::Error) {
    eprintln!("probe: accept: {error}");
    time::sleep(Duration::from_millis(50)).await;
}

async fn talk(stream: TcpStream, connection: Connection, router: Router, shutdown: CancellationToken) {
    // Small events are to leave at once.
    let _ = stream.set_nodelay(true);
    let connection = Arc::new(connection);
    let service = service_fn(|request| answer(router.clone(), Arc::clone(&connection), request));
    let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    // Errors are the client's going away or an `Abort`: both are ordinary here.
    tokio::select! {
        _ = served.as_mut() => return,
        () = shutdown.cancelled() => served.as_mut().graceful_shutdown(),
    }
    let _ = time::timeout(GRACE, served).await;
}

async fn answer(
    router: Router,
    connection: Arc<Connection>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Abort> {
    request.extensions_mut().insert(connection);
    let response: Result<_, Infallible> = router.oneshot(request.map(Body::new)).await;
    match response {
        Ok(response) if response.extensions().get::<Abort>().is_some() => Err(Abort),
        Ok(response) => Ok(response),
        Err(never) => match never {},
    }
}
