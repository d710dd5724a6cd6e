//! A bounded accept loop with graceful end, plain or with mutual TLS.

use crate::identity::Identity;
use crate::peer::Peer;
use crate::socket::{self, End};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to send the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept, so that running out of descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long connections may go on once a server by [`serve`] is asked to end.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);

/// What answers requests.
pub trait App: Clone + Send + Sync + 'static {
    /// The answer to one request. `peer` opened its connection; over plain TCP there is none.
    fn answer(&self, peer: Option<Peer>, request: Request) -> impl Future<Output = Response> + Send;
}

/// Its handlers find the [`Peer`] in the request's extensions.
impl App for Router {
    async fn answer(&self, peer: Option<Peer>, mut request: Request) -> Response {
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        self.clone().oneshot(request).await.unwrap_or_else(|never| match never {})
    }
}

/// Serves `app` on `listener` until `cancel`; with an identity, over mutual TLS. At most `max_connections` are open at once; more wait to be accepted. Returns when all are closed, or
/// [`DRAIN_TIMEOUT`] after `cancel`.
pub async fn serve(
    listener: TcpListener,
    identity: Option<Identity>,
    app: impl App,
    max_connections: usize,
    cancel: CancellationToken,
) {
    serve_and_drain(listener, identity, app, max_connections, DRAIN_TIMEOUT, cancel).await;
}

/// The same as [`serve`], but connections may go on for `drain` after `cancel`.
pub async fn serve_and_drain(
    listener: TcpListener,
    identity: Option<Identity>,
    app: impl App,
    max_connections: usize,
    drain: Duration,
    cancel: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(max_connections));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let Some((stream, slot)) = accepted else { continue };
        let connection = Connection { app: app.clone(), watcher: graceful.watcher(), _slot: slot };
        match identity.clone() {
            Some(identity) => tokio::spawn(connection.run_tls(stream, identity)),
            None => tokio::spawn(connection.run_plain(stream)),
        };
    }
    drop(listener);
    if tokio::time::timeout(drain, graceful.shutdown()).await.is_err() {
        tracing::warn!("connections still open after the drain timeout are cut");
    }
}

async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            if let Err(error) = socket::tune(&stream, End::Accepted) {
                tracing::debug!(%error, "a socket without its options is used as it is");
            }
            Some((stream, slot))
        }
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// One accepted connection; its slot is free again when it is dropped.
struct Connection<A> {
    app: A,
    watcher: Watcher,
    _slot: OwnedSemaphorePermit,
}

impl<A: App> Connection<A> {
    async fn run_plain(self, stream: TcpStream) {
        self.run_http(stream, None).await;
    }

    async fn run_tls(self, stream: TcpStream, identity: Identity) {
        let handshake = TlsAcceptor::from(identity.server_config()).accept(stream);
        let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake refused"),
            Err(_) => return tracing::debug!("TLS handshake timed out"),
        };
        let peer = Peer::from_chain(stream.get_ref().1.peer_certificates());
        self.run_http(stream, Some(peer)).await;
    }

    async fn run_http<S>(self, stream: S, peer: Option<Peer>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        let app = self.app;
        let service = service_fn(move |request: http::Request<Incoming>| {
            let app = app.clone();
            // In a box, as a connection that waits for a request has no need of the room that answering one takes.
            Box::pin(async move { Ok::<_, Infallible>(app.answer(peer, request.map(Body::new)).await) })
        });
        let served = builder.serve_connection(TokioIo::new(stream), service);
        if let Err(error) = self.watcher.watch(served).await {
            tracing::debug!(%error, "connection ended early");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::tests::assert_tuned;

    #[tokio::test]
    async fn an_accepted_socket_notices_a_peer_that_vanished() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let slots = Arc::new(Semaphore::new(1));
        let (dialled, accepted) = tokio::join!(TcpStream::connect(address), accept(&listener, &slots));
        let (_dialled, (stream, _slot)) = (dialled.unwrap(), accepted.unwrap());
        assert_tuned(&stream, End::Accepted);
    }
}
