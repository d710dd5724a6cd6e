//! A sidecar put together: what it shares, its routes, its end.

use crate::budget::Budget;
use crate::metrics::Metrics;
use crate::registry::Registry;
use crate::session::{Gate, Key, Shared};
use crate::upstream::Dialer;
use crate::{control, relay};
use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use berth_net::feed::Feed;
use berth_net::peer::{self, Peer};
use berth_net::serve::App;
use berth_wire::ServerKey;
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A sidecar without its sockets: what it answers is control for the operator, data for the gateway, nothing for anybody else.
/// Serve it over mutual TLS only.
#[derive(Clone)]
pub struct Sidecar {
    registry: Arc<Registry>,
    control: Router,
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
            gate: Mutex::new(Gate::new()),
            budget,
            metrics,
            feed: Feed::default(),
            random,
            scope_key: Key::random(random),
            tasks: TaskTracker::new(),
        };
        let registry = Registry::new(server, slots, Arc::new(shared), stop);
        Self { control: control::router(registry.clone()), registry }
    }

    /// Refuses new sessions and ends all that it holds, by their own timeouts. It must be served meanwhile, so that
    /// running calls can finish.
    pub async fn shut_down(&self) {
        self.registry.shut_down().await;
    }
}

impl App for Sidecar {
    async fn answer(&self, peer: Option<Peer>, request: Request) -> Response {
        let data = relay::session_of(request.uri().path()).is_some();
        if peer != Some(if data { Peer::Gateway } else { Peer::Operator }) {
            return peer::refuse();
        }
        if !data {
            return App::answer(&self.control, peer, request).await;
        }
        relay::answer(&self.registry, request).await
    }
}
