//! Dials one peer: TCP to its pod's address, TLS checked against the name that it must have.

use crate::client::Target;
use crate::identity::Identity;
use crate::socket::{self, End};
use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long TCP and TLS together may take: peers are in the same cluster.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connector whose URIs come from [`Target::authority`].
#[derive(Clone)]
pub(crate) struct PeerConnector {
    identity: Identity,
}

impl PeerConnector {
    pub(crate) fn new(identity: Identity) -> Self {
        Self { identity }
    }
}

impl tower::Service<Uri> for PeerConnector {
    type Response = TokioIo<PeerStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let identity = self.identity.clone();
        Box::pin(async move {
            let (address, name) = uri
                .authority()
                .and_then(|authority| Target::parse_authority(authority.as_str()))
                .ok_or_else(|| io::Error::other("the target is not a peer's"))?;
            tokio::time::timeout(CONNECT_TIMEOUT, dial(address, name, identity)).await.map_err(|_| {
                io::Error::new(io::ErrorKind::TimedOut, format!("connecting to {address} took too long"))
            })?
        })
    }
}

async fn dial(address: SocketAddr, name: String, identity: Identity) -> io::Result<TokioIo<PeerStream>> {
    let stream = open(address).await?;
    let name = ServerName::try_from(name).map_err(io::Error::other)?;
    let stream = TlsConnector::from(identity.client_config()).connect(name, stream).await?;
    Ok(TokioIo::new(PeerStream(stream)))
}

async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    socket::tune(&stream, End::Dialled)?;
    Ok(stream)
}

/// A TLS stream that hyper's pool can hold.
pub(crate) struct PeerStream(TlsStream<TcpStream>);

impl Connection for PeerStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::tests::assert_tuned;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_dialled_socket_notices_a_peer_that_vanished() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = open(listener.local_addr().unwrap()).await.unwrap();
        assert_tuned(&stream, End::Dialled);
    }
}
