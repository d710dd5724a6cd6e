//! The real sidecar on a socket of 127.0.0.1, with its peers.

use super::client::Client;
use super::pki::Pki;
use super::upstream::Upstream;
use super::{PATIENCE, eventually, eventually_within};
use axum::body::Body;
use berth_net::client::{PeerClient, Target};
use berth_sidecar::budget::Budget;
use berth_sidecar::metrics::Metrics;
use berth_sidecar::sidecar::Sidecar;
use berth_sidecar::upstream::Dialer;
use berth_wire::{
    EndReport, Generation, Header, Limits, OnStateLost, Refusal, ServerKey, SessionReport, SessionSpec,
    Subject, TERM_HEADER, Timeouts, WatchLine,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use prometheus_client::metrics::gauge::Gauge;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// UID of the server that the sidecar under test serves.
pub const SERVER_UID: &str = "server-uid";

/// Which peer a request comes from.
#[derive(Clone, Copy, Debug)]
pub enum As {
    Operator,
    Gateway,
    Stranger,
}

/// A sidecar that runs, and its peers.
pub struct Harness {
    pub sidecar: Sidecar,
    pub metrics: Metrics,
    pub budget: Budget,
    /// Term that control requests carry.
    pub term: AtomicU64,
    whole_budget: usize,
    target: Target,
    operator: PeerClient,
    gateway: PeerClient,
    stranger: PeerClient,
    stop: CancellationToken,
}

impl Harness {
    /// A sidecar with `slots` slots.
    pub async fn start(slots: u32) -> Self {
        Self::start_with(slots, Dialer::system().unwrap(), 96).await
    }

    /// The same with a dialer of the test's own, and so many MiB for bodies.
    pub async fn start_with(slots: u32, dialer: Dialer, buffer_mib: u16) -> Self {
        let pki = Pki::new();
        let metrics = Metrics::default();
        let budget = Budget::mebibytes(buffer_mib);
        let stop = CancellationToken::new();
        let dialer = Arc::new(dialer);
        let sidecar = Sidecar::new(server(), slots, dialer, budget.clone(), metrics.clone(), stop.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target::sidecar(listener.local_addr().unwrap(), SERVER_UID);
        let app = sidecar.clone();
        tokio::spawn(berth_net::serve::serve(
            listener,
            Some(pki.sidecar(SERVER_UID).identity()),
            app,
            1024,
            stop.clone(),
        ));
        Self {
            sidecar,
            metrics,
            term: AtomicU64::new(1),
            whole_budget: budget.left(),
            budget,
            target,
            operator: PeerClient::new(pki.client(berth_wire::OPERATOR_URI).identity()),
            gateway: PeerClient::new(pki.client(berth_wire::GATEWAY_URI).identity()),
            stranger: PeerClient::new(pki.client("berth://stranger").identity()),
            stop,
        }
    }

    /// One request of a peer.
    pub async fn send(&self, peer: As, request: Request<Body>) -> Response<Incoming> {
        let client = match peer {
            As::Operator => &self.operator,
            As::Gateway => &self.gateway,
            As::Stranger => &self.stranger,
        };
        request_of(client, &self.target, request).await
    }

    /// PUTs a session that must be taken.
    pub async fn put(&self, spec: &SessionSpec) -> SessionReport {
        let (status, body) = self.try_put(spec).await;
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    /// PUTs a session that must be refused.
    pub async fn refused(&self, spec: &SessionSpec) -> Refusal {
        let (status, body) = self.try_put(spec).await;
        assert_eq!(status, StatusCode::CONFLICT);
        serde_json::from_slice(&body).unwrap()
    }

    pub async fn try_put(&self, spec: &SessionSpec) -> (StatusCode, Vec<u8>) {
        let path = format!("/v1/sessions/{}", spec.uid);
        read(self.control(Method::PUT, &path, serde_json::to_vec(spec).unwrap()).await).await
    }

    /// One control request of the operator, of the harness' term.
    pub async fn control(&self, method: Method, path: &str, body: impl Into<Body>) -> Response<Incoming> {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.header(TERM_HEADER, self.term.load(Ordering::Relaxed));
        self.send(As::Operator, request.body(body.into()).unwrap()).await
    }

    /// DELETEs a session.
    pub async fn end(&self, uid: &str, bounds: EndBounds) -> (StatusCode, EndReport) {
        let EndBounds { drain, close, wait } = bounds;
        let path = format!("/v1/sessions/{uid}?drainMillis={drain}&closeMillis={close}&waitMillis={wait}");
        let (status, body) = read(self.control(Method::DELETE, &path, Body::empty()).await).await;
        (status, serde_json::from_slice(&body).unwrap())
    }

    /// DELETEs a session and waits until it has ended.
    pub async fn end_now(&self, uid: &str) -> EndReport {
        let (status, report) = self.end(uid, EndBounds::QUICK).await;
        assert_eq!(status, StatusCode::OK);
        report
    }

    /// Every session that holds a slot.
    pub async fn list(&self) -> Vec<SessionReport> {
        self.get("/v1/sessions").await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> T {
        let (status, body) = read(self.control(Method::GET, path, Body::empty()).await).await;
        assert_eq!(status, StatusCode::OK);
        serde_json::from_slice(&body).unwrap()
    }

    /// A watch of the sessions.
    pub async fn watch(&self) -> Watch {
        let response = self.control(Method::GET, "/v1/sessions?watch=true", Body::empty()).await;
        assert_eq!(response.status(), StatusCode::OK);
        Watch { body: response.into_body(), buffer: Vec::new() }
    }

    /// A client of the session `uid` that has not sent anything yet.
    pub fn client(&self, uid: &str) -> Client<'_> {
        Client::new(self, uid)
    }

    /// A client of the session `uid` that has initialized.
    pub async fn initialized(&self, uid: &str) -> Client<'_> {
        let mut client = self.client(uid);
        client.initialize().await.expect("initialize");
        client
    }

    /// Waits until the session `uid` may try to connect again.
    pub async fn until_open(&self, uid: &str) {
        let opened = tokio::time::timeout(PATIENCE, async {
            while self
                .list()
                .await
                .iter()
                .any(|report| report.uid == uid && report.next_retry_unix_millis.is_some())
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(opened.await.is_ok(), "session {uid} may not try again");
    }

    /// Asserts that every gauge comes back to zero, and that no body is held any more.
    pub async fn assert_baseline(&self) {
        let metrics = &self.metrics;
        let gauges = || {
            [
                &metrics.sessions,
                &metrics.connections,
                &metrics.scopes,
                &metrics.requests_in_flight,
                &metrics.client_streams,
                &metrics.upstream_streams,
            ]
            .map(Gauge::get)
        };
        // An answer to `initialize` is waited for longer than all else: 30 seconds.
        eventually_within(3 * PATIENCE, "all gauges at zero", || gauges() == [0; 6]).await;
        eventually("no body is held", || self.budget.left() == self.whole_budget).await;
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The three times of a DELETE, in milliseconds.
#[derive(Clone, Copy)]
pub struct EndBounds {
    pub drain: u64,
    pub close: u64,
    pub wait: u64,
}

impl EndBounds {
    /// Long enough for an upstream that answers.
    pub const QUICK: Self = Self { drain: 5_000, close: 5_000, wait: 15_000 };
}

/// A watch that is being read.
pub struct Watch {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Watch {
    /// The next line; none when the stream has ended.
    pub async fn line(&mut self) -> Option<WatchLine> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("a line in time")?;
            self.buffer.extend(frame.unwrap().into_data().unwrap());
        }
    }

    /// The next line about a session for which `wanted` holds.
    pub async fn session(&mut self, wanted: impl Fn(&SessionReport) -> bool) -> SessionReport {
        loop {
            match self.line().await {
                Some(WatchLine::Session(report)) if wanted(&report) => return report,
                Some(_) => {}
                None => panic!("the watch ended"),
            }
        }
    }
}

/// One request of a peer to a sidecar.
pub async fn request_of(client: &PeerClient, target: &Target, request: Request<Body>) -> Response<Incoming> {
    let answered = tokio::time::timeout(PATIENCE, client.request(target, request));
    answered.await.expect("an answer in time").expect("an answer")
}

/// What the sidecar under test serves.
pub fn server() -> ServerKey {
    ServerKey { uid: SERVER_UID.into(), name: "scripted".into(), revision: "r1".into() }
}

/// A session of `upstream`, with times that no healthy test reaches.
pub fn spec(uid: &str, upstream: &Upstream) -> SessionSpec {
    SessionSpec {
        uid: uid.into(),
        display_name: format!("test/{uid}"),
        server: server(),
        generation: Generation { session: 1, server: 1 },
        subject: Subject { issuer: String::new(), name: "alice@corp.example".into() },
        upstream: berth_wire::Upstream {
            url: upstream.url(),
            tls: None,
            headers: vec![Header { name: "Authorization".into(), value: "Bearer first".into() }],
            own_credential: false,
            withheld: None,
        },
        timeouts: Timeouts {
            connect_millis: 15_000,
            request_millis: 15_000,
            request_max_millis: 30_000,
            drain_millis: 5_000,
            close_millis: 5_000,
        },
        on_state_lost: OnStateLost::default(),
        limits: Limits::default(),
        scope_key: None,
    }
}

/// Status and body of an answer.
pub async fn read(response: Response<Incoming>) -> (StatusCode, Vec<u8>) {
    let status = response.status();
    let body = tokio::time::timeout(PATIENCE, response.into_body().collect()).await.expect("a body in time");
    (status, body.unwrap().to_bytes().to_vec())
}

/// A request of the data path.
pub fn data_request(method: Method, uid: &str, scope: Option<&str>, body: impl Into<Body>) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(format!("/mcp/{uid}"));
    if let Some(scope) = scope {
        request = request.header("mcp-session-id", scope);
    }
    request.header("content-type", "application/json").body(body.into()).unwrap()
}

/// Whether it took less than `millis` since `started`.
pub fn within(started: std::time::Instant, millis: u64) -> bool {
    started.elapsed() < Duration::from_millis(millis)
}
