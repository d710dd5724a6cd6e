//! HTTP/1.1 to one upstream for one session: sockets that no other session uses.
//!
//! The pool is our own because a relay must know what a general client hides: whether a request may have been sent when
//! it failed, and when every socket is closed.

use super::body::Body;
use super::credential::Credential;
use super::dial::{DialError, Dialer};
use super::target::Target;
use super::trouble::Step;
use crate::fault;
use crate::sync::lock;
use berth_net::error::chain;
use berth_net::metrics::Held;
use berth_wire::Withheld;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use prometheus_client::metrics::gauge::Gauge;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Unused sockets that are kept for as long as they may be used again; more only for [`LINGER`].
const KEPT: usize = 4;
/// How long those that a burst of calls has left are kept for the next. So no more sockets are unused than calls ran at once.
const LINGER: Duration = Duration::from_secs(5);
/// How long an unused socket may be used again, unless the upstream asks for less.
const KEEP_ALIVE: Duration = Duration::from_mins(1);
/// Largest head of an answer, in bytes, as the gateway has it for requests.
const HEAD_MAX: usize = 64 * 1024;
/// Most headers of an answer; hyper's own bound.
const HEADERS_MAX: usize = 100;

pub(super) type Sender = SendRequest<Full<Bytes>>;

/// Why a request got no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Nothing was sent.
    #[error(transparent)]
    NotSent(#[from] DialError),
    /// The socket failed after the request may have been sent.
    #[error("the connection to the upstream was lost: {0}")]
    Lost(String),
    /// The request was answered, by a head over the bounds. Its socket is closed, which says nothing of others.
    #[error(
        "the head of the upstream's answer has more than {HEAD_MAX} bytes or {HEADERS_MAX} headers; have it send fewer or smaller ones"
    )]
    HeadTooLarge,
    /// Nothing was sent: the credential is withheld.
    #[error("{}", .0.message)]
    Withheld(Arc<Withheld>),
}

impl SendError {
    /// Why a request that may have been sent has no answer.
    fn unanswered(error: &hyper::Error) -> Self {
        if error.is_parse_too_large() { Self::HeadTooLarge } else { Self::Lost(chain(error)) }
    }
}

/// The sockets of one connection.
pub struct Transport {
    dialer: Arc<Dialer>,
    target: Target,
    credential: Arc<Credential>,
    unused: Mutex<Unused>,
    drivers: TaskTracker,
    closed: CancellationToken,
    open: Gauge,
}

/// Sockets that wait for a request.
#[derive(Default)]
struct Unused {
    /// The one used last at the end.
    sockets: Vec<Idle>,
    /// A task looks after those that are more than are kept.
    surplus: bool,
}

struct Idle {
    sender: Sender,
    since: Instant,
    until: Instant,
}

impl Transport {
    /// A transport without sockets yet; `open` counts those that it opens.
    pub fn new(dialer: Arc<Dialer>, target: Target, credential: Arc<Credential>, open: Gauge) -> Arc<Self> {
        Arc::new(Self {
            dialer,
            target,
            credential,
            unused: Mutex::default(),
            drivers: TaskTracker::new(),
            closed: CancellationToken::new(),
            open,
        })
    }

    /// Where it leads.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// What its requests carry.
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    /// Opens a socket and keeps it for the next request; says at `reached` how far it is.
    pub async fn warm(self: &Arc<Self>, reached: &(dyn Fn(Step) + Send + Sync)) -> Result<(), DialError> {
        let sender = self.open(reached).await?;
        self.keep(sender, None);
        Ok(())
    }

    /// Sends a request over an unused socket or a new one; returns when the answer's head is there. Never sends twice. `make`
    /// gives the request as it has to be at that moment: the socket it goes over is ready by then.
    pub async fn send(
        self: &Arc<Self>,
        make: impl Fn() -> Result<Request<Full<Bytes>>, SendError> + Send,
    ) -> Result<Response<Body>, SendError> {
        while let Some(mut sender) = self.take_idle() {
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(make()?).await {
                Ok(response) => return Ok(Body::wrap(response, sender, self.clone())),
                // hyper gives back only what it has not begun to write.
                Err(mut error) => {
                    if error.take_message().is_none() {
                        return Err(SendError::unanswered(error.error()));
                    }
                }
            }
        }
        let mut sender = self.open(&|_| {}).await?;
        let response = sender.send_request(make()?).await.map_err(|error| SendError::unanswered(&error))?;
        Ok(Body::wrap(response, sender, self.clone()))
    }

    /// Whether a socket is open, in use or not.
    pub fn has_sockets(&self) -> bool {
        let surplus = usize::from(lock(&self.unused).surplus);
        self.drivers.len() > surplus
    }

    /// Cuts all sockets and returns when they are closed. Nothing can be sent afterwards.
    pub async fn close(&self) {
        self.cut();
        self.drivers.close();
        self.drivers.wait().await;
    }

    /// Cuts all sockets without waiting for it.
    pub fn cut(&self) {
        self.closed.cancel();
        lock(&self.unused).sockets.clear();
    }

    /// Keeps a socket whose last answer was read to its end. `hint` is how long the upstream said that it keeps it.
    pub(super) fn keep(self: &Arc<Self>, sender: Sender, hint: Option<Duration>) {
        // A socket used in the moment in which the upstream closes it loses a request, so stay a second below its hint.
        let keep =
            hint.map_or(KEEP_ALIVE, |hint| hint.saturating_sub(Duration::from_secs(1)).min(KEEP_ALIVE));
        let now = Instant::now();
        let mut unused = lock(&self.unused);
        unused.sockets.retain(|idle| idle.until > now && !idle.sender.is_closed());
        if self.closed.is_cancelled() || sender.is_closed() || keep.is_zero() {
            return;
        }
        unused.sockets.push(Idle { sender, since: now, until: now + keep });
        if unused.sockets.len() > KEPT && !std::mem::replace(&mut unused.surplus, true) {
            self.drivers.spawn(self.clone().close_surplus());
        }
    }

    /// Closes the sockets that are more than are kept, each in its time. Runs only as long as there are such.
    async fn close_surplus(self: Arc<Self>) {
        loop {
            let due = lock(&self.unused).close_surplus(Instant::now());
            let Some(due) = due else { return };
            tokio::select! {
                () = sleep_until(due) => {}
                () = self.closed.cancelled() => return,
            }
        }
    }

    fn take_idle(&self) -> Option<Sender> {
        let now = Instant::now();
        let mut unused = lock(&self.unused);
        while let Some(Idle { sender, until, .. }) = unused.sockets.pop() {
            if until > now && !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    async fn open(&self, reached: &(dyn Fn(Step) + Send + Sync)) -> Result<Sender, DialError> {
        let target = Target { trust: self.credential.trust(), ..self.target.clone() };
        let port = target.port;
        let failed = |message: String| DialError::Connect { port, message };
        let dialled = tokio::select! {
            () = self.closed.cancelled() => return Err(failed("the session has ended".to_owned())),
            dialled = self.dialer.dial(&target, reached) => dialled?,
        };
        let held = Held::new(&self.open);
        fault::point("http");
        let (sender, connection) = Builder::new()
            .max_header_size(HEAD_MAX)
            // What is read ahead of a body counts against nobody's budget.
            .max_buf_size(HEAD_MAX)
            .handshake(TokioIo::new(dialled))
            .await
            .map_err(|error| failed(error.to_string()))?;
        let closed = self.closed.clone();
        self.drivers.spawn(async move {
            tokio::select! {
                result = connection => if let Err(error) = result {
                    tracing::debug!(error = chain(&error), "upstream socket failed");
                },
                () = closed.cancelled() => {}
            }
            // The gauge falls only after the socket, which the connection owned, is closed.
            drop(held);
        });
        Ok(sender)
    }
}

impl Unused {
    /// Closes what is surplus and due; says when the next one is.
    fn close_surplus(&mut self, now: Instant) -> Option<Instant> {
        while let Some(oldest) = self.sockets.first().filter(|_| self.sockets.len() > KEPT) {
            let due = oldest.since + LINGER;
            if due > now {
                return Some(due);
            }
            self.sockets.remove(0);
        }
        self.surplus = false;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{Carried, Connection};
    use http::HeaderMap;
    use tokio::io::{AsyncReadExt, DuplexStream};
    use tokio::sync::Notify;

    fn transport() -> Arc<Transport> {
        let dialer = Dialer::system().unwrap();
        let target = Target::parse("http://127.0.0.1:1/mcp").unwrap();
        let credential = Credential::new(Carried::Headers(Arc::new(HeaderMap::new())), None);
        Transport::new(Arc::new(dialer), target, credential, Gauge::default())
    }

    /// A socket that is kept; gives the upstream's end.
    async fn keep(transport: &Arc<Transport>) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(64);
        let (sender, connection) = Builder::new().handshake(TokioIo::new(ours)).await.unwrap();
        tokio::spawn(connection);
        transport.keep(sender, None);
        theirs
    }

    fn take_all(transport: &Transport) -> Vec<Sender> {
        std::iter::from_fn(|| transport.take_idle()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_sockets_of_a_burst_serve_the_next_and_are_closed_in_time_but_for_a_few() {
        let (transport, mut ends) = (transport(), Vec::new());
        for _ in 0..16 {
            ends.push(keep(&transport).await);
        }
        let senders = take_all(&transport);
        assert_eq!(senders.len(), 16);
        let began = Instant::now();
        for sender in senders {
            transport.keep(sender, None);
        }
        // The one taken first was kept first.
        for surplus in ends.iter_mut().rev().take(16 - KEPT) {
            assert_eq!(surplus.read(&mut [0; 1]).await.unwrap(), 0);
        }
        assert_eq!(began.elapsed(), LINGER);
        tokio::time::sleep(KEEP_ALIVE / 2).await;
        assert_eq!(take_all(&transport).len(), KEPT);
        transport.close().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_outlives_sockets_that_cannot_be_opened_as_long_as_it_has_one() {
        let (transport, mut ends) = (transport(), Vec::new());
        let connection = Connection::unused(transport.clone());
        let redirected = SendError::NotSent(DialError::Redirected("away".into()));
        let unresolved = SendError::NotSent(DialError::Resolve("no such name".into()));
        let lost = SendError::Lost("reset".into());
        let lost_by = |error| connection.is_lost_by(error);
        assert!(lost_by(&lost) && lost_by(&unresolved) && !lost_by(&redirected));
        for _ in 0..=KEPT {
            ends.push(keep(&transport).await);
        }
        assert!(
            !transport.has_sockets(),
            "who looks after the surplus is no socket, and these have no drivers"
        );
        let closed = Arc::new(Notify::new());
        let socket = closed.clone();
        let driver = transport.drivers.spawn(async move { socket.notified().await });
        assert!(lost_by(&lost) && !lost_by(&unresolved) && !lost_by(&redirected));
        closed.notify_one();
        driver.await.unwrap();
        assert!(lost_by(&unresolved), "the last one is closed");
        transport.close().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_transport_that_is_closed_waits_for_no_surplus() {
        let (transport, mut ends) = (transport(), Vec::new());
        for _ in 0..=KEPT {
            ends.push(keep(&transport).await);
        }
        let began = Instant::now();
        transport.close().await;
        for end in &mut ends {
            assert_eq!(end.read(&mut [0; 1]).await.unwrap(), 0);
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
