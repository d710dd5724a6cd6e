//! The accept loops: the one place where TCP connections are born, counted and dropped.

mod counts;
mod slow;

use std::{convert::Infallible, fmt, io, sync::Arc, time::Duration};

use axum::{Router, body::Body, response::Response};
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

pub use self::counts::{Connection, ConnectionCounts, Connections, PortCounts};
use self::slow::Slow;
use crate::{Probe, app, ports::Port};

/// How long requests may go on after the server was told to end.
const GRACE: Duration = Duration::from_secs(2);

/// Put into the extensions of a response: the connection is dropped instead of answering.
#[derive(Clone, Copy, Debug)]
pub struct Abort;

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connection dropped on purpose")
    }
}

impl std::error::Error for Abort {}

/// Serves the main port until `probe.shutdown`, then lets running requests go on for a short grace.
pub async fn serve(listener: TcpListener, probe: Arc<Probe>) {
    serve_port(Port::Main, listener, probe).await;
}

/// Serves a port in the same way.
pub async fn serve_port(port: Port, listener: TcpListener, probe: Arc<Probe>) {
    let router = app::router(Arc::clone(&probe));
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = probe.shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = Arc::new(Connection::open(&probe.connections, port));
                tasks.spawn(welcome(Arc::clone(&probe), stream, connection, router.clone()));
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

/// What happens between accept and the first byte of HTTP.
async fn welcome(probe: Arc<Probe>, stream: TcpStream, connection: Arc<Connection>, router: Router) {
    let port = connection.port;
    // Small events are to leave at once.
    let _ = stream.set_nodelay(true);
    let shutdown = probe.shutdown.clone();
    let fault = probe.faults.take_accept(port);
    let mut drip = None;
    if let Some(fault) = fault {
        connection.struck();
        time::sleep(Duration::from_millis(fault.delay_ms.unwrap_or(0))).await;
        if fault.hang {
            tokio::select! { () = shutdown.cancelled() => {}, () = slow::hold(stream) => {} }
            return;
        }
        if fault.close {
            return;
        }
        drip = fault.drip_ms.map(Duration::from_millis);
    }
    if port == Port::Silent {
        tokio::select! { () = shutdown.cancelled() => {}, () = slow::swallow(stream) => {} }
        return;
    }
    let stream = Slow::new(stream, drip);
    if !port.is_tls() {
        return talk(stream, connection, router, shutdown).await;
    }
    let config = match probe.tls.config(port) {
        Ok(config) => config,
        Err(error) => return eprintln!("probe: TLS: {error}"),
    };
    let shaken = TlsAcceptor::from(config).accept(stream).await;
    connection.shook_hands(shaken.is_ok());
    if let Ok(stream) = shaken {
        talk(stream, connection, router, shutdown).await;
    }
}

async fn talk<S>(stream: S, connection: Arc<Connection>, router: Router, shutdown: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(|request| answer(router.clone(), Arc::clone(&connection), request));
    let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    // Errors are the client's going away or an `Abort`: both are ordinary here.
    tokio::select! {
        _ = served.as_mut() => return,
        () = connection.dropped() => return,
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
