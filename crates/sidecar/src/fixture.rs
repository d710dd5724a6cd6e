//! What unit tests share: a spec, and what sessions share.

use crate::budget::Budget;
use crate::metrics::Metrics;
use crate::session::{Gate, Key, Shared};
use crate::upstream::Dialer;
use berth_net::feed::Feed;
use berth_wire::{
    Generation, Header, Limits, OnStateLost, ServerKey, SessionSpec, Subject, Timeouts, Upstream,
};
use std::sync::{Arc, Mutex};
use tokio_util::task::TaskTracker;

/// What the sidecar serves.
pub(crate) fn server() -> ServerKey {
    ServerKey { uid: "u".into(), name: "n".into(), revision: "r".into() }
}

/// The session `s`, whose upstream nobody listens at.
pub(crate) fn spec(credential: &str) -> SessionSpec {
    SessionSpec {
        uid: "s".into(),
        display_name: "test/s".into(),
        server: server(),
        generation: Generation::default(),
        subject: Subject { issuer: String::new(), name: "alice".into() },
        upstream: Upstream {
            url: "http://127.0.0.1:1/".into(),
            tls: None,
            headers: vec![Header { name: "Authorization".into(), value: credential.into() }],
            own_credential: false,
            withheld: None,
        },
        timeouts: Timeouts {
            connect_millis: 5_000,
            request_millis: 5_000,
            request_max_millis: 5_000,
            drain_millis: 5_000,
            close_millis: 5_000,
        },
        on_state_lost: OnStateLost::default(),
        limits: Limits::default(),
        scope_key: None,
    }
}

/// What the sessions of one sidecar share.
pub(crate) fn shared() -> Arc<Shared> {
    let random = rustls::crypto::ring::default_provider().secure_random;
    Arc::new(Shared {
        dialer: Arc::new(Dialer::system().unwrap()),
        gate: Mutex::new(Gate::new()),
        budget: Budget::mebibytes(1),
        metrics: Metrics::default(),
        feed: Feed::default(),
        random,
        scope_key: Key::random(random),
        tasks: TaskTracker::new(),
    })
}
