//! May an `McpServer` be acted on? What is valid has every name resolved and every number in range, so that nothing
//! that is made from it can fail.

use crate::name;
use crate::server::authorities::{self, CaState};
pub use crate::server::credential::SecretState;
use crate::server::credential::{self, Reference, User};
use berth_api::{
    AuthType, ByteSize, ConditionType, Duration, McpServer, OnStateLost, Pool, Reason, SessionAuth,
    SharedAuth,
};
use berth_wire::{Header, Limits, ServerKey, Timeouts};

/// Sessions that share a pod of an `Http` server when the spec does not say.
const DEFAULT_SLOTS: u32 = 50;

/// A server that can be acted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidServer {
    /// Namespace of the `McpServer`.
    pub namespace: String,
    /// UID, name and revision of the `McpServer`.
    pub key: ServerKey,
    /// `metadata.generation` of the `McpServer`.
    pub generation: i64,
    /// Absolute URL of the upstream.
    pub url: String,
    /// How the upstream knows who calls.
    pub auth: Auth,
    /// How long each step may take.
    pub timeouts: Timeouts,
    /// What clients see when the upstream forgot its session.
    pub on_state_lost: berth_wire::OnStateLost,
    /// How much one session may ask at once.
    pub limits: Limits,
    /// Numbers of pods and slots.
    pub pool: PoolSize,
}

/// How the upstream knows who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// No credential is sent.
    None,
    /// One credential for all sessions.
    Shared(SharedAuth),
    /// Each session's own.
    Session(SessionAuth),
}

/// Numbers of pods and slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// Free slots that are kept ready.
    pub warm: u32,
    /// Slots of each pod, at least one.
    pub slots: u32,
    /// Most pods at once.
    pub max_pods: u32,
    /// Most sessions that hold a slot at once.
    pub max_sessions: Option<u32>,
    /// Most sessions of one subject that hold a slot at once.
    pub max_sessions_per_subject: Option<u32>,
}

/// Why a server cannot be acted on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A field came past the CRD's rules, as an object stored under older rules may.
    #[error("{field} {problem}")]
    InvalidSpec {
        /// Path of the field.
        field: &'static str,
        /// What is wrong and what helps.
        problem: &'static str,
    },
    /// Its shared credential cannot be had.
    #[error(transparent)]
    Credential(#[from] credential::Refusal),
    /// The certificates that it trusts cannot be had.
    #[error(transparent)]
    Authorities(#[from] authorities::Refusal),
}

impl Refusal {
    /// The reason for conditions.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::InvalidSpec { .. } => Reason::InvalidSpec,
            Self::Credential(refusal) => refusal.reason(),
            Self::Authorities(refusal) => refusal.reason(),
        }
    }

    /// The condition that it makes false.
    pub const fn concerns(&self) -> ConditionType {
        match self {
            Self::InvalidSpec { .. } => ConditionType::Accepted,
            Self::Credential(_) | Self::Authorities(_) => ConditionType::ResolvedRefs,
        }
    }

    /// Whether it may be over without an event that says so.
    pub const fn is_unseen(&self) -> bool {
        match self {
            Self::InvalidSpec { .. } => false,
            Self::Credential(refusal) => refusal.is_unseen(),
            Self::Authorities(refusal) => refusal.is_unseen(),
        }
    }
}

/// The Secret that a server names, if its authentication needs one.
pub fn secret_ref(server: &McpServer) -> Option<&SharedAuth> {
    server.spec.auth.shared.as_ref().filter(|_| server.spec.auth.type_ == AuthType::Shared)
}

/// The server, or why it cannot be acted on. `secret` is what is known of the Secret that [`secret_ref`] names, `ca` of the object
/// that [`authorities::ca_ref`] names.
pub fn validate(
    server: &McpServer,
    secret: SecretState<'_>,
    ca: CaState<'_>,
) -> Result<ValidServer, Refusal> {
    let valid = accept(server)?;
    if let Auth::Shared(shared) = &valid.auth {
        shared_header(shared, secret)?;
    }
    authorities::resolve(server, ca)?;
    Ok(valid)
}

/// The same without a look at its credential: who holds a slot keeps it while the credential is not there.
pub fn accept(server: &McpServer) -> Result<ValidServer, Refusal> {
    let spec = &server.spec;
    let missing = |field, problem| Refusal::InvalidSpec { field, problem };
    let http = spec.transport.http.as_ref().ok_or(missing(
        "spec.transport.http",
        "is required when transport.type is Http: set transport.http.url",
    ))?;
    Ok(ValidServer {
        namespace: server.metadata.namespace.clone().unwrap_or_default(),
        key: ServerKey {
            uid: server.metadata.uid.clone().unwrap_or_default(),
            name: server.metadata.name.clone().unwrap_or_default(),
            revision: name::revision(spec),
        },
        generation: server.metadata.generation.unwrap_or_default(),
        url: http.url.clone(),
        auth: match spec.auth.type_ {
            AuthType::None => Auth::None,
            AuthType::Shared => Auth::Shared(spec.auth.shared.clone().ok_or(missing(
                "spec.auth.shared",
                "is required when auth.type is Shared: set auth.shared.secretKeyRef",
            ))?),
            AuthType::Session => Auth::Session(spec.auth.session.clone().ok_or(missing(
                "spec.auth.session",
                "is required when auth.type is Session: set auth.session, where {} means Authorization: Bearer",
            ))?),
        },
        timeouts: timeouts(server)?,
        on_state_lost: match spec.on_state_lost {
            OnStateLost::Reinitialize => berth_wire::OnStateLost::Reinitialize,
            OnStateLost::Fail => berth_wire::OnStateLost::Fail,
        },
        limits: limits(&spec.limits)?,
        pool: pool_size(&spec.pool),
    })
}

/// The header with the credential of all sessions, where its Secret is as `secret` says.
pub fn shared_header(shared: &SharedAuth, secret: SecretState<'_>) -> Result<Header, credential::Refusal> {
    let reference = Reference {
        user: User::Server,
        field: "spec.auth.shared.secretKeyRef",
        named: &shared.secret_key_ref,
    };
    let credential = credential::resolve(reference, secret)?;
    Ok(credential::header(&shared.header, &shared.scheme, credential))
}

fn timeouts(server: &McpServer) -> Result<Timeouts, Refusal> {
    let timeouts = &server.spec.timeouts;
    Ok(Timeouts {
        connect_millis: millis(&timeouts.connect, "spec.timeouts.connect")?,
        request_millis: millis(&timeouts.request, "spec.timeouts.request")?,
        request_max_millis: millis(&timeouts.request_max, "spec.timeouts.requestMax")?,
        drain_millis: millis(&timeouts.drain, "spec.timeouts.drain")?,
        close_millis: millis(&timeouts.close, "spec.timeouts.close")?,
    })
}

fn millis(duration: &Duration, field: &'static str) -> Result<u64, Refusal> {
    duration
        .to_std()
        .and_then(|span| u64::try_from(span.as_millis()).ok())
        .ok_or(Refusal::InvalidSpec { field, problem: "is not a duration: write it like 30s or 1h30m" })
}

fn limits(limits: &berth_api::Limits) -> Result<Limits, Refusal> {
    let bytes = |size: &ByteSize, field| {
        let fits = size.bytes().and_then(|bytes| u32::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
        fits.ok_or(Refusal::InvalidSpec {
            field,
            problem: "is no number of bytes: write it like 512Ki or 4Mi",
        })
    };
    // The CRD keeps every number in range; what came past it counts as the least that works.
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    Ok(Limits {
        request_bytes: bytes(&limits.request_bytes, "spec.limits.requestBytes")?,
        response_bytes: bytes(&limits.response_bytes, "spec.limits.responseBytes")?,
        concurrent_calls: count(limits.concurrent_calls).max(1),
        queued_calls: count(limits.queued_calls),
    })
}

fn pool_size(pool: &Pool) -> PoolSize {
    // The CRD keeps every number in range; what came past it counts as zero, or as the least that works.
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    PoolSize {
        warm: count(pool.warm),
        slots: pool.sessions_per_pod.map_or(DEFAULT_SLOTS, count).max(1),
        max_pods: count(pool.max_pods).max(1),
        max_sessions: pool.max_sessions.map(count),
        max_sessions_per_subject: pool.max_sessions_per_subject.map(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::fixture::{secret, server, valid};

    const SHARED: &str = "{auth: {type: Shared, shared: {secretKeyRef: {name: token, key: value}}}}";

    fn refused(state: SecretState<'_>) -> Refusal {
        validate(&server(SHARED), state, CaState::Missing).unwrap_err()
    }

    #[test]
    fn defaults_are_those_of_the_crd() {
        let valid = valid("{}");
        assert_eq!(
            valid.pool,
            PoolSize { warm: 1, slots: 50, max_pods: 20, max_sessions: None, max_sessions_per_subject: None }
        );
        assert_eq!((valid.timeouts.connect_millis, valid.timeouts.request_max_millis), (30_000, 1_800_000));
        assert_eq!(valid.auth, Auth::None);
        let session = SessionAuth { header: "Authorization".into(), scheme: "Bearer".into() };
        assert_eq!(self::valid("{auth: {type: Session, session: {}}}").auth, Auth::Session(session));
    }

    #[test]
    fn a_shared_credential_becomes_a_header() {
        let secret = secret("server", "value", "tok\n");
        let header = |yaml: &str| {
            let Auth::Shared(shared) = accept(&server(yaml)).unwrap().auth else { panic!("not shared") };
            shared_header(&shared, SecretState::Present(&secret)).unwrap()
        };
        assert_eq!(header(SHARED), Header { name: "Authorization".into(), value: "Bearer tok".into() });
        let bare = "{auth: {type: Shared, shared: {secretKeyRef: {name: token, key: value}, header: X-Key, scheme: ''}}}";
        assert_eq!(header(bare), Header { name: "X-Key".into(), value: "tok".into() });
        assert!(validate(&server(SHARED), SecretState::Present(&secret), CaState::Missing).is_ok());
    }

    #[test]
    fn an_unusable_secret_is_refused_with_its_reason() {
        let session = secret("session", "value", "tok");
        let other = secret("server", "other", "tok");
        let bad = secret("server", "value", "hunter2\u{e9}");
        let table = [
            (refused(SecretState::Missing), Reason::RefNotFound),
            (refused(SecretState::Unlabelled), Reason::RefNotPermitted),
            (refused(SecretState::Present(&session)), Reason::RefNotPermitted),
            (refused(SecretState::Present(&other)), Reason::RefNotFound),
            (refused(SecretState::Present(&bad)), Reason::InvalidCredential),
        ];
        for (refusal, reason) in table {
            assert_eq!(
                (refusal.reason(), refusal.concerns()),
                (reason, ConditionType::ResolvedRefs),
                "{refusal}"
            );
            assert!(refusal.to_string().contains("token"), "{refusal}");
        }
    }

    #[test]
    fn a_type_without_its_member_is_refused_by_the_name_of_the_member() {
        for (yaml, field) in [
            ("{auth: {type: Shared}}", "spec.auth.shared is"),
            ("{auth: {type: Session}}", "spec.auth.session is"),
        ] {
            let refusal = validate(&server(yaml), SecretState::Missing, CaState::Missing).unwrap_err();
            assert_eq!(
                (refusal.reason(), refusal.concerns()),
                (Reason::InvalidSpec, ConditionType::Accepted)
            );
            assert!(refusal.to_string().starts_with(field), "{refusal}");
        }
    }

    #[test]
    fn a_duration_past_the_crd_is_refused_with_its_field() {
        let refused = |yaml: &str| {
            let refusal = validate(&server(yaml), SecretState::Missing, CaState::Missing).unwrap_err();
            assert_eq!(
                (refusal.reason(), refusal.concerns()),
                (Reason::InvalidSpec, ConditionType::Accepted)
            );
            refusal.to_string()
        };
        let text = refused("{timeouts: {drain: abc}}");
        assert!(text.starts_with("spec.timeouts.drain is not a duration"), "{text}");
        let text = refused("{limits: {requestBytes: 4MB}}");
        assert!(text.starts_with("spec.limits.requestBytes is no number of bytes"), "{text}");
        let text = refused("{limits: {responseBytes: 5Gi}}");
        assert!(text.starts_with("spec.limits.responseBytes is no number of bytes"), "{text}");
    }

    #[test]
    fn limits_and_the_loss_of_state_are_taken_over_and_have_the_sidecars_own_defaults() {
        assert_eq!(valid("{}").limits, Limits::default());
        assert_eq!(valid("{}").on_state_lost, berth_wire::OnStateLost::default());
        let yaml = "{onStateLost: Fail, limits: {requestBytes: 65536, responseBytes: 1Mi, concurrentCalls: 1, queuedCalls: 0}}";
        let limits =
            Limits { request_bytes: 65_536, response_bytes: 1 << 20, concurrent_calls: 1, queued_calls: 0 };
        assert_eq!((valid(yaml).limits, valid(yaml).on_state_lost), (limits, berth_wire::OnStateLost::Fail));
        assert_eq!(valid(yaml).key.revision, valid("{}").key.revision, "they apply live");
    }

    #[test]
    fn a_server_whose_authorities_cannot_be_had_is_refused_with_their_reason() {
        let yaml = "{transport: {type: Http, http: {url: 'https://a.test/', tls: {caRef: {kind: ConfigMap, name: corp, key: ca.crt}}}}}";
        let refusal = validate(&server(yaml), SecretState::Missing, CaState::Missing).unwrap_err();
        assert_eq!(
            (refusal.reason(), refusal.concerns()),
            (Reason::RefNotFound, ConditionType::ResolvedRefs)
        );
        assert!(refusal.to_string().starts_with("configmap \"corp\" does not exist"), "{refusal}");
    }
}
