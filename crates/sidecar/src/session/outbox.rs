//! The events that wait for one stream of a client. Bounded: who does not read loses the stream, and nobody else anything.

use berth_mcp::frame::TokenKey;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::mpsc;

/// Events that may wait.
const MAX_EVENTS: usize = 1024;
/// Bytes that may wait; a single event may be larger.
const MAX_BYTES: usize = 1024 * 1024;

/// The end that is written to.
pub(crate) struct Outbox {
    /// Names the stream within its session.
    pub id: u64,
    events: mpsc::Sender<Waiting>,
    waiting: Arc<AtomicUsize>,
}

/// The end that the client reads.
pub(crate) struct Inbox {
    events: mpsc::Receiver<Waiting>,
    waiting: Arc<AtomicUsize>,
}

/// An event that waits; with the client's key of it if it is a request of the server's.
type Waiting = (Bytes, Option<TokenKey>);

/// A request of the server's that a client did not read, by the client's key.
pub(crate) type Unread = (TokenKey, Bytes);

/// The stream takes no more: its client has left, or does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// Both ends of a new one.
pub(crate) fn outbox(id: u64) -> (Outbox, Inbox) {
    let (sender, receiver) = mpsc::channel(MAX_EVENTS);
    let waiting = Arc::<AtomicUsize>::default();
    (Outbox { id, events: sender, waiting: waiting.clone() }, Inbox { events: receiver, waiting })
}

impl Outbox {
    /// Adds an event, which may be a request of the server's.
    pub(crate) fn push(&self, event: Bytes, request: Option<TokenKey>) -> Result<(), Closed> {
        let size = event.len();
        let before = self.waiting.fetch_add(size, Ordering::Relaxed);
        if before > 0 && before + size > MAX_BYTES {
            return Err(Closed);
        }
        self.events.try_send((event, request)).map_err(|_| Closed)
    }

    /// Whether the client still holds the other end.
    pub(crate) fn is_open(&self) -> bool {
        !self.events.is_closed()
    }
}

impl Inbox {
    /// The next event; none when the stream is over.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        let (event, _) = self.events.recv().await?;
        self.waiting.fetch_sub(event.len(), Ordering::Relaxed);
        Some(event)
    }

    /// The requests of the server's that wait; the stream takes no more.
    pub(crate) fn unread(&mut self) -> Vec<Unread> {
        self.events.close();
        let waiting = std::iter::from_fn(|| self.events.try_recv().ok());
        waiting.filter_map(|(event, request)| Some((request?, event))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_come_in_order_and_end_with_their_writer() {
        let (outbox, mut inbox) = outbox(1);
        for text in ["a", "b"] {
            outbox.push(Bytes::from_static(text.as_bytes()), None).unwrap();
        }
        drop(outbox);
        assert_eq!((inbox.next().await, inbox.next().await), (Some("a".into()), Some("b".into())));
        assert_eq!(inbox.next().await, None);
    }

    #[tokio::test]
    async fn what_waits_is_bounded_in_bytes_and_in_number() {
        let (many, _inbox) = outbox(1);
        assert!((0..MAX_EVENTS).all(|_| many.push("x".into(), None).is_ok()));
        assert_eq!(many.push("x".into(), None), Err(Closed));
        let (large, mut inbox) = outbox(2);
        large.push(vec![0; 2 * MAX_BYTES].into(), None).expect("one event of any size");
        inbox.next().await.unwrap();
        large.push(vec![0; MAX_BYTES].into(), None).unwrap();
        assert_eq!(large.push("x".into(), None), Err(Closed));
        drop(inbox);
        assert!(!large.is_open());
    }
}
