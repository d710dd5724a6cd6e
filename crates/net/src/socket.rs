//! Options of every TCP socket: between Berth's parts, towards clients and towards upstreams.

use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// How long a socket is silent before the system asks whether the peer is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// Pause between the questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Questions without an answer after which the peer is taken for lost.
const KEEPALIVE_PROBES: u32 = 2;

/// What the system may hold of each direction of a connection, in bytes, which it doubles for its own use. By itself it would hold
/// megabytes for a peer that reads slowly, and that counts against the container's memory: many such peers could end it.
const BUFFER: usize = 256 * 1024;

/// Which end of a connection a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It sends requests, which the other end always reads at once.
    Dialled,
    /// It sends requests to a server that is not ours, which may read them slowly.
    Upstream,
    /// It sends answers, which a client may read slowly.
    Accepted,
}

impl End {
    /// How long bytes may stay unacknowledged. Linux counts the time in which a peer reads nothing too, so the ends that have
    /// slow readers are more patient.
    const fn user_timeout(self) -> Duration {
        match self {
            Self::Dialled => Duration::from_secs(20),
            Self::Upstream | Self::Accepted => Duration::from_mins(1),
        }
    }
}

/// Sets the options: no delay, bounded buffers, and an end in bounded time when the peer's node vanished without a word.
///
/// # Errors
/// What the system says to an option that it does not take.
pub fn tune(stream: &TcpStream, end: End) -> io::Result<()> {
    // Messages are small and awaited: waiting to fill a segment only adds delay.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_recv_buffer_size(BUFFER)?;
    socket.set_send_buffer_size(BUFFER)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_PROBES),
    )?;
    // Keepalive is silent while bytes are on their way; this bounds them.
    socket.set_tcp_user_timeout(Some(end.user_timeout()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    /// Asserts that the system has the options of [`tune`] for `stream`.
    pub(crate) fn assert_tuned(stream: &TcpStream, end: End) {
        let socket = SockRef::from(stream);
        assert!(stream.nodelay().unwrap() && socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_PROBES);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(end.user_timeout()));
        let (received, sent) = (socket.recv_buffer_size().unwrap(), socket.send_buffer_size().unwrap());
        assert!(received <= 2 * BUFFER && sent <= 2 * BUFFER, "{received} and {sent}");
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_is_sent_no_more_than_the_buffers_hold() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (dialled, accepted) =
            tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (silent, mut sending) = (dialled.unwrap(), accepted.unwrap().0);
        tune(&silent, End::Upstream).unwrap();
        tune(&sending, End::Accepted).unwrap();
        let (piece, mut taken) = (vec![0_u8; 64 * 1024], 0);
        while let Ok(Ok(bytes)) = timeout(Duration::from_millis(500), sending.write(&piece)).await {
            taken += bytes;
        }
        assert!(taken > 0 && taken <= 4 * BUFFER, "{taken} bytes");
    }

    #[tokio::test]
    async fn an_upstream_that_vanished_is_noticed_and_one_that_reads_slowly_is_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        tune(&stream, End::Upstream).unwrap();
        assert_tuned(&stream, End::Upstream);
        assert!(End::Upstream.user_timeout() > End::Dialled.user_timeout());
    }
}
