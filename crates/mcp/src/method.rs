//! Methods that a relay treats in a way of their own; every other passes as it is.

/// Opens a legacy session.
pub const INITIALIZE: &str = "initialize";
/// The client is ready; the second and last step of opening a legacy session.
pub const INITIALIZED: &str = "notifications/initialized";
/// Either side asks whether the other is alive.
pub const PING: &str = "ping";
/// A running request is no longer wanted.
pub const CANCELLED: &str = "notifications/cancelled";
/// A running request goes on.
pub const PROGRESS: &str = "notifications/progress";
/// A client wants news of a resource.
pub const SUBSCRIBE: &str = "resources/subscribe";
/// It wants none any more.
pub const UNSUBSCRIBE: &str = "resources/unsubscribe";
/// A resource has changed.
pub const RESOURCE_UPDATED: &str = "notifications/resources/updated";
/// The end of notifications that a list of the server's has changed.
pub const LIST_CHANGED: &str = "/list_changed";
/// Those that MCP knows.
pub const LISTS_CHANGED: [&str; 3] = [
    "notifications/tools/list_changed",
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
];
