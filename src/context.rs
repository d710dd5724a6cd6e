//! What every reconcile has at hand.

use crate::ca::Ca;
use crate::controller::retry::Failures;
use crate::controller::{ConfigMaps, Policies};
use crate::fleet::Fleet;
use crate::lead::Lead;
use crate::metrics::Metrics;
use crate::slots::Slots;
use crate::trigger::Trigger;
use crate::watch::Stores;
use berth_api::{AgentSession, McpServer};
use berth_plan::server::build::Sidecar;
use berth_plan::time::Moment;
use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Everything that a reconcile reads from or writes to.
pub struct Context {
    /// Client for calls, behind the fence of `lead`.
    pub client: Client,
    /// Whether this process leads.
    pub lead: Lead,
    /// Caches of the watched kinds.
    pub stores: Stores,
    /// The sidecars.
    pub fleet: Fleet,
    /// Promised slots.
    pub slots: Arc<Slots>,
    /// The CA.
    pub ca: Ca,
    /// Network policies of the pools.
    pub policies: Policies,
    /// ConfigMaps that servers name.
    pub config_maps: ConfigMaps,
    /// Wishes to look again.
    pub triggers: Triggers,
    /// Failures in a row, by object.
    pub failures: Failures,
    /// Counters.
    pub metrics: Metrics,
    /// The clock.
    pub clock: Clock,
    /// When this process began to reconcile.
    pub started: Moment,
    /// Fixed settings.
    pub settings: Settings,
}

/// Fixed settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What pool pods are made with.
    pub sidecar: Sidecar,
    /// Base of the URLs in status.
    pub gateway_url: String,
}

/// Wishes to look at objects again.
#[derive(Clone, Default)]
pub struct Triggers {
    /// Sessions to look at.
    pub sessions: Trigger<AgentSession>,
    /// Servers to look at.
    pub servers: Trigger<McpServer>,
}

impl Context {
    /// The objects of a kind in one namespace.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// The clock, as a function: the only place where the operator looks at the time of day.
#[derive(Clone, Copy, Debug)]
pub struct Clock(fn() -> Moment);

impl Clock {
    /// The clock of the system.
    pub const SYSTEM: Self = Self(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    });

    /// Now.
    pub fn now(self) -> Moment {
        self.0()
    }
}
