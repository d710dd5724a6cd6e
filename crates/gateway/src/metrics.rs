//! What the gateway counts. Labels come from enums only; gauges fall back by themselves on every path.

use berth_net::metrics::Held;
use http::{Method, StatusCode};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::fmt::{self, Write};
use std::time::Duration;

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant),* }

        impl $name {
            /// The label's text.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }

        impl EncodeLabelValue for $name {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
                encoder.write_str(self.as_str())
            }
        }
    };
}

labels! {
    /// What a request is, by its method.
    Kind {
        /// A message to the server.
        Post = "post",
        /// A stream that listens.
        Get = "get",
        /// The end of a client's session.
        Delete = "delete",
        /// Nothing that MCP has.
        Other = "other",
    }
}

labels! {
    /// Class of an answer.
    Code {
        /// 1xx to 3xx.
        Success = "2xx",
        /// 4xx.
        ClientError = "4xx",
        /// 5xx.
        ServerError = "5xx",
        /// The client left before there was an answer.
        Gone = "gone",
    }
}

labels! {
    /// What is reviewed.
    ReviewKind {
        /// Whose token it is.
        Token = "token",
        /// Whether somebody may connect.
        Access = "access",
    }
}

labels! {
    /// What a review said.
    ReviewResult {
        /// Yes.
        Allowed = "allowed",
        /// No.
        Denied = "denied",
        /// Nothing: the API server could not be asked.
        Unavailable = "unavailable",
    }
}

labels! {
    /// Where an answer came from.
    CacheUse {
        /// It was known.
        Hit = "hit",
        /// The API server was asked.
        Miss = "miss",
        /// The API server could not be asked; an older answer was used.
        Held = "held",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    kind: Kind,
    code: Code,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReviewLabels {
    kind: ReviewKind,
    result: ReviewResult,
    cache: CacheUse,
}

impl Kind {
    /// The kind of a request with this method.
    pub fn of(method: &Method) -> Self {
        match *method {
            Method::POST => Self::Post,
            Method::GET => Self::Get,
            Method::DELETE => Self::Delete,
            _ => Self::Other,
        }
    }
}

impl Code {
    fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            400..=499 => Self::ClientError,
            500.. => Self::ServerError,
            _ => Self::Success,
        }
    }
}

/// The metrics; clones share them.
#[derive(Clone)]
pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    in_flight: Gauge,
    streams: Gauge,
    pub(crate) body_bytes: Gauge,
    reviews: Family<ReviewLabels, Counter>,
    placement_wait: Histogram,
    placement_waiting: Gauge,
    placements_stream: Gauge,
    placements_reconnects: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            in_flight: Gauge::default(),
            streams: Gauge::default(),
            body_bytes: Gauge::default(),
            reviews: Family::default(),
            // 1 ms to 16 s: waits are bounded by --placement-wait.
            placement_wait: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            placement_waiting: Gauge::default(),
            placements_stream: Gauge::default(),
            placements_reconnects: Counter::default(),
        }
    }
}

impl Metrics {
    /// Makes them readable at `/metrics`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("berth_gateway");
        registry.register("requests", "Requests, by kind and class of the answer", self.requests.clone());
        registry.register("requests_in_flight", "Requests whose answer is not over", self.in_flight.clone());
        registry.register("streams", "Event streams open to clients", self.streams.clone());
        registry.register("body_bytes", "Bytes of request bodies that are held", self.body_bytes.clone());
        registry.register(
            "reviews",
            "Reviews, by what was asked, the result and its source",
            self.reviews.clone(),
        );
        registry.register(
            "placement_wait_seconds",
            "How long calls waited that could not be placed at once",
            self.placement_wait.clone(),
        );
        registry.register(
            "placement_waiting",
            "Calls that wait for their session's place",
            self.placement_waiting.clone(),
        );
        registry.register(
            "placements_stream",
            "Whether the leading operator's stream of placements is up",
            self.placements_stream.clone(),
        );
        registry.register(
            "placements_reconnects",
            "Streams of placements that ended or could not be begun",
            self.placements_reconnects.clone(),
        );
    }

    /// A request begins; it is in flight until what is given back is dropped.
    pub fn begin(&self, kind: Kind) -> Running {
        Running { metrics: self.clone(), kind, code: Code::Gone, _in_flight: Held::new(&self.in_flight) }
    }

    /// An event stream is open until what is given back is dropped.
    pub fn stream(&self) -> Held {
        Held::new(&self.streams)
    }

    /// The stream of placements is up until what is given back is dropped.
    pub fn placements_stream(&self) -> Held {
        Held::new(&self.placements_stream)
    }

    /// The stream of placements is down and begun anew.
    pub fn placements_lost(&self) {
        self.placements_reconnects.inc();
    }

    /// A review was answered.
    pub fn reviewed(&self, kind: ReviewKind, result: ReviewResult, cache: CacheUse) {
        self.reviews.get_or_create(&ReviewLabels { kind, result, cache }).inc();
    }

    /// A call waits for its place until what is given back is dropped.
    pub fn waiting(&self) -> Held {
        Held::new(&self.placement_waiting)
    }

    /// A call had to wait for its place.
    pub fn waited(&self, wait: Duration) {
        self.placement_wait.observe(wait.as_secs_f64());
    }
}

/// A request in flight; counted with its answer when dropped.
pub struct Running {
    metrics: Metrics,
    kind: Kind,
    code: Code,
    _in_flight: Held,
}

impl Running {
    /// It was answered.
    pub fn answered(&mut self, status: StatusCode) {
        self.code = Code::of(status);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.metrics.requests.get_or_create(&RequestLabels { kind: self.kind, code: self.code }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(metrics: &Metrics) -> String {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn gauges_fall_back_and_every_request_is_counted_once() {
        let metrics = Metrics::default();
        let (mut answered, gone, stream) =
            (metrics.begin(Kind::Post), metrics.begin(Kind::Get), metrics.stream());
        answered.answered(StatusCode::OK);
        let during = text(&metrics);
        assert!(during.contains("berth_gateway_requests_in_flight 2\n"), "{during}");
        assert!(during.contains("berth_gateway_streams 1\n"), "{during}");
        drop((answered, gone, stream));
        let after = text(&metrics);
        assert!(after.contains("berth_gateway_requests_in_flight 0\n"), "{after}");
        assert!(after.contains("berth_gateway_streams 0\n"), "{after}");
        assert!(after.contains(r#"berth_gateway_requests_total{kind="post",code="2xx"} 1"#), "{after}");
        assert!(after.contains(r#"berth_gateway_requests_total{kind="get",code="gone"} 1"#), "{after}");
    }
}
