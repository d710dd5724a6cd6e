//! Health and metrics of a binary: `/livez`, `/readyz`, `/metrics`, which shows the gauges of its process too.

use crate::process;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::get};
use http::{StatusCode, header};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Content type of the `OpenMetrics` text that the metrics route answers.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether the binary takes traffic; clones share it. Starts as not ready.
#[derive(Clone, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Says whether traffic is taken from now on.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// Whether traffic is taken.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Routes of the admin port, plain HTTP, read-only.
pub fn router(registry: Arc<Registry>, readiness: Readiness) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready).with_state(readiness))
        .route("/metrics", get(metrics).with_state(registry))
}

async fn ready(State(readiness): State<Readiness>) -> Response {
    if readiness.get() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response()
    }
}

async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    match text_of(&registry) {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot encode metrics: {error}\n")).into_response()
        }
    }
}

fn text_of(registry: &Registry) -> Result<String, fmt::Error> {
    let mut text = String::new();
    encode_registry(&mut text, registry)?;
    encode_registry(&mut text, &process::registry())?;
    encode_eof(&mut text)?;
    Ok(text)
}
