//! A sidecar put together: what it shares, its routes, its end.

use crate::budget::Budget;
use crate::metrics::Metrics;
use crate::registry::Registry;
use crate::session::{Gate, Key, Shared};
use crate::sync;
use crate::upstream::Dialer;
use crate::{control, relay};
use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use berth_net::feed::Feed;
use berth_net::peer::{self, Peer};
use berth_wire::ServerKey;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A sidecar without its sockets.
#[derive(Clone)]
pub struct Sidecar {
    registry: Arc<Registry>,
}

impl Sidecar {
    /// A sidecar for `slots` sessions of `server`, whose message bodies `budget` bounds. `stop` ends the watches, which would hold
    /// up the server's own end.
    pub fn new(
        server: ServerKey,
        slots: u32,
        dialer: Arc<Dialer>,
        budget: Budget,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> Self {
        let random = rustls::crypto::ring::default_provider().secure_random;
        let shared = Shared {
            dialer,
            gate: sync::Mutex::new(Gate::new()),
            budget,
            metrics,
            feed: Feed::default(),
            random,
            scope_key: Key::random(random),
            tasks: TaskTracker::new(),
        };
        Self { registry: Registry::new(server, slots, Arc::new(shared), stop) }
    }

    /// Its routes: control for the operator, data for the gateway, nothing for anybody else. Serve them over mutual TLS only.
    pub fn router(&self) -> Router {
        let only = |wanted: Peer| {
            middleware::from_fn(move |request: Request, next: Next| peer::only(wanted, request, next))
        };
        let control = control::router(self.registry.clone()).layer(only(Peer::Operator));
        control.merge(relay::router(self.registry.clone()).layer(only(Peer::Gateway)))
    }

    /// Refuses new sessions and ends all that it holds, by their own timeouts. Its routes must be served meanwhile, so that
    /// running calls can finish.
    pub async fn shut_down(&self) {
        self.registry.shut_down().await;
    }
}
