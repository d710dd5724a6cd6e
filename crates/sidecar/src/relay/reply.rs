//! The client's side of a running call. The client may leave at any time; the call then goes on without it.

use super::answer::Answer;
use crate::budget::Charge;
use berth_mcp::sse::{Event, encode};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

/// Events that wait for a slow client; more make the call wait, and with it the upstream.
const BUFFERED_EVENTS: usize = 16;

/// Where a call's answer goes.
pub(super) struct Reply {
    head: Option<oneshot::Sender<Answer>>,
    events: Option<mpsc::Sender<Bytes>>,
}

impl Reply {
    pub(super) fn new(head: oneshot::Sender<Answer>) -> Self {
        Self { head: Some(head), events: None }
    }

    /// Answers with a stream from now on.
    pub(super) fn open_stream(&mut self) {
        if let Some(head) = self.head.take() {
            let (events, receiver) = mpsc::channel(BUFFERED_EVENTS);
            if head.send(Answer::Stream(receiver)).is_ok() {
                self.events = Some(events);
            }
        }
    }

    /// Sends one message of the stream; `charge` is given back when the client has it.
    pub(super) async fn event(&mut self, data: String, charge: Charge) {
        let Some(events) = &self.events else { return };
        let event = Event { event: Some("message".to_owned()), data, ..Event::default() };
        if events.send(charge.attach(encode(&event))).await.is_err() {
            self.events = None;
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
