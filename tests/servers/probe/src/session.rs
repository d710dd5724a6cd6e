//! Live MCP sessions and what each remembers.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read as _},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::{Value, value::RawValue};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{digest, lock, rpc::Message};

/// Messages that may wait on one GET stream before pushing to it is refused.
const STREAM_CAPACITY: usize = 1024;

/// All live sessions.
#[derive(Debug)]
pub struct Sessions {
    /// Makes ids unguessable: they are digests over this and a counter.
    key: [u8; 32],
    minted: AtomicU64,
    live: Mutex<HashMap<String, Arc<Session>>>,
}

impl Sessions {
    /// No session, and a fresh key for ids.
    pub fn new() -> io::Result<Self> {
        let mut key = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        Ok(Self { key, minted: AtomicU64::new(0), live: Mutex::default() })
    }

    /// Starts a session.
    pub fn mint(&self, capabilities: Value, authorization: String) -> Arc<Session> {
        let number = self.minted.fetch_add(1, Ordering::Relaxed);
        let seed = [self.key.as_slice(), &number.to_be_bytes()].concat();
        let mut id = digest::hex(&seed);
        id.truncate(32);
        let session = Arc::new(Session {
            id: id.clone(),
            capabilities,
            authorization_at_initialize: authorization,
            ended: CancellationToken::new(),
            state: Mutex::default(),
        });
        lock(&self.live).insert(id, Arc::clone(&session));
        session
    }

    /// The live session with this id.
    pub fn get(&self, id: &str) -> Option<Arc<Session>> {
        lock(&self.live).get(id).cloned()
    }

    /// All live sessions.
    pub fn all(&self) -> Vec<Arc<Session>> {
        lock(&self.live).values().cloned().collect()
    }

    /// Ends a session: its calls are interrupted and its streams close. False if it was not there.
    pub fn end(&self, id: &str) -> bool {
        let ended = lock(&self.live).remove(id);
        ended.inspect(|session| session.ended.cancel()).is_some()
    }
}

/// One live session.
#[derive(Debug)]
pub struct Session {
    /// The value of `Mcp-Session-Id`.
    pub id: String,
    /// What the client declared at `initialize`.
    pub capabilities: Value,
    /// Digest of the credential that `initialize` carried.
    pub authorization_at_initialize: String,
    /// Cancelled when the session ends.
    pub ended: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    remembered: Option<String>,
    count: u64,
    asked: u64,
    calls: HashMap<String, CancellationToken>,
    questions: HashMap<String, oneshot::Sender<Message>>,
    streams: Vec<mpsc::Sender<String>>,
}

impl Session {
    /// Keeps a value for [`Session::recall`].
    pub fn remember(&self, value: String) {
        lock(&self.state).remembered = Some(value);
    }

    /// The value kept last.
    pub fn recall(&self) -> Option<String> {
        lock(&self.state).remembered.clone()
    }

    /// Counts one, and says how many there were.
    pub fn count(&self) -> u64 {
        let mut state = lock(&self.state);
        state.count += 1;
        state.count
    }

    /// Notes a running call; it ends with the guard, and the token is cancelled by the caller's
    /// cancellation or by the end of the session.
    pub fn start_call(self: &Arc<Self>, id: &RawValue) -> RunningCall {
        let cancel = self.ended.child_token();
        lock(&self.state).calls.insert(id.get().to_owned(), cancel.clone());
        RunningCall { session: Arc::clone(self), id: id.get().to_owned(), cancel }
    }

    /// Cancels a running call by its raw id; false if none runs under it.
    pub fn cancel_call(&self, id: &str) -> bool {
        let call = lock(&self.state).calls.get(id).cloned();
        call.inspect(CancellationToken::cancel).is_some()
    }

    /// Calls that run now.
    pub fn in_flight(&self) -> usize {
        lock(&self.state).calls.len()
    }

    /// A new request id for the client and the place where its answer will arrive. Every session
    /// counts from 1, so ids of different sessions collide: who relays them has to tell them apart.
    pub fn ask(&self) -> (u64, oneshot::Receiver<Message>) {
        let (sender, receiver) = oneshot::channel();
        let mut state = lock(&self.state);
        // Whoever stopped waiting left his place behind.
        state.questions.retain(|_, question| !question.is_closed());
        state.asked += 1;
        let id = state.asked;
        state.questions.insert(id.to_string(), sender);
        (id, receiver)
    }

    /// Hands a client's response to who asked; false if nobody did.
    pub fn answer(&self, id: &RawValue, message: Message) -> bool {
        let question = lock(&self.state).questions.remove(id.get());
        question.is_some_and(|question| question.send(message).is_ok())
    }

    /// Opens a stream for messages that belong to no call.
    pub fn open_stream(&self) -> mpsc::Receiver<String> {
        let (sender, receiver) = mpsc::channel(STREAM_CAPACITY);
        lock(&self.state).streams.push(sender);
        receiver
    }

    /// Sends a message on the newest open stream, and on that one only; false if none takes it.
    pub fn push(&self, message: &str) -> bool {
        let mut state = lock(&self.state);
        state.streams.retain(|stream| !stream.is_closed());
        state.streams.last().is_some_and(|stream| stream.try_send(message.to_owned()).is_ok())
    }

    /// Streams that are open now.
    pub fn streams(&self) -> usize {
        let mut state = lock(&self.state);
        state.streams.retain(|stream| !stream.is_closed());
        state.streams.len()
    }
}

/// Guard of a call that runs.
#[derive(Debug)]
pub struct RunningCall {
    session: Arc<Session>,
    id: String,
    /// Cancelled when the call is to stop.
    pub cancel: CancellationToken,
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        lock(&self.session.state).calls.remove(&self.id);
    }
}
