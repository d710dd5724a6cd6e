//! The client's side of a running call. The client may leave at any time; the call then goes on without it.

use super::answer::Answer;
use crate::budget::Charge;
use crate::session::Turn;
use berth_mcp::sse::{Event, encode};
use bytes::Bytes;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

/// Events that wait for a slow client; more make the call wait, and with it the upstream, but no other call.
const BUFFERED_EVENTS: usize = 16;

/// Where a call's answer goes.
pub(super) struct Reply {
    head: Option<oneshot::Sender<Answer>>,
    events: Option<mpsc::Sender<Bytes>>,
    /// The client takes an event stream.
    accepts_stream: bool,
    /// The call's turn, given back as soon as the call waits for its client.
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
                if let Some(turn) = &mut self.turn {
                    turn.give_back();
                }
                events.send(event).await.is_ok()
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
