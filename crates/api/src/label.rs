//! Well-known labels, annotations, finalizers and field managers, in one place.

/// Which kind of object may use a Secret as a credential: `session` or `server`.
///
/// Whoever may create a session must not be able to send any Secret of the namespace to a URL, so an unlabelled Secret
/// is never resolved (`RefNotPermitted`).
pub const CREDENTIAL: &str = "berth.dev/credential";
/// Value of [`CREDENTIAL`] on a Secret that an `McpServer` may use.
pub const CREDENTIAL_SERVER: &str = "server";
/// Value of [`CREDENTIAL`] on a Secret that an `AgentSession` may use.
pub const CREDENTIAL_SESSION: &str = "session";
/// UID of the `McpServer` that a pool pod or Secret belongs to.
pub const SERVER_UID: &str = "berth.dev/server-uid";
/// Revision of the `McpServer` that a pool pod was made for.
pub const REVISION: &str = "berth.dev/revision";
/// What an object of ours is for: see the `ROLE_*` constants.
pub const ROLE: &str = "berth.dev/role";
/// Value of [`ROLE`] on a pool pod.
pub const ROLE_POOL: &str = "pool";
/// Value of [`ROLE`] on the Secret that holds a pool's serving certificate.
pub const ROLE_CERTIFICATE: &str = "certificate";
/// Who manages the object, as the Kubernetes recommended labels put it.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGER: &str = "berth-operator";

/// Finalizer of an `AgentSession`: held until its end is confirmed or its bound has passed.
pub const SESSION_FINALIZER: &str = "berth.dev/session-cleanup";

/// Field manager of everything the operator applies.
pub const FIELD_MANAGER: &str = "berth-operator";

/// Name of the Lease by which operators elect the one that leads; in the operator's namespace.
pub const LEADER_LEASE: &str = "berth-operator";
/// Annotation of that Lease: `address:port` where the leader serves gateways.
pub const LEADER_ADDRESS: &str = "berth.dev/leader-address";
/// Annotation of that Lease: Berth is being uninstalled, so nothing is placed and no pool is filled any more.
pub const SHUTDOWN: &str = "berth.dev/shutdown";
