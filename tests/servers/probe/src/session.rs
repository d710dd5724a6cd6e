//! Live MCP sessions and what each remembers.

use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    io::{self, Read as _},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{digest, lock, notify::Level, rpc::Message};

/// Messages that may wait on one GET stream before pushing to it is refused.
const STREAM_CAPACITY: usize = 1024;

/// All live sessions.
#[derive(Debug)]
pub struct Sessions {
    /// Makes ids unguessable: they are digests over this and a counter.
    key: [u8; 32],
    minted: AtomicU64,
    live: Mutex<HashMap<String, Arc<Session>>>,
    lost: Mutex<HashMap<String, Loss>>,
}

/// How requests of a lost session are answered.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Loss {
    /// 404, as the protocol asks.
    #[default]
    NotFound,
    /// 400, and an error whose text speaks of the session.
    BadRequest,
    /// 200, and such an error as an event.
    Event,
}

impl Sessions {
    /// No session, and a fresh key for ids.
    pub fn new() -> io::Result<Self> {
        let mut key = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        Ok(Self { key, minted: AtomicU64::new(0), live: Mutex::default(), lost: Mutex::default() })
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

    /// Forgets a session, as a server does that was restarted; false if it was not there.
    pub fn lose(&self, id: &str, loss: Loss) -> bool {
        lock(&self.lost).insert(id.to_owned(), loss);
        self.end(id)
    }

    /// How a session was lost, if it was.
    pub fn loss(&self, id: &str) -> Option<Loss> {
        lock(&self.lost).get(id).copied()
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
    questions: HashMap<String, Question>,
    streams: Vec<mpsc::Sender<String>>,
    subscriptions: BTreeSet<String>,
    log_level: Option<Level>,
}

/// A request to the client that is not answered yet.
#[derive(Debug)]
struct Question {
    method: &'static str,
    /// Who waits; nobody does if it was an admin call that asked.
    waiting: Option<oneshot::Sender<Message>>,
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
    pub fn ask(&self, method: &'static str) -> (u64, oneshot::Receiver<Message>) {
        let (sender, receiver) = oneshot::channel();
        (self.put(Question { method, waiting: Some(sender) }), receiver)
    }

    /// The same where only the books are to have the answer.
    pub fn ask_for_the_books(&self, method: &'static str) -> u64 {
        self.put(Question { method, waiting: None })
    }

    fn put(&self, question: Question) -> u64 {
        let mut state = lock(&self.state);
        // Whoever stopped waiting left his place behind.
        state
            .questions
            .retain(|_, question| !question.waiting.as_ref().is_some_and(oneshot::Sender::is_closed));
        state.asked += 1;
        let id = state.asked;
        state.questions.insert(id.to_string(), question);
        id
    }

    /// Hands a client's response to who asked, and gives the method that was asked; none if nobody did.
    pub fn answer(&self, id: &RawValue, message: Message) -> Option<&'static str> {
        let question = lock(&self.state).questions.remove(id.get())?;
        if let Some(waiting) = question.waiting {
            waiting.send(message).ok()?;
        }
        Some(question.method)
    }

    /// Notes that the client wants to know of a resource, or no longer wants to.
    pub fn subscribe(&self, uri: &str, wanted: bool) {
        let subscriptions = &mut lock(&self.state).subscriptions;
        let _changed = if wanted { subscriptions.insert(uri.to_owned()) } else { subscriptions.remove(uri) };
    }

    /// The resources that the client wants to know of.
    pub fn subscriptions(&self) -> BTreeSet<String> {
        lock(&self.state).subscriptions.clone()
    }

    /// Sets the least level of the messages that the client wants.
    pub fn set_log_level(&self, level: Level) {
        lock(&self.state).log_level = Some(level);
    }

    /// The level it set; without one, it gets every message.
    pub fn log_level(&self) -> Option<Level> {
        lock(&self.state).log_level
    }

    /// Opens a stream for messages that belong to no call.
    pub fn open_stream(&self) -> mpsc::Receiver<String> {
        let (sender, receiver) = mpsc::channel(STREAM_CAPACITY);
        lock(&self.state).streams.push(sender);
        receiver
    }

    /// Sends messages on the newest open stream, waiting for a slow reader, and says how many it took.
    pub async fn push_all(&self, messages: &[String]) -> usize {
        let stream = {
            let mut state = lock(&self.state);
            state.streams.retain(|stream| !stream.is_closed());
            state.streams.last().cloned()
        };
        let Some(stream) = stream else { return 0 };
        for (sent, message) in messages.iter().enumerate() {
            if stream.send(message.clone()).await.is_err() {
                return sent;
            }
        }
        messages.len()
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
