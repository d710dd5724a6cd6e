//! A client scope: the state of one downstream client of a session.

use super::asked::{Asked, Book, Out, Via};
use super::outbox::{Inbox, Outbox, Unread, outbox};
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
use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
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
    /// Requests of the server's that were not read when their stream broke, for the next stream.
    unread: Vec<Unread>,
    subscriptions: HashSet<Box<str>>,
}

/// A running request.
#[derive(Clone)]
pub(crate) struct Running {
    /// Its id upstream.
    pub upstream_id: u64,
    pub flight: Arc<Flight>,
    /// How many requests of the server's it keeps waiting for the client.
    pub asking: watch::Sender<u32>,
}

/// How far a running request is.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// Told when the client has cancelled it.
    pub cancelled: Notify,
    /// The upstream may have seen it.
    pub sent: AtomicBool,
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
        let mut state = lock(&self.state);
        let abandoned = state.asked.abandon(|asked| asked.via == via);
        state.forget_unread();
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
        (state.streams, state.unread) = (Vec::new(), Vec::new());
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
        state.hand_on_unread();
        inbox
    }

    /// Hands on what was not read of a stream that is closed: to the newest one, or to the next.
    pub(crate) fn hand_on(&self, unread: Vec<Unread>) {
        let mut state = lock(&self.state);
        state.unread.extend(unread);
        state.hand_on_unread();
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
        lock(&self.state).push(event, None)
    }

    /// The same with a request of the server's, which the client knows by `key`.
    pub(crate) fn push_request(&self, event: &Bytes, key: &TokenKey) -> bool {
        lock(&self.state).push(event, Some(key))
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

    /// The resources that the client is subscribed to.
    pub(crate) fn subscriptions(&self) -> Vec<Box<str>> {
        lock(&self.state).subscriptions.iter().cloned().collect()
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

    pub(super) fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.running.is_empty()
            && state.asked.is_empty()
            && state.subscriptions.is_empty()
            && !state.streams.iter().any(Outbox::is_open)
    }
}

impl State {
    fn push(&mut self, event: &Bytes, request: Option<&TokenKey>) -> bool {
        while let Some(newest) = self.streams.last() {
            let gone = !newest.is_open();
            if newest.push(event.clone(), request.cloned()).is_ok() {
                return true;
            }
            self.streams.pop();
            // Its client is there, and reads too slowly. What is lost is lost; it sees its stream end.
            if !gone {
                return false;
            }
        }
        false
    }

    /// Sends what was not read on the newest stream, if there is one.
    fn hand_on_unread(&mut self) {
        self.forget_unread();
        for (key, event) in std::mem::take(&mut self.unread) {
            if !self.push(&event, Some(&key)) {
                self.unread.push((key, event));
            }
        }
    }

    /// Forgets those to which the server wants no answer any more.
    fn forget_unread(&mut self) {
        let asked = &self.asked;
        self.unread.retain(|(key, _)| asked.is_open(key));
        if self.unread.is_empty() {
            self.unread = Vec::new();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::fixture;
    use crate::session::Desired;
    use crate::session::scopes::tests::scope;
    use crate::upstream::{Credential, Transport};

    pub(in crate::session) fn key(text: &str) -> TokenKey {
        TokenKey::Text(text.into())
    }

    pub(in crate::session) fn running(upstream_id: u64) -> Running {
        Running { upstream_id, flight: Arc::default(), asking: watch::Sender::new(0) }
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

    #[tokio::test]
    async fn a_request_that_was_not_read_goes_to_the_newest_stream_unless_it_is_over() {
        let shared = fixture::shared();
        let desired = Desired::new(fixture::spec("Bearer first"), &shared.dialer).unwrap();
        let credential = Credential::new(desired.carried.clone(), None);
        let sockets = shared.metrics.connections.clone();
        let connection = Arc::new(Connection::unused(Transport::new(
            shared.dialer.clone(),
            desired.target.clone(),
            credential,
            sockets,
        )));
        let profile = Profile::read(r#"{"capabilities":{"elicitation":{}}}"#);
        let scope = Scope::new(ClientId::default(), profile, Known::none(), &Gauge::default());
        let ask = |id: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"elicitation/create"}}"#);
            scope.hand(&connection, &text, Via::Stream(1)).unwrap();
            assert!(scope.push_request(&Bytes::from(id.to_owned()), &TokenKey::Number(id.into())));
        };
        let leave = |id: u64, mut inbox: Inbox| {
            scope.close_stream(id);
            scope.hand_on(inbox.unread());
        };
        let (mut first, second) = (scope.open_stream(1), scope.open_stream(2));
        ask("1");
        assert!(scope.push(&Bytes::from_static(b"news")));
        leave(2, second);
        assert_eq!(first.next().await.as_deref(), Some(&b"1"[..]), "the older stream has it at once");
        ask("2");
        ask("3");
        leave(1, first);
        scope.answer(&TokenKey::Number("2".into()));
        let mut third = scope.open_stream(3);
        assert_eq!(third.next().await.as_deref(), Some(&b"3"[..]), "and no news, and nothing that is over");
        assert!(scope.push(&Bytes::from_static(b"last")));
        assert_eq!(third.next().await.as_deref(), Some(&b"last"[..]));
        ask("4");
        leave(3, third);
        assert_eq!(lock(&scope.state).unread.len(), 1);
        scope.abandon(Via::Stream(1));
        assert!(lock(&scope.state).unread.is_empty(), "nobody waits for it any more");
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
