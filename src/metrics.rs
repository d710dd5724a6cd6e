//! Metrics. Labels come from enums only, never from names or messages.

pub mod objects;

use berth_api::EndReason;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::fmt::Write;

/// All metrics that the operator counts itself; gauges of objects are read from the stores when scraped.
#[derive(Clone)]
pub struct Metrics {
    reconciles: Family<ReconcileLabels, Histogram>,
    control: Family<ControlLabels, Counter>,
    ended: Family<EndedLabels, Counter>,
    incomplete: Counter,
    events_refused: Counter,
    orphans: Counter,
    panics: Counter,
}

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Kind {
    /// `AgentSession`.
    AgentSession,
    /// `McpServer`.
    McpServer,
}

/// How something went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Result {
    /// Done.
    Ok,
    /// Refused by the other side, for a reason.
    Refused,
    /// Failed.
    Error,
}

/// What was asked of a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Verb {
    /// Hold a session.
    Put,
    /// End a session.
    Delete,
    /// Tell all sessions, and go on telling.
    Watch,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    kind: Kind,
    result: Result,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControlLabels {
    verb: Verb,
    result: Result,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndedLabels {
    reason: Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ended(EndReason);

impl EncodeLabelValue for Ended {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        encoder.write_str(self.0.as_str())
    }
}

impl Metrics {
    /// Metrics, registered under `berth_operator_`.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            reconciles: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 4.0, 8))),
            control: Family::default(),
            ended: Family::default(),
            incomplete: Counter::default(),
            events_refused: Counter::default(),
            orphans: Counter::default(),
            panics: Counter::default(),
        };
        let registry = registry.sub_registry_with_prefix("berth_operator");
        registry.register(
            "reconcile_seconds",
            "Time of one reconcile of an object",
            metrics.reconciles.clone(),
        );
        registry.register("control_requests", "Requests to sidecars", metrics.control.clone());
        registry.register("sessions_ended", "Sessions whose end is over, by reason", metrics.ended.clone());
        registry.register(
            "cleanup_incomplete",
            "Ends of which something was not confirmed within the bound",
            metrics.incomplete.clone(),
        );
        registry.register(
            "events_refused",
            "Events that the API server refused",
            metrics.events_refused.clone(),
        );
        registry.register(
            "orphans_ended",
            "Sessions that a sidecar held though their AgentSession was gone or in another pod, and was told to end",
            metrics.orphans.clone(),
        );
        registry.register("reconcile_panics", "Reconciles that ended in a panic", metrics.panics.clone());
        metrics
    }

    /// One reconcile of an object is over.
    pub fn reconciled(&self, kind: Kind, result: Result, seconds: f64) {
        self.reconciles.get_or_create(&ReconcileLabels { kind, result }).observe(seconds);
    }

    /// A reconcile ended in a panic.
    pub fn panicked(&self) {
        self.panics.inc();
    }

    /// A request to a sidecar is over.
    pub fn control(&self, verb: Verb, result: Result) {
        self.control.get_or_create(&ControlLabels { verb, result }).inc();
    }

    /// A session has ended.
    pub fn ended(&self, reason: EndReason, complete: bool) {
        self.ended.get_or_create(&EndedLabels { reason: Ended(reason) }).inc();
        if !complete {
            self.incomplete.inc();
        }
    }

    /// How many orphans were ended.
    #[cfg(test)]
    pub fn orphans(&self) -> u64 {
        self.orphans.get()
    }

    /// A sidecar was told to end a session whose object is gone, or that has its slot in another pod.
    pub fn orphan_ended(&self) {
        self.orphans.inc();
    }

    /// An Event was refused.
    pub fn event_refused(&self) {
        self.events_refused.inc();
    }
}
