//! A bounded accept loop with graceful end, plain or with mutual TLS.

use crate::identity::Identity;
use crate::peer::Peer;
use crate::socket::{self, End};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use berth_wire::NOT_ACCEPTED_HEADER;
use futures::StreamExt;
use http::StatusCode;
use http::header::{CONNECTION, HeaderName, RETRY_AFTER};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to send the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept, so that running out of descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections of operators that have room beyond those of all others: some requests at once and a stream, of the leader and of
/// the one before it. Whatever gateways keep open, a sidecar takes its orders.
const FOR_OPERATORS: usize = 256;
/// How long the body may take of one that is not accepted.
const UNREAD: Duration = Duration::from_secs(5);
const NOT_ACCEPTED: HeaderName = HeaderName::from_static(NOT_ACCEPTED_HEADER);
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

/// Says to one whose connection has no place that it may come again.
#[derive(Clone)]
struct Full;

impl App for Full {
    async fn answer(&self, _: Option<Peer>, request: Request) -> Response {
        // A connection that is closed while a body comes is reset, and the answer may be lost with it.
        let mut body = request.into_body().into_data_stream();
        let _ = tokio::time::timeout(UNREAD, async { while let Some(Ok(_)) = body.next().await {} }).await;
        let headers = [(CONNECTION, "close"), (RETRY_AFTER, "1"), (NOT_ACCEPTED, "true")];
        let text = "as many connections are open as may be; try again\n";
        (StatusCode::SERVICE_UNAVAILABLE, headers, text).into_response()
    }
}

/// Serves `app` on `listener` until `cancel`; with an identity, over mutual TLS. At most `max_connections` are open at once.
/// Over plain TCP more wait to be accepted. Over mutual TLS an operator needs no place among them, and anybody else who finds
/// none gets 503. Returns when all are closed, or [`DRAIN_TIMEOUT`] after `cancel`.
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
    let beyond = if identity.is_some() { FOR_OPERATORS } else { 0 };
    let slots = Arc::new(Semaphore::new(max_connections + beyond));
    // Who a peer is shows after its handshake.
    let places = Arc::new(Semaphore::new(max_connections));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = async {
            let slot = slots.clone().acquire_owned().await.ok()?;
            Some((accept(&listener).await?, slot))
        };
        let accepted = tokio::select! {
            () = cancel.cancelled() => break,
            accepted = accepted => accepted,
        };
        let Some((stream, slot)) = accepted else { continue };
        let (app, watcher, identity) = (app.clone(), graceful.watcher(), identity.clone());
        let places = places.clone();
        tokio::spawn(async move {
            let _slot = slot;
            match identity {
                Some(identity) => run_tls(stream, identity, app, watcher, &places).await,
                None => run_http(stream, None, app, watcher).await,
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(drain, graceful.shutdown()).await.is_err() {
        tracing::warn!("connections are still open after the drain timeout, and end with the process");
    }
}

/// Serves `app` on `listener` over plain TCP until `cancel`, to whoever comes: nobody waits, but of more than `max_connections`
/// the oldest is cut. So clients that open connections and are silent keep no probe of the kubelet out, which would end the
/// process. For answers that are short.
pub async fn serve_latest(
    listener: TcpListener,
    app: impl App,
    max_connections: usize,
    cancel: CancellationToken,
) {
    let graceful = GracefulShutdown::new();
    let mut latest: VecDeque<AbortHandle> = VecDeque::with_capacity(max_connections);
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => break,
            accepted = accept(&listener) => accepted,
        };
        let Some(stream) = accepted else { continue };
        latest.retain(|connection| !connection.is_finished());
        if latest.len() >= max_connections {
            latest.pop_front().inspect(AbortHandle::abort);
        }
        let connection = run_http(stream, None, app.clone(), graceful.watcher());
        latest.push_back(tokio::spawn(connection).abort_handle());
    }
    latest.iter().for_each(AbortHandle::abort);
}

async fn accept(listener: &TcpListener) -> Option<TcpStream> {
    match listener.accept().await {
        Ok((stream, _)) => {
            if let Err(error) = socket::tune(&stream, End::Accepted) {
                tracing::debug!(%error, "a socket without its options is used as it is");
            }
            Some(stream)
        }
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

async fn run_tls(stream: TcpStream, identity: Identity, app: impl App, watcher: Watcher, places: &Semaphore) {
    let handshake = TlsAcceptor::from(identity.server_config()).accept(stream);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake refused"),
        Err(_) => return tracing::debug!("TLS handshake timed out"),
    };
    let peer = Peer::from_chain(stream.get_ref().1.peer_certificates());
    let place = (peer != Peer::Operator).then(|| places.try_acquire());
    if matches!(place, Some(Err(_))) {
        return Box::pin(run_http(stream, Some(peer), Full, watcher)).await;
    }
    run_http(stream, Some(peer), app, watcher).await;
}

async fn run_http<S>(stream: S, peer: Option<Peer>, app: impl App, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let service = service_fn(move |request: http::Request<Incoming>| {
        let app = app.clone();
        // In a box, as a connection that waits for a request has no need of the room that answering one takes.
        Box::pin(async move { Ok::<_, Infallible>(app.answer(peer, request.map(Body::new)).await) })
    });
    let served = builder.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(served).await {
        tracing::debug!(%error, "connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::tests::assert_tuned;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn an_accepted_socket_notices_a_peer_that_vanished() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (dialled, accepted) = tokio::join!(TcpStream::connect(address), accept(&listener));
        let (_dialled, stream) = (dialled.unwrap(), accepted.unwrap());
        assert_tuned(&stream, End::Accepted);
    }

    #[tokio::test]
    async fn silent_connections_keep_nobody_out_of_what_serves_the_latest() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (app, cancel) = (Router::new().route("/livez", get(|| async { "ok" })), CancellationToken::new());
        let server = tokio::spawn(serve_latest(listener, app, 4, cancel.clone()));
        let mut silent = Vec::new();
        for _ in 0..12 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        let asked = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        probe.write_all(asked).await.unwrap();
        let mut answer = String::new();
        probe.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok"), "{answer}");
        // The oldest were cut, the latest were not.
        assert_eq!(silent[0].read(&mut [0]).await.unwrap_or(0), 0);
        let mut latest = silent.pop().unwrap();
        latest.write_all(asked).await.unwrap();
        answer.clear();
        latest.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("ok"), "{answer}");
        cancel.cancel();
        server.await.unwrap();
        assert_eq!(silent[10].read(&mut [0]).await.unwrap_or(0), 0, "cut at the end");
    }
}
