//! A sidecar put together: what it shares, its routes, its end.

use crate::budget::Budget;
use crate::metrics::Metrics;
use crate::registry::Registry;
use crate::session::Shared;
use crate::upstream::Dialer;
use crate::{control, relay};
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use berth_net::feed::Feed;
use berth_net::peer::Peer;
use berth_wire::ServerKey;
use http::StatusCode;
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
        let shared =
            Shared { dialer, budget, metrics, feed: Feed::default(), random, tasks: TaskTracker::new() };
        Self { registry: Registry::new(server, slots, Arc::new(shared), stop) }
    }

    /// Its routes: control for the operator, data for the gateway, nothing for anybody else. Serve them over mutual TLS only.
    pub fn router(&self) -> Router {
        let control = control::router(self.registry.clone()).layer(middleware::from_fn(operator_only));
        let data = relay::router(self.registry.clone()).layer(middleware::from_fn(gateway_only));
        control.merge(data)
    }

    /// Refuses new sessions and ends all that it holds, by their own timeouts. Its routes must be served meanwhile, so that
    /// running calls can finish.
    pub async fn shut_down(&self) {
        self.registry.shut_down().await;
    }
}

async fn operator_only(Extension(peer): Extension<Peer>, request: Request, next: Next) -> Response {
    only(Peer::Operator, peer, request, next).await
}

async fn gateway_only(Extension(peer): Extension<Peer>, request: Request, next: Next) -> Response {
    only(Peer::Gateway, peer, request, next).await
}

async fn only(wanted: Peer, peer: Peer, request: Request, next: Next) -> Response {
    if peer == wanted {
        next.run(request).await
    } else {
        (StatusCode::FORBIDDEN, "this path is not for the peer that your certificate names\n").into_response()
    }
}
