//! Client scopes: the state of each downstream client of a session.

use super::asked::{Asked, Book, Out, Via};
use super::outbox::{Inbox, Outbox, outbox};
use super::profile::Profile;
use super::recover::Known;
use super::seal::ClientId;
use crate::sync::lock;
use crate::upstream::Connection;
use berth_mcp::error;
use berth_mcp::frame::{Frame, TokenKey, splice};
use berth_net::metrics::Held;
use bytes::Bytes;
use prometheus_client::metrics::gauge::Gauge;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, watch};

/// Streams that a client may have open. Each message goes to the newest alone; another one ends the oldest.
const MAX_STREAMS: usize = 4;
/// Resources that a client may be subscribed to.
const MAX_SUBSCRIPTIONS: usize = 256;
/// Longest URI of one, in bytes.
const MAX_URI: usize = 4 * 1024;

/// The state of one downstream client.
pub(crate) struct Scope {
    pub client: ClientId,
    pub profile: Profile,
    /// The state of the upstream's that the client knows of.
    pub known: Known,
    state: Mutex<State>,
    _held: Held,
}

#[derive(Default)]
struct State {
    /// Its running requests, by the client's ids.
    running: HashMap<TokenKey, Running>,
    /// The server's requests that it was handed.
    asked: Book<Arc<Connection>>,
    /// Its open streams, the newest last.
    streams: Vec<Outbox>,
    subscriptions: HashSet<Box<str>>,
}

/// A running request.
#[derive(Clone)]
pub(crate) struct Running {
    /// Its id upstream.
    pub upstream_id: u64,
    /// Told when the client has cancelled it.
    pub cancelled: Arc<Notify>,
    /// How many requests of the server's it keeps waiting for the client.
    pub asking: watch::Sender<u32>,
}

/// Why a request of the server's cannot be handed to a client; what the server is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub code: i32,
    pub message: String,
}

impl Refused {
    /// Nobody is there to take it.
    pub(crate) fn nobody() -> Self {
        let message = "no client is there to take the request".to_owned();
        Self { code: error::INVALID_REQUEST, message }
    }

    /// The client has not declared what it takes.
    pub(crate) fn undeclared(capability: &str) -> Self {
        let message = format!("the client did not declare the capability {capability:?}");
        Self { code: error::METHOD_NOT_FOUND, message }
    }

    /// The client that was to answer it has left.
    pub(crate) fn left() -> Self {
        let message = "the client left, or its call ended, without an answer".to_owned();
        Self { code: error::INVALID_REQUEST, message }
    }
}

/// A client has too many subscriptions, or one with too long a URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a client may subscribe to {MAX_SUBSCRIPTIONS} resources, whose URIs have at most {MAX_URI} bytes")]
pub(crate) struct TooManySubscriptions;

impl Scope {
    pub(crate) fn new(client: ClientId, profile: Profile, known: Known, gauge: &Gauge) -> Arc<Self> {
        Arc::new(Self { client, profile, known, state: Mutex::default(), _held: Held::new(gauge) })
    }

    /// Notes that the client's request `id` runs. If a client uses an id twice, the later one counts.
    pub(crate) fn begin(&self, id: TokenKey, running: Running) {
        lock(&self.state).running.insert(id, running);
    }

    /// Forgets a request. What the server asked the client for its sake needs no answer any more.
    pub(crate) fn finish(&self, id: &TokenKey, upstream_id: u64) {
        let mut state = lock(&self.state);
        if state.running.get(id).is_some_and(|running| running.upstream_id == upstream_id) {
            state.running.remove(id);
        }
        if state.running.is_empty() {
            // Idle clients must not keep the room of their busiest moment.
            state.running = HashMap::new();
        }
        if !state.asked.is_empty() {
            state.asked.abandon(|asked| asked.via == Via::Call(upstream_id));
        }
    }

    /// The client's running request `id`.
    pub(crate) fn running(&self, id: &TokenKey) -> Option<Running> {
        lock(&self.state).running.get(id).cloned()
    }

    /// Id upstream of the latest request that runs.
    pub(crate) fn latest_call(&self) -> Option<u64> {
        lock(&self.state).running.values().map(|running| running.upstream_id).max()
    }

    /// Notes that the client is handed the server's request `text`; gives it as the client is to have it.
    pub(crate) fn hand(&self, connection: &Arc<Connection>, text: &str, via: Via) -> Result<String, Refused> {
        let Ok(Frame::Request { id, method, .. }) = Frame::parse(text) else { return Err(Refused::nobody()) };
        self.profile.takes(&method).map_err(Refused::undeclared)?;
        let mut state = lock(&self.state);
        let call = match via {
            Via::Call(upstream_id) => {
                Some(state.running.values().find(|running| running.upstream_id == upstream_id))
            }
            Via::Stream(_) => None,
        };
        let out = match call {
            Some(None) => return Err(Refused::nobody()),
            Some(Some(running)) => Some(Out::new(&running.asking)),
            None => None,
        };
        let asked = Asked::new((connection.clone(), connection.epoch), &id, via, out);
        match state.asked.hand(asked) {
            Ok(for_client) => Ok(splice(text, [(id.span(), &for_client)])),
            Err(too_many) => Err(Refused { code: error::INVALID_REQUEST, message: too_many.to_string() }),
        }
    }

    /// Takes out the server's request that the client answers under `key`.
    pub(crate) fn answer(&self, key: &TokenKey) -> Option<Asked<Arc<Connection>>> {
        lock(&self.state).asked.answer(key)
    }

    /// Takes out the server's requests that went by `via`: nobody will answer them.
    pub(crate) fn abandon(&self, via: Via) -> Vec<Asked<Arc<Connection>>> {
        let abandoned = lock(&self.state).asked.abandon(|asked| asked.via == via);
        abandoned.into_iter().map(|(_, asked)| asked).collect()
    }

    /// Whether the server waits for an answer to a request that went by `via`.
    pub(crate) fn is_asked(&self, via: Via) -> bool {
        lock(&self.state).asked.open().any(|asked| asked.via == via)
    }

    /// What went by `via` belongs to another stream of the same client now.
    pub(crate) fn rehome(&self, via: Via, to: Via) {
        for asked in lock(&self.state).asked.open().filter(|asked| asked.via == via) {
            asked.via = to;
        }
    }

    /// Ends the scope's streams; gives the server's requests that nobody will answer.
    pub(crate) fn close(&self) -> Vec<Asked<Arc<Connection>>> {
        let mut state = lock(&self.state);
        state.streams = Vec::new();
        state.asked.abandon(|_| true).into_iter().map(|(_, asked)| asked).collect()
    }

    /// The server does not want an answer to its request `key` of connection `epoch` any more: the client's key of it, and how
    /// it went to the client.
    pub(crate) fn withdraw(&self, epoch: u64, key: &TokenKey) -> Option<(TokenKey, Via)> {
        let withdrawn = lock(&self.state).asked.abandon(|asked| asked.epoch == epoch && asked.key == *key);
        withdrawn.into_iter().next().map(|(for_client, asked)| (for_client, asked.via))
    }

    /// Opens a stream under `id`.
    pub(crate) fn open_stream(&self, id: u64) -> Inbox {
        let (outbox, inbox) = outbox(id);
        let mut state = lock(&self.state);
        state.streams.retain(Outbox::is_open);
        if state.streams.len() >= MAX_STREAMS {
            state.streams.remove(0);
        }
        state.streams.push(outbox);
        inbox
    }

    /// Ends the stream `id`, if it is still there.
    pub(crate) fn close_stream(&self, id: u64) {
        let mut state = lock(&self.state);
        state.streams.retain(|outbox| outbox.id != id);
        state.streams.shrink_to_fit();
    }

    /// Ends all streams.
    pub(crate) fn close_streams(&self) {
        lock(&self.state).streams = Vec::new();
    }

    /// The newest stream.
    pub(crate) fn stream(&self) -> Option<u64> {
        lock(&self.state).streams.iter().rev().find(|outbox| outbox.is_open()).map(|outbox| outbox.id)
    }

    /// Sends an event on the newest stream. False if there is none; one that takes no more is ended.
    pub(crate) fn push(&self, event: &Bytes) -> bool {
        let mut state = lock(&self.state);
        while let Some(newest) = state.streams.last() {
            let gone = !newest.is_open();
            if newest.push(event.clone()).is_ok() {
                return true;
            }
            state.streams.pop();
            // Its client is there, and reads too slowly. What is lost is lost; it sees its stream end.
            if !gone {
                return false;
            }
        }
        false
    }

    /// Notes that the client wants news of the resource `uri`. False if it did before.
    pub(crate) fn subscribe(&self, uri: &str) -> Result<bool, TooManySubscriptions> {
        let mut state = lock(&self.state);
        if state.subscriptions.contains(uri) {
            return Ok(false);
        }
        if uri.len() > MAX_URI || state.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            return Err(TooManySubscriptions);
        }
        Ok(state.subscriptions.insert(uri.into()))
    }

    /// The client wants no more news of `uri`.
    pub(crate) fn unsubscribe(&self, uri: &str) {
        lock(&self.state).subscriptions.remove(uri);
    }

    /// Whether the client is subscribed to `uri` itself.
    pub(crate) fn is_subscribed(&self, uri: &str) -> bool {
        lock(&self.state).subscriptions.contains(uri)
    }

    /// Whether the client wants news of `uri`: it is subscribed to it, or to what it is a part of.
    pub(crate) fn wants(&self, uri: &str) -> bool {
        let state = lock(&self.state);
        let is_part = |whole: &str| {
            let rest = uri.strip_prefix(whole);
            rest.is_some_and(|rest| whole.ends_with('/') || rest.starts_with(['/', '?', '#']))
        };
        state.subscriptions.contains(uri) || state.subscriptions.iter().any(|whole| is_part(whole))
    }

    fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.running.is_empty()
            && state.asked.is_empty()
            && state.subscriptions.is_empty()
            && !state.streams.iter().any(Outbox::is_open)
    }
}

/// Scopes that a session holds at once. Most clients leave without a DELETE, so the one unused longest gives way; its
/// client, should it come back, has it rebuilt.
pub(crate) const MAX_SCOPES: usize = 256;
/// Scopes whose end by DELETE is remembered, so that they are not rebuilt.
const MAX_CLOSED: usize = 1024;

/// The scopes of a session, by their clients.
#[derive(Default)]
pub(crate) struct Scopes {
    by_client: HashMap<ClientId, Entry>,
    /// Those that their clients ended, oldest first.
    closed: VecDeque<ClientId>,
    clock: u64,
}

struct Entry {
    scope: Arc<Scope>,
    /// Value of `clock` at its last use.
    used: u64,
}

impl Scopes {
    /// Adds a scope; false if there are too many that are in use.
    pub(crate) fn add(&mut self, scope: Arc<Scope>) -> bool {
        if self.by_client.len() >= MAX_SCOPES {
            let idle = self.by_client.iter().filter(|(_, entry)| entry.scope.is_idle());
            let Some(oldest) = idle.min_by_key(|(_, entry)| entry.used).map(|(client, _)| *client) else {
                return false;
            };
            self.by_client.remove(&oldest);
        }
        self.clock += 1;
        self.by_client.insert(scope.client, Entry { scope, used: self.clock });
        true
    }

    /// The scope of `client`, which counts as used.
    pub(crate) fn get(&mut self, client: &ClientId) -> Option<Arc<Scope>> {
        self.clock += 1;
        let entry = self.by_client.get_mut(client)?;
        entry.used = self.clock;
        Some(entry.scope.clone())
    }

    /// All, the one used last first.
    pub(crate) fn latest_first(&self) -> Vec<Arc<Scope>> {
        let mut entries: Vec<_> = self.by_client.values().collect();
        entries.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.used));
        entries.into_iter().map(|entry| entry.scope.clone()).collect()
    }

    /// Whether `client` ended its scope.
    pub(crate) fn is_closed(&self, client: &ClientId) -> bool {
        self.closed.contains(client)
    }

    /// Ends the scope of `client`, which is not to be rebuilt; gives it if there was one.
    pub(crate) fn close(&mut self, client: ClientId) -> Option<Arc<Scope>> {
        if self.closed.len() >= MAX_CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back(client);
        self.by_client.remove(&client).map(|entry| entry.scope)
    }

    /// Ends all.
    pub(crate) fn clear(&mut self) {
        for entry in self.by_client.values() {
            entry.scope.close_streams();
        }
        self.by_client = HashMap::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> TokenKey {
        TokenKey::Text(text.into())
    }

    fn running(upstream_id: u64) -> Running {
        Running { upstream_id, cancelled: Arc::default(), asking: watch::Sender::new(0) }
    }

    fn scope(number: usize, gauge: &Gauge) -> Arc<Scope> {
        Scope::new(client(number), Profile::read("{}"), Known::none(), gauge)
    }

    fn client(number: usize) -> ClientId {
        let mut client = [0; 16];
        client[..8].copy_from_slice(&number.to_be_bytes());
        client
    }

    #[test]
    fn a_running_request_is_found_until_it_is_finished() {
        let scope = scope(1, &Gauge::default());
        scope.begin(key("1"), running(10));
        scope.begin(key("1"), running(11));
        scope.finish(&key("1"), 10);
        assert_eq!(scope.running(&key("1")).map(|running| running.upstream_id), Some(11));
        assert_eq!(scope.latest_call(), Some(11));
        scope.finish(&key("1"), 11);
        assert!(scope.running(&key("1")).is_none() && scope.is_idle());
    }

    #[test]
    fn the_idle_scope_unused_longest_gives_way() {
        let (gauge, mut scopes) = (Gauge::default(), Scopes::default());
        for number in 0..MAX_SCOPES {
            assert!(scopes.add(scope(number, &gauge)));
        }
        scopes.get(&client(0)).unwrap().begin(key("call"), running(1));
        scopes.get(&client(1));
        for number in 2..MAX_SCOPES {
            scopes.get(&client(number));
        }
        assert!(scopes.add(scope(MAX_SCOPES, &gauge)));
        assert!(scopes.get(&client(0)).is_some(), "a scope with a running request stays");
        assert!(scopes.get(&client(1)).is_none() && scopes.get(&client(2)).is_some());
        assert_eq!(scopes.latest_first()[0].client, client(2));
        assert_eq!(usize::try_from(gauge.get()).unwrap(), MAX_SCOPES);
        let all = scopes.latest_first();
        for scope in &all {
            scope.subscribe("a").unwrap();
        }
        assert!(!scopes.add(scope(MAX_SCOPES + 1, &gauge)), "none gives way while in use");
        drop(all);
        scopes.clear();
        assert_eq!(gauge.get(), 0);
    }

    #[test]
    fn an_end_by_delete_is_remembered_up_to_a_bound() {
        let (gauge, mut scopes) = (Gauge::default(), Scopes::default());
        scopes.add(scope(0, &gauge));
        assert!(scopes.close(client(0)).is_some() && scopes.close(client(1)).is_none());
        assert!(scopes.is_closed(&client(0)) && scopes.get(&client(0)).is_none());
        for number in 2..=MAX_CLOSED {
            scopes.close(client(number));
        }
        assert!(!scopes.is_closed(&client(0)) && scopes.is_closed(&client(1)));
        assert_eq!((scopes.closed.len(), gauge.get()), (MAX_CLOSED, 0));
    }

    #[tokio::test]
    async fn messages_go_to_the_newest_stream_and_a_slow_reader_loses_it() {
        let scope = scope(1, &Gauge::default());
        let event = Bytes::from(vec![b'x'; 600 * 1024]);
        assert!(!scope.push(&event) && scope.stream().is_none());
        let (mut first, second) = (scope.open_stream(1), scope.open_stream(2));
        assert!(scope.push(&event));
        drop(second);
        assert!(scope.push(&event), "the older one is left");
        assert_eq!((first.next().await, scope.stream()), (Some(event.clone()), Some(1)));
        assert!(scope.push(&event) && !scope.push(&event), "what waits is bounded");
        assert_eq!((first.next().await, first.next().await), (Some(event), None));
        let streams = [(); 6].map(|()| scope.open_stream(3));
        assert_eq!(lock(&scope.state).streams.len(), MAX_STREAMS);
        drop(streams);
    }

    #[test]
    fn subscriptions_are_bounded_in_number_and_size() {
        let scope = scope(1, &Gauge::default());
        for number in 0..MAX_SUBSCRIPTIONS {
            assert_eq!(scope.subscribe(&number.to_string()), Ok(true));
        }
        assert_eq!(scope.subscribe("0"), Ok(false));
        assert_eq!(scope.subscribe("one more"), Err(TooManySubscriptions));
        scope.unsubscribe("0");
        assert_eq!(scope.subscribe(&"x".repeat(MAX_URI + 1)), Err(TooManySubscriptions));
        assert!(!scope.is_subscribed("0") && scope.is_subscribed("1"));
        scope.subscribe("a://b").unwrap();
        for (uri, wanted) in
            [("a://b", true), ("a://b/c", true), ("a://b#c", true), ("a://bc", false), ("a:", false)]
        {
            assert_eq!(scope.wants(uri), wanted, "{uri}");
        }
    }
}
