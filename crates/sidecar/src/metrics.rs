//! Metrics of a sidecar. Gauges are only moved through [`berth_net::metrics::Held`], so every path, a panic too, brings them back.

use berth_wire::Failure;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The metrics; clones share them.
#[derive(Clone, Default)]
pub struct Metrics {
    /// Sessions whose slot is held.
    pub sessions: Gauge,
    /// Open sockets to upstreams.
    pub connections: Gauge,
    /// Client scopes.
    pub scopes: Gauge,
    /// Client requests that are being relayed.
    pub requests_in_flight: Gauge,
    /// Open streams of clients, for what the server says outside of calls.
    pub client_streams: Gauge,
    /// Open streams of upstreams, for the same.
    pub upstream_streams: Gauge,
    /// Messages to upstreams that were dropped, as too many of a session were on their way.
    pub outgoing_dropped: Counter,
    server_requests: Family<ServerRequestLabels, Counter>,
    connects: Family<ConnectLabels, Counter>,
    control_accepted: Family<ControlLabels, Counter>,
    control_refused: Family<ControlLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControlLabels {
    verb: Verb,
}

/// What the operator asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Verb {
    /// To hold a session.
    Put,
    /// To end one.
    Delete,
    /// To tell of all.
    Get,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServerRequestLabels {
    result: ServerRequest,
}

/// What became of a request of a server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum ServerRequest {
    /// A client has it.
    Handed,
    /// It was refused as no client can take it.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConnectLabels {
    result: ConnectResult,
}

/// How an attempt to connect ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum ConnectResult {
    /// It was established and is used.
    Connected,
    /// It came too late: the session had begun to end.
    Late,
    /// The session began to end before anything was sent.
    Abandoned,
    /// 401 or 403.
    Unauthorized,
    /// Not finished within the connect timeout.
    InitializeTimeout,
    /// The answer was not MCP.
    ProtocolError,
    /// 429.
    RateLimited,
    /// No connection, or a server error.
    UpstreamUnreachable,
    /// The certificate is not trusted.
    TlsUntrusted,
    /// The credential was withheld meanwhile.
    Withheld,
}

impl From<Failure> for ConnectResult {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unauthorized => Self::Unauthorized,
            Failure::InitializeTimeout => Self::InitializeTimeout,
            Failure::ProtocolError => Self::ProtocolError,
            Failure::RateLimited => Self::RateLimited,
            Failure::UpstreamUnreachable => Self::UpstreamUnreachable,
            Failure::TLSUntrusted => Self::TlsUntrusted,
            Failure::InvalidSpec
            | Failure::RefNotFound
            | Failure::RefNotPermitted
            | Failure::InvalidCredential => Self::Withheld,
        }
    }
}

impl Metrics {
    /// Metrics that `registry` shows under `berth_sidecar_`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let ours = registry.sub_registry_with_prefix("berth_sidecar");
        ours.register("sessions", "Sessions whose slot is held", metrics.sessions.clone());
        ours.register("connections", "Open sockets to upstreams", metrics.connections.clone());
        ours.register("scopes", "Client scopes", metrics.scopes.clone());
        ours.register(
            "requests_in_flight",
            "Client requests being relayed",
            metrics.requests_in_flight.clone(),
        );
        let streams = metrics.client_streams.clone();
        ours.register("client_streams", "Open streams of clients outside of calls", streams);
        let streams = metrics.upstream_streams.clone();
        ours.register("upstream_streams", "Open streams of upstreams outside of calls", streams);
        ours.register(
            "server_requests",
            "Requests of servers to clients, by what became of them",
            metrics.server_requests.clone(),
        );
        let dropped = metrics.outgoing_dropped.clone();
        ours.register("outgoing_dropped", "Messages to upstreams that no place was left for", dropped);
        ours.register("connects", "Attempts to connect, by how they ended", metrics.connects.clone());
        ours.register(
            "control_accepted",
            "Requests of operators that were acted on",
            metrics.control_accepted.clone(),
        );
        ours.register(
            "control_refused",
            "Requests of operators that were refused: slots taken, bodies that cannot be used, terms that are over",
            metrics.control_refused.clone(),
        );
        metrics
    }

    /// Counts a request of an operator.
    pub(crate) fn count_control(&self, verb: Verb, accepted: bool) {
        let counted = if accepted { &self.control_accepted } else { &self.control_refused };
        counted.get_or_create(&ControlLabels { verb }).inc();
    }

    /// Counts an attempt that ended.
    pub(crate) fn count_connect(&self, result: ConnectResult) {
        self.connects.get_or_create(&ConnectLabels { result }).inc();
    }

    /// Counts a request of a server's: handed to a client, or refused.
    pub(crate) fn count_server_request(&self, handed: bool) {
        let result = if handed { ServerRequest::Handed } else { ServerRequest::Refused };
        self.server_requests.get_or_create(&ServerRequestLabels { result }).inc();
    }
}
