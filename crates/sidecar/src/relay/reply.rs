//! The client's side of a running call. The client may leave at any time; the call then goes on without it.

use super::answer::Answer;
use crate::budget::Charge;
use crate::session::Turn;
use berth_mcp::sse::{Event, encode};
use bytes::Bytes;
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Events that wait for a slow client; more make the call wait, and with it the upstream, but no other call.
const BUFFERED_EVENTS: usize = 16;
/// How long the client of a call that keeps its turn may take to make room: events come in bursts.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where a call's answer goes.
pub(super) struct Reply {
    head: Option<oneshot::Sender<Answer>>,
    events: Option<mpsc::Sender<Bytes>>,
    /// The client takes an event stream.
    accepts_stream: bool,
    /// The call's turn, given back once the call has waited for its client.
    turn: Option<Turn>,
}

impl Reply {
    pub(super) fn new(head: oneshot::Sender<Answer>, accepts_stream: bool) -> Self {
        Self { head: Some(head), events: None, accepts_stream, turn: None }
    }

    /// The call's turn has come: `turn` is held as long as the client keeps up.
    pub(super) fn begin(&mut self, turn: Turn) {
        self.turn = Some(turn);
    }

    /// Whether the client is there and takes a stream.
    pub(super) fn takes_stream(&self) -> bool {
        let may_open = self.accepts_stream && self.head.as_ref().is_some_and(|head| !head.is_closed());
        may_open || self.events.as_ref().is_some_and(|events| !events.is_closed())
    }

    /// Returns when the client has left an open stream.
    pub(super) async fn left(&self) {
        match &self.events {
            Some(events) => events.closed().await,
            None => std::future::pending().await,
        }
    }

    /// Answers with a stream from now on, if the client takes one.
    pub(super) fn open_stream(&mut self) {
        if let Some(head) = self.head.take_if(|_| self.accepts_stream) {
            let (events, receiver) = mpsc::channel(BUFFERED_EVENTS);
            if head.send(Answer::Stream(receiver)).is_ok() {
                self.events = Some(events);
            }
        }
    }

    /// Sends one message of the stream; `charge` is given back when the client has it. False if the client has left.
    pub(super) async fn event(&mut self, data: String, charge: Charge) -> bool {
        let Some(events) = &self.events else { return false };
        let event = Event { event: Some("message".to_owned()), data, ..Event::default() };
        let taken = match events.try_send(charge.attach(encode(&event))) {
            Ok(()) => true,
            Err(TrySendError::Closed(_)) => false,
            Err(TrySendError::Full(event)) => {
                let mut sent = std::pin::pin!(events.send(event));
                if let Ok(sent) = timeout(PATIENCE, &mut sent).await {
                    sent.is_ok()
                } else {
                    if let Some(turn) = &mut self.turn {
                        turn.give_back();
                    }
                    sent.await.is_ok()
                }
            }
        };
        if !taken {
            self.events = None;
        }
        taken
    }

    /// Tells the client to begin anew, if its answer has not begun yet; else sends the last message as any other.
    pub(super) async fn begin_anew(&mut self, text: String, charge: Charge) {
        match self.head.take() {
            Some(head) => drop(head.send(Answer::Unknown(charge.attach(text)))),
            None => self.last(text, charge).await,
        }
    }

    /// Sends the last message: as an event if the stream is open, else as JSON.
    pub(super) async fn last(&mut self, text: String, charge: Charge) {
        if let Some(head) = self.head.take() {
            let _ = head.send(Answer::Json(charge.attach(text)));
            return;
        }
        self.event(text, charge).await;
        self.events = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::session::Lanes;
    use futures::FutureExt;
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_costs_its_call_no_turn_however_events_come_and_one_that_does_not_does() {
        let (lanes, budget) = (Arc::<Lanes>::default(), Budget::mebibytes(1));
        let (head, answer) = oneshot::channel();
        let mut reply = Reply::new(head, true);
        reply.begin(lanes.enter(1, 1).unwrap());
        let mut next = lanes.enter(1, 1).unwrap();
        reply.open_stream();
        let Ok(Answer::Stream(mut events)) = answer.await else { panic!("a stream is open") };
        let burst = async {
            for _ in 0..5 * BUFFERED_EVENTS {
                assert!(reply.event("x".into(), budget.charge()).await);
            }
        };
        let read = async {
            for _ in 0..5 * BUFFERED_EVENTS {
                events.recv().await.expect("an event");
            }
        };
        tokio::join!(burst, read);
        assert!(next.come().now_or_never().is_none(), "the call has kept its turn");
        let unread = async {
            for _ in 0..=BUFFERED_EVENTS {
                reply.event("x".into(), budget.charge()).await;
            }
        };
        assert!(timeout(2 * PATIENCE, unread).await.is_err(), "nobody reads");
        assert!(next.come().now_or_never().is_some(), "its turn is the next one's");
    }
}
