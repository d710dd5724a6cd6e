//! What the leader serves to gateways, over mutual TLS: placements, so that a slot is used before its status is written, and
//! the wish to look at a session whose slot is not where it was.

use crate::context::Triggers;
use crate::slots::Slots;
use crate::watch::{Stores, routes};
use axum::extract::{Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use berth_net::feed::Feed;
use berth_net::peer::{self, Peer};
use berth_net::watch::{self, Source};
use berth_wire::{PlacementLine, ServerPlacement, SessionPlacements};
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::collections::HashMap;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What is served.
pub struct Gateways {
    /// Slots that sidecars have confirmed.
    pub slots: Arc<Slots>,
    /// Pods, for their addresses.
    pub stores: Stores,
    /// Wishes to look again.
    pub triggers: Triggers,
}

impl Gateways {
    /// The routes, for gateways only. `stop` ends the streams, which would hold up the server's own end.
    pub fn router(self, stop: CancellationToken) -> Router {
        Router::new()
            .route("/v1/placements", get(placements))
            .route("/v1/sessions/{uid}/wake", post(wake))
            .layer(middleware::from_fn(|request: Request, next: Next| {
                peer::only(Peer::Gateway, request, next)
            }))
            .layer(Extension(stop))
            .with_state(Arc::new(self))
    }

    /// Where a session is, given its confirmed slots (server UID and pod UID).
    fn placements(
        &self,
        session_uid: &str,
        slots: Vec<(String, String)>,
        pod_of: impl Fn(&str) -> Option<Arc<Pod>>,
    ) -> Option<PlacementLine> {
        let object = self.slots.object(session_uid)?;
        let placement = |(server_uid, pod_uid): (String, String)| {
            let pod = pod_of(&pod_uid)?;
            let address = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
            Some(ServerPlacement { server: routes::owner(&pod)?, server_uid, pod_uid, address })
        };
        Some(PlacementLine::Session(SessionPlacements {
            uid: session_uid.to_owned(),
            namespace: object.namespace.clone().unwrap_or_default(),
            name: object.name.clone(),
            servers: slots.into_iter().filter_map(placement).collect(),
        }))
    }
}

impl Source for Gateways {
    type Line = PlacementLine;

    fn feed(&self) -> &Feed {
        self.slots.feed()
    }

    fn all(&self) -> Vec<PlacementLine> {
        let pods = self.stores.pods.state().into_iter();
        let pods: HashMap<String, Arc<Pod>> = pods.filter_map(|pod| Some((pod.uid()?, pod))).collect();
        let placed = self.slots.all_confirmed().into_iter();
        let line = |(session, slots): (String, Vec<_>)| {
            self.placements(&session, slots, |uid| pods.get(uid).cloned())
        };
        placed.filter_map(line).chain([PlacementLine::Synced]).collect()
    }

    fn one(&self, uid: &str) -> Option<PlacementLine> {
        let pod = |uid: &str| self.stores.pods.find(|pod| pod.metadata.uid.as_deref() == Some(uid));
        self.placements(uid, self.slots.confirmed(uid), pod)
    }

    fn alive() -> PlacementLine {
        PlacementLine::Alive
    }
}

async fn placements(
    State(gateways): State<Arc<Gateways>>,
    Extension(stop): Extension<CancellationToken>,
) -> Response {
    watch::respond(gateways, stop)
}

async fn wake(State(gateways): State<Arc<Gateways>>, Path(uid): Path<String>) -> StatusCode {
    let Some(session) = gateways.slots.object(&uid) else { return StatusCode::NOT_FOUND };
    gateways.triggers.sessions.fire(session);
    StatusCode::ACCEPTED
}
