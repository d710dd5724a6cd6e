//! Routes.

use std::sync::Arc;

use axum::{
    Router,
    routing::{any, get, post},
};

use crate::{Probe, admin, mcp};

/// All routes of the server.
pub fn router(probe: Arc<Probe>) -> Router {
    Router::new()
        .route("/mcp", any(mcp::endpoint))
        .route("/books", get(admin::books))
        .route("/books/reset", post(admin::reset))
        .route("/faults", get(admin::faults).post(admin::set_faults).delete(admin::clear_faults))
        .route("/push", post(admin::push))
        .route("/healthz", get(async || "ok\n"))
        .with_state(probe)
}
