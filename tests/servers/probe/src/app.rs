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
        // The same server again, for redirects and for faults of one path.
        .route("/mcp/{*rest}", any(mcp::endpoint))
        .route("/books", get(admin::books))
        .route("/books/reset", post(admin::reset))
        .route("/faults", get(admin::faults).post(admin::set_faults).delete(admin::clear_faults))
        .route("/push", post(admin::push))
        .route("/notify", post(admin::notify))
        .route("/ask", post(admin::ask))
        .route("/sessions/lose", post(admin::lose))
        .route("/connections/drop", post(admin::drop_connections))
        .route("/tools", get(admin::tools).post(admin::set_tools).delete(admin::reset_tools))
        .route("/tls/ca", get(admin::ca))
        .route("/tls/rotate", post(admin::rotate))
        .route("/healthz", get(async || "ok\n"))
        .with_state(probe)
}
