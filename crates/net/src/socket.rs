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

/// Sets the options: no delay, and an end in bounded time when the peer's node vanished without a word.
///
/// # Errors
/// What the system says to an option that it does not take.
pub fn tune(stream: &TcpStream, end: End) -> io::Result<()> {
    // Messages are small and awaited: waiting to fill a segment only adds delay.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
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
    use tokio::net::TcpListener;

    /// Asserts that the system has the options of [`tune`] for `stream`.
    pub(crate) fn assert_tuned(stream: &TcpStream, end: End) {
        let socket = SockRef::from(stream);
        assert!(stream.nodelay().unwrap() && socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_PROBES);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(end.user_timeout()));
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
