//! Open connections to peers, each for one request at a time.
//!
//! A connection is put back as soon as the head of an answer has come over it. The rest of the answer may still be on its way:
//! whoever wants a connection asks it whether it is free.

use crate::client::Target;
use axum::body::Body;
use hyper::client::conn::http1::SendRequest;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// How long after the head of its last answer a connection is used again: together with [`SWEEP`] less than [`crate::serve`]
/// waits for the head of a next request, so that this side closes first and no request meets a closing connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// How often unused connections are looked for.
const SWEEP: Duration = Duration::from_secs(5);

/// Sends the requests of one connection.
pub(crate) type Sender = SendRequest<Body>;

/// The connections of one client.
#[derive(Default)]
pub(crate) struct Pool {
    /// They are swept as long as there is a peer in here.
    peers: Mutex<HashMap<Target, Vec<Open>>>,
}

struct Open {
    sender: Sender,
    /// When the head of its last answer came.
    used: Instant,
}

impl Pool {
    /// A free connection to `target`, the one used last first.
    pub(crate) fn take(&self, target: &Target) -> Option<Sender> {
        let now = Instant::now();
        let mut peers = self.peers();
        let open = peers.get_mut(target)?;
        let free = open.iter().rposition(|one| one.sender.is_ready() && !one.is_old(now))?;
        Some(open.remove(free).sender)
    }

    /// Puts back a connection to `target` over which an answer has begun to come.
    pub(crate) fn put(self: &Arc<Self>, target: &Target, sender: Sender) {
        let open = Open { sender, used: Instant::now() };
        let mut peers = self.peers();
        if peers.is_empty() {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
        match peers.get_mut(target) {
            Some(others) => others.push(open),
            None => drop(peers.insert(target.clone(), vec![open])),
        }
    }

    /// Closes what is unused for too long. False once nothing is left.
    fn close_old(&self) -> bool {
        let now = Instant::now();
        let mut peers = self.peers();
        peers.retain(|_, open| {
            open.retain(|one| !(one.sender.is_closed() || one.sender.is_ready() && one.is_old(now)));
            !open.is_empty()
        });
        !peers.is_empty()
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<Target, Vec<Open>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn is_old(&self, now: Instant) -> bool {
        now.duration_since(self.used) >= IDLE_TIMEOUT
    }
}

async fn sweep(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        if !pool.upgrade().is_some_and(|pool| pool.close_old()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use http_body_util::BodyExt;
    use hyper::body::Incoming;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n";

    fn target(port: u16) -> Target {
        Target::sidecar(([127, 0, 0, 1], port).into(), "uid")
    }

    /// A connection and the peer's end of it.
    async fn open() -> (Sender, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(ours)).await.unwrap();
        tokio::spawn(connection);
        (sender, theirs)
    }

    /// Sends a request of which the peer answers only the head.
    async fn begin(sender: &mut Sender, peer: &mut DuplexStream) -> Response<Incoming> {
        let answer = async {
            assert!(peer.read(&mut [0; 1024]).await.unwrap() > 0);
            peer.write_all(HEAD).await.unwrap();
        };
        let (answered, ()) = tokio::join!(sender.send_request(Request::new(Body::empty())), answer);
        answered.unwrap()
    }

    /// Lets the peer send the rest, and reads it.
    async fn finish(answer: Response<Incoming>, peer: &mut DuplexStream) {
        peer.write_all(b"x").await.unwrap();
        answer.into_body().collect().await.unwrap();
    }

    /// Returns once the connection behind `peer` is closed.
    async fn closed(peer: &mut DuplexStream) {
        assert_eq!(peer.read(&mut [0; 1]).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_used_again_by_its_own_peer_once_its_answer_is_over() {
        let (pool, (mut sender, mut peer)) = (Arc::<Pool>::default(), open().await);
        let answer = begin(&mut sender, &mut peer).await;
        pool.put(&target(1), sender);
        assert!(pool.take(&target(1)).is_none(), "its answer is still on its way");
        finish(answer, &mut peer).await;
        assert!(pool.take(&target(2)).is_none(), "it leads elsewhere");
        let mut again = pool.take(&target(1)).expect("it is free");
        assert!(pool.take(&target(1)).is_none(), "it is taken");
        let answer = begin(&mut again, &mut peer).await;
        finish(answer, &mut peer).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_connection_is_closed_in_time_and_a_busy_one_is_not() {
        let (pool, began) = (Arc::<Pool>::default(), Instant::now());
        let ((mut sender, mut peer), (mut busy, mut listened)) = (open().await, open().await);
        let (answer, stream) = (begin(&mut sender, &mut peer).await, begin(&mut busy, &mut listened).await);
        finish(answer, &mut peer).await;
        pool.put(&target(1), sender);
        pool.put(&target(1), busy);
        closed(&mut peer).await;
        assert!((IDLE_TIMEOUT..=IDLE_TIMEOUT + SWEEP).contains(&began.elapsed()), "{:?}", began.elapsed());
        finish(stream, &mut listened).await;
        assert!(pool.take(&target(1)).is_none(), "nobody knows for how long it has been free");
        closed(&mut listened).await;
        assert!(pool.peers().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn with_the_pool_its_connections_are_closed() {
        let (pool, (mut sender, mut peer)) = (Arc::<Pool>::default(), open().await);
        let answer = begin(&mut sender, &mut peer).await;
        finish(answer, &mut peer).await;
        pool.put(&target(1), sender);
        let began = Instant::now();
        drop(pool);
        closed(&mut peer).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
