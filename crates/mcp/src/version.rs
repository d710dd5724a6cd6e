//! Revisions of the protocol.

/// The newest legacy revision.
pub const LATEST_LEGACY: &str = "2025-11-25";
/// Legacy revisions of the streamable HTTP transport, oldest first. Legacy means: a session is opened by `initialize`.
pub const LEGACY: [&str; 3] = ["2025-03-26", "2025-06-18", LATEST_LEGACY];
/// The first modern revision: no sessions, each request describes itself.
pub const MODERN: &str = "2026-07-28";

/// Whether `version` is a legacy revision of the streamable HTTP transport.
pub fn is_legacy(version: &str) -> bool {
    LEGACY.contains(&version)
}
