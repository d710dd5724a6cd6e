//! Condition types and reasons, each with its meaning.

/// Types of conditions that the operator writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionType {
    /// The spec is one that the operator can act on.
    Accepted,
    /// Every object that the spec names exists and may be used.
    ResolvedRefs,
    /// A call made now is served, or connects lazily and is then served.
    Ready,
    /// Written `False` with the running step while an end lasts longer than two seconds.
    Ended,
}

impl ConditionType {
    /// The text in `conditions[].type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::ResolvedRefs => "ResolvedRefs",
            Self::Ready => "Ready",
            Self::Ended => "Ended",
        }
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Why a condition has its status. The text is the variant's name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $name),* }

        impl Reason {
            /// The text in `conditions[].reason`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }

            /// The reason of that text, if this version knows it.
            pub fn parse(text: &str) -> Option<Self> {
                match text {
                    $(stringify!($name) => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    /// The spec was accepted.
    Accepted,
    /// All references were resolved.
    ResolvedRefs,
    /// Every server of the session has a slot.
    Bound,
    /// At least one server works and at least one does not.
    Degraded,
    /// The pool has the slots it should keep.
    PoolReady,
    /// Pods of the pool are on their way.
    PoolStarting,
    /// A slot is being looked for.
    Pending,
    /// No slot was found within `bindTimeout`, for no reason that is known; the operator goes on looking.
    BindTimeout,
    /// A bound that the `McpServer` sets was reached.
    LimitReached,
    /// The spec holds a value that cannot be acted on.
    InvalidSpec,
    /// A named object does not exist.
    RefNotFound,
    /// A named object exists but lacks the label that permits its use.
    RefNotPermitted,
    /// A credential is empty or cannot be sent in a header.
    InvalidCredential,
    /// The upstream refused the credential (401 or 403).
    Unauthorized,
    /// The upstream did not finish `initialize` within `timeouts.connect`.
    InitializeTimeout,
    /// The upstream answered with something that is not MCP.
    ProtocolError,
    /// The upstream asked for fewer requests (429).
    RateLimited,
    /// No connection to the upstream could be made.
    UpstreamUnreachable,
    /// The upstream's certificate is not trusted.
    TLSUntrusted,
    /// An image of the pool could not be pulled.
    ImagePullFailed,
    /// A pod of the pool was refused by admission.
    PodForbidden,
    /// A quota of the namespace is used up.
    QuotaExceeded,
    /// A pod of the pool fits on no node.
    Unschedulable,
    /// Running calls may finish until the drain deadline.
    Draining,
    /// Upstream sessions are being ended.
    Closing,
    /// Slots and pods are being released.
    Removing,
    /// The bound of the end passed with something unconfirmed.
    CleanupIncomplete,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
