//! The bare pair: HTTP/1.1 in, HTTP/1.1 out, mutual TLS between the two, bodies as they come.
//!
//! Each accepted connection has one of its own towards the next, kept alive with it. So there is no pool, no lookup and no
//! lock that anybody waits for: nothing between two sockets costs less and still speaks HTTP.

use crate::{Error, tls};
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{client, server};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Plain HTTP in, mutual TLS out to `to`.
pub async fn front(listener: TcpListener, to: SocketAddr, connector: TlsConnector) -> Result<(), Error> {
    loop {
        let (accepted, connector) = (accept(&listener).await?, connector.clone());
        spawn(async move {
            let name = ServerName::try_from(tls::NAME)?;
            relay(accepted, connector.connect(name, dial(to).await?).await?).await
        });
    }
}

/// Mutual TLS in, plain HTTP out to `to`.
pub async fn back(listener: TcpListener, to: SocketAddr, acceptor: TlsAcceptor) -> Result<(), Error> {
    loop {
        let (accepted, acceptor) = (accept(&listener).await?, acceptor.clone());
        spawn(async move { relay(acceptor.accept(accepted).await?, dial(to).await?).await });
    }
}

async fn accept(listener: &TcpListener) -> Result<TcpStream, Error> {
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn dial(to: SocketAddr) -> Result<TcpStream, Error> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A connection that fails is its client's to notice: the load fails then.
fn spawn(connection: impl Future<Output = Result<(), Error>> + Send + 'static) {
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            eprintln!("bench-pair: connection: {error}");
        }
    });
}

/// Passes the requests of one connection to the other until either ends.
async fn relay<I, O>(inbound: I, outbound: O) -> Result<(), Error>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    O: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = client::conn::http1::handshake(TokioIo::new(outbound)).await?;
    tokio::spawn(connection);
    // HTTP/1.1 has one request at a time, so nobody ever waits for this lock.
    let sender = Arc::new(Mutex::new(sender));
    let service = service_fn(move |request: Request<Incoming>| {
        let sender = sender.clone();
        async move {
            let mut sender = sender.lock().await;
            sender.ready().await?;
            sender.send_request(request).await
        }
    });
    server::conn::http1::Builder::new().serve_connection(TokioIo::new(inbound), service).await?;
    Ok(())
}
