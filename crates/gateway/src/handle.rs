//! One request from its head to its answer: the table of contents of the data path.

use crate::body;
use crate::forward::{self, Call};
use crate::gateway::Gateway;
use crate::header;
use crate::metrics::Kind;
use crate::origin;
use crate::path::{self, Parsed};
use crate::place::Ask;
use crate::respond::{Refusal, Refused};
use crate::route::Decision;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use berth_net::peer::Peer;
use berth_net::serve;
use bytes::Bytes;
use http::{Method, Uri};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;

/// A gateway to be served: every path is read by [`path::parse`].
#[derive(Clone)]
pub struct App(pub Arc<Gateway>);

impl serve::App for App {
    async fn answer(&self, _: Option<Peer>, request: Request) -> Response {
        handle(&self.0, request).await
    }
}

async fn handle(gateway: &Gateway, request: Request) -> Response {
    let started = Instant::now();
    let (kind, uri) = (Kind::of(request.method()), request.uri().clone());
    let mut running = gateway.metrics.begin(kind);
    let (response, place) = match relay(gateway, request, kind).await {
        Ok((response, place)) => (response, Some(place)),
        Err(refused) => (refused.into_response(), None),
    };
    running.answered(response.status());
    log(&uri, kind, &response, place.is_some(), started.elapsed());
    match place {
        Some(place) => body::relay(response, kind, body::Call { running, place }, gateway),
        None => response,
    }
}

/// One line a call: a path only when it is one of ours, since then it holds names and nothing else.
fn log(uri: &Uri, kind: Kind, response: &Response, relayed: bool, elapsed: Duration) {
    let path = if matches!(path::parse(uri.path()), Parsed::Session(_)) { uri.path() } else { "-" };
    let (kind, status) = (kind.as_str(), response.status().as_u16());
    if response.status().is_server_error() {
        tracing::warn!(path, kind, status, relayed, ?elapsed, "call failed");
    } else {
        tracing::debug!(path, kind, status, relayed, ?elapsed, "call answered");
    }
}

/// The answer, with the place of its call. Who may not call learns nothing but that, and takes no place from those who may:
/// everything before the body is read costs the caller only its head.
async fn relay(
    gateway: &Gateway,
    request: Request,
    kind: Kind,
) -> Result<(Response, OwnedSemaphorePermit), Refused> {
    let (head, body) = request.into_parts();
    header::check_size(&head.headers)?;
    origin::check(&head.uri, &head.headers, &gateway.settings)?;
    let path = match (kind, path::parse(head.uri.path())) {
        (_, Parsed::Elsewhere) => return Err(Refusal::Elsewhere.into()),
        (Kind::Other, _) => return Err(Refusal::Method.into()),
        (_, Parsed::Impossible) => None,
        (_, Parsed::Session(path)) => Some(path),
    };
    let caller = gateway.authenticator.authenticate(&head.headers).await?;
    let place = gateway.calls.clone().try_acquire_owned().map_err(|_| Refusal::TooManyCalls)?;
    let path = path.ok_or(Refusal::SessionNotFound)?;
    let (key, user, since) = (path.key(), &*caller.user, Instant::now());
    let mut ask = Ask { path: &path, key, kind, user, may_connect: false, since };
    // Whoever has nothing as a subject needs a review, be the session unknown, ended or somebody else's.
    if ask.decide(gateway.index.get(&ask.key).as_deref()) == Decision::NotFound {
        ask.may_connect = gateway.authorizer.may_connect(&caller, &path).await?;
    }
    let body = read(gateway, &head.method, body).await?;
    // A body may take its time: what is waited for begins with the whole of the call.
    ask.since = Instant::now();
    let call = Call { method: head.method, headers: header::for_sidecar(&head.headers), body };
    let response = forward::forward(gateway, &ask, &call).await;
    response.map(|response| (response, place)).map_err(|refusal| refusal.of(path.server, &call.body))
}

/// Only a POST carries something on.
async fn read(gateway: &Gateway, method: &Method, body: Body) -> Result<Bytes, Refusal> {
    if *method == Method::POST { body::read(body, gateway).await } else { Ok(Bytes::new()) }
}
