//! What every request is handled with.

use crate::authenticate::{Authenticator, TokenReviewer};
use crate::authorize::{AccessReviewer, Authorizer};
use crate::budget::Budget;
use crate::index::Index;
use crate::leader::wake::Waker;
use crate::metrics::{Kind, Metrics};
use berth_net::client::PeerClient;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Bounds and permissions that hold for every request.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a call waits for a place.
    pub placement_wait: Duration,
    /// How long a session that is not there is looked for: the watch may be a moment behind its creator.
    pub settle: Duration,
    /// Pause before a pod that did not accept a call is tried again, when no other place was given meanwhile.
    pub retry_pause: Duration,
    /// How long a call whose client takes event streams waits for the head of the sidecar's answer.
    pub head_wait: Duration,
    /// Port of sidecars.
    pub sidecar_port: u16,
    /// Most calls at once, streams that listen among them.
    pub max_calls: usize,
    /// Longest request body in bytes.
    pub body_max: usize,
    /// How long a client may take to send a body.
    pub body_wait: Duration,
    /// Most bytes of request bodies that are held at once, by all calls together. Shorter than `body_max`, it is the limit
    /// of a body too.
    pub body_budget: usize,
    /// How long a body waits for others to be let go.
    pub budget_wait: Duration,
    /// Origins that may call besides localhost and an allowed host's own.
    pub allowed_origins: Vec<String>,
    /// Hosts that may be asked for; empty is any.
    pub allowed_hosts: Vec<String>,
}

/// A sidecar that lives gives a client that takes event streams a head in time: to a request after 15 s, by a stream that it opens
/// if there is no answer yet, and to a message that wants none after 60 s at most. The rest is margin. Longer waits one whose
/// process is frozen while its kernel acknowledges, and that would keep the places of calls for ever.
const HEAD_WAIT: Duration = Duration::from_secs(90);

impl Default for Settings {
    fn default() -> Self {
        Self {
            placement_wait: Duration::from_secs(10),
            settle: Duration::from_secs(1),
            retry_pause: Duration::from_secs(1),
            head_wait: HEAD_WAIT,
            sidecar_port: berth_wire::SIDECAR_PORT,
            max_calls: 8000,
            body_max: 4 * 1024 * 1024,
            body_wait: Duration::from_secs(30),
            body_budget: 128 * 1024 * 1024,
            budget_wait: Duration::from_secs(1),
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
        }
    }
}

/// The end of the process as running calls see it.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    /// The end has begun: streams that only listen are closed.
    pub begun: CancellationToken,
    /// Its time is over: running calls are cut.
    pub over: CancellationToken,
}

impl Ending {
    /// What ends a call of that kind. A stream that only listens loses nothing: the client opens another at another replica.
    pub fn of(&self, kind: Kind) -> &CancellationToken {
        if kind == Kind::Get { &self.begun } else { &self.over }
    }
}

/// The seams to the API server.
pub struct Reviewers {
    /// Whose token it is.
    pub tokens: Arc<dyn TokenReviewer>,
    /// Who may connect.
    pub accesses: Arc<dyn AccessReviewer>,
}

/// The seams to Berth's other parts.
pub struct Peers {
    /// Sends calls to sidecars.
    pub sidecars: PeerClient,
    /// Asks the leading operator for sessions.
    pub waker: Waker,
}

/// Everything that requests share.
pub struct Gateway {
    pub(crate) settings: Settings,
    pub(crate) index: Arc<Index>,
    pub(crate) authenticator: Authenticator,
    pub(crate) authorizer: Authorizer,
    pub(crate) sidecars: PeerClient,
    pub(crate) waker: Waker,
    pub(crate) metrics: Metrics,
    pub(crate) budget: Budget,
    pub(crate) calls: Arc<Semaphore>,
    pub(crate) ending: Ending,
}

impl Gateway {
    /// A gateway over these parts; `index` is kept by [`crate::watch`] and [`crate::leader`].
    pub fn new(
        settings: Settings,
        index: Arc<Index>,
        reviewers: Reviewers,
        peers: Peers,
        metrics: Metrics,
        ending: Ending,
    ) -> Self {
        let calls = Arc::new(Semaphore::new(settings.max_calls.min(Semaphore::MAX_PERMITS)));
        let budget = Budget::new(settings.body_budget, settings.budget_wait, metrics.body_bytes.clone());
        Self {
            settings,
            index,
            authenticator: Authenticator::new(reviewers.tokens, metrics.clone()),
            authorizer: Authorizer::new(reviewers.accesses, metrics.clone()),
            sidecars: peers.sidecars,
            waker: peers.waker,
            budget,
            calls,
            metrics,
            ending,
        }
    }
}
