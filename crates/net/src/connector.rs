//! Dials one peer: TCP to its pod's address, TLS checked against the name that it must have.

use crate::identity::Identity;
use crate::socket::{self, End};
use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long TCP and TLS together may take: peers are in the same cluster.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to `address`, whose certificate must have `name`.
pub(crate) async fn dial(
    address: SocketAddr,
    name: &str,
    identity: &Identity,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    let dialled = async {
        let stream = open(address).await?;
        TlsConnector::from(identity.client_config()).connect(name, stream).await
    };
    tokio::time::timeout(CONNECT_TIMEOUT, dialled).await.map_err(|_| {
        io::Error::new(io::ErrorKind::TimedOut, format!("connecting to {address} took too long"))
    })?
}

async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    socket::tune(&stream, End::Dialled)?;
    Ok(stream)
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
