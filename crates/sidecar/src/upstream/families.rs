//! Connects to one of several addresses, of both families: one that drops packets must not hold up the others.

use berth_net::socket::{self, End};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpStream;

/// How long an attempt is waited for before the next address is tried beside it.
const HEAD_START: Duration = Duration::from_millis(250);
/// Addresses that are tried; a name with more has enough with these.
const MOST: usize = 16;

/// One round over the addresses: the first connection counts, the others are given up. If there is none, a refusal says more
/// than anything else.
pub(super) async fn connect_any(addresses: &[IpAddr], port: u16) -> io::Result<TcpStream> {
    let mut waiting = in_turns(addresses).into_iter().take(MOST).peekable();
    let mut running = FuturesUnordered::new();
    let mut worst = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    loop {
        match waiting.next() {
            Some(address) => running.push(TcpStream::connect(SocketAddr::new(address, port))),
            None if running.is_empty() => return Err(worst),
            None => {}
        }
        let ended = tokio::select! {
            biased;
            ended = running.next() => ended,
            () = tokio::time::sleep(HEAD_START), if waiting.peek().is_some() => None,
        };
        match ended {
            Some(Ok(stream)) => {
                // A stream that is silent for hours must not outlive its upstream, or what a NAT on the way remembers of it.
                if let Err(error) = socket::tune(&stream, End::Upstream) {
                    tracing::debug!(%error, "a socket without its options is used as it is");
                }
                return Ok(stream);
            }
            Some(Err(error)) if worst.kind() != io::ErrorKind::ConnectionRefused => worst = error,
            Some(Err(_)) | None => {}
        }
    }
}

/// The addresses with the families in turns, beginning with the first.
fn in_turns(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let is_first =
        |address: &&IpAddr| addresses.first().is_some_and(|first| first.is_ipv4() == address.is_ipv4());
    let (first, second): (Vec<&IpAddr>, Vec<&IpAddr>) = addresses.iter().partition(is_first);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut turns = Vec::with_capacity(addresses.len());
    loop {
        let pair = [first.next(), second.next()];
        if pair == [None, None] {
            return turns;
        }
        turns.extend(pair.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn families_take_turns() {
        let all = ["::1", "::2", "::3", "127.0.0.1", "127.0.0.2"].map(address);
        assert_eq!(in_turns(&all), ["::1", "127.0.0.1", "::2", "127.0.0.2", "::3"].map(address));
        assert!(in_turns(&[]).is_empty());
    }

    #[tokio::test]
    async fn an_upstream_that_vanished_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = connect_any(&[address("127.0.0.1")], port).await.unwrap();
        // What the options are in detail is tested where they are set.
        let socket = TcpSocket::from_std_stream(stream.into_std().unwrap());
        assert!(socket.keepalive().unwrap() && socket.nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_family_that_does_not_answer_leaves_the_other() {
        let good = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = good.local_addr().unwrap().port();
        // Nobody listens there by IPv6, whether or not this machine has it.
        let stream = connect_any(&[address("::1"), address("127.0.0.1")], port).await.unwrap();
        assert!(stream.peer_addr().unwrap().is_ipv4());
    }

    #[tokio::test]
    async fn of_two_families_the_later_one_is_connected_to_where_the_first_one_refuses() {
        let good =
            TcpListener::bind("[::1]:0").await.expect("this test needs a machine with the address ::1");
        let port = good.local_addr().unwrap().port();
        // Nobody listens there by IPv4.
        let stream = connect_any(&[address("127.0.0.1"), address("::1")], port).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good.local_addr().unwrap());
    }

    #[tokio::test]
    async fn an_address_that_drops_packets_holds_up_nobody() {
        let good = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = good.local_addr().unwrap().port();
        // Its queue is full and nobody accepts: further attempts get no answer.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(address("127.0.0.2"), port)).unwrap();
        let dead = socket.listen(1).unwrap();
        let mut queue = Vec::new();
        let fill = async {
            loop {
                queue.push(TcpStream::connect(dead.local_addr().unwrap()).await.unwrap());
            }
        };
        assert!(tokio::time::timeout(Duration::from_millis(500), fill).await.is_err());
        let both = [address("127.0.0.2"), address("127.0.0.1")];
        let stream = tokio::time::timeout(Duration::from_secs(5), connect_any(&both, port)).await;
        assert_eq!(stream.expect("in time").unwrap().peer_addr().unwrap().ip(), address("127.0.0.1"));
    }

    #[tokio::test]
    async fn of_several_errors_a_refusal_is_told() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let error = connect_any(&[address("127.0.0.1"), address("::1")], free).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let error = connect_any(&[], free).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
