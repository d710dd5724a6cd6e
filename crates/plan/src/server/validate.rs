//! May an `McpServer` be acted on? What is valid has every name resolved and every number in range, so that nothing
//! that is made from it can fail.

use crate::name;
use crate::server::credential::{self, Unusable};
use berth_api::{AuthType, ConditionType, Duration, McpServer, Pool, Reason, SharedAuth, label};
use berth_wire::{Header, ServerKey, Timeouts};
use k8s_openapi::api::core::v1::Secret;

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
    /// Headers of every upstream request, the shared credential among them.
    pub headers: Vec<Header>,
    /// How long each step may take.
    pub timeouts: Timeouts,
    /// Numbers of pods and slots.
    pub pool: PoolSize,
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

/// What is known of the Secret that a server names.
#[derive(Clone, Copy, Debug)]
pub enum SecretState<'a> {
    /// There is none of that name, or none is named.
    Missing,
    /// It exists without the label that lets the operator read it.
    Unlabelled,
    /// It exists and carries the label, whatever its value.
    Present(&'a Secret),
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
    /// The Secret does not exist.
    #[error(
        "secret {secret:?} does not exist; create it with key {key:?} and the label berth.dev/credential=server"
    )]
    SecretNotFound {
        /// Name of the Secret.
        secret: String,
        /// The key that is looked for.
        key: String,
    },
    /// The Secret has no such key.
    #[error("secret {secret:?} has no key {key:?}; add it or change auth.shared.secretKeyRef.key")]
    KeyNotFound {
        /// Name of the Secret.
        secret: String,
        /// The key that is looked for.
        key: String,
    },
    /// The Secret may not be used by an `McpServer`.
    #[error(
        "secret {secret:?} is not labelled berth.dev/credential=server; label it to allow servers to use it"
    )]
    RefNotPermitted {
        /// Name of the Secret.
        secret: String,
    },
    /// The value is no credential.
    #[error("key {key:?} of secret {secret:?} {problem}; write the credential anew")]
    InvalidCredential {
        /// Name of the Secret.
        secret: String,
        /// The key.
        key: String,
        /// What is wrong with the value, never the value.
        problem: Unusable,
    },
}

impl Refusal {
    /// The reason for conditions.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::InvalidSpec { .. } => Reason::InvalidSpec,
            Self::SecretNotFound { .. } | Self::KeyNotFound { .. } => Reason::RefNotFound,
            Self::RefNotPermitted { .. } => Reason::RefNotPermitted,
            Self::InvalidCredential { .. } => Reason::InvalidCredential,
        }
    }

    /// The condition that it makes false.
    pub const fn concerns(&self) -> ConditionType {
        match self {
            Self::InvalidSpec { .. } => ConditionType::Accepted,
            _ => ConditionType::ResolvedRefs,
        }
    }
}

/// The Secret that a server names, if its authentication needs one.
pub fn secret_ref(server: &McpServer) -> Option<&SharedAuth> {
    server.spec.auth.shared.as_ref().filter(|_| server.spec.auth.type_ == AuthType::Shared)
}

/// The server, or why it cannot be acted on. `secret` is what is known of the Secret that [`secret_ref`] names.
pub fn validate(server: &McpServer, secret: SecretState<'_>) -> Result<ValidServer, Refusal> {
    let spec = &server.spec;
    let http = spec.transport.http.as_ref().ok_or(Refusal::InvalidSpec {
        field: "spec.transport.http",
        problem: "is required when transport.type is Http: set transport.http.url",
    })?;
    if spec.auth.type_ == AuthType::Shared && spec.auth.shared.is_none() {
        return Err(Refusal::InvalidSpec {
            field: "spec.auth.shared",
            problem: "is required when auth.type is Shared: set auth.shared.secretKeyRef",
        });
    }
    let headers = secret_ref(server).map(|shared| header(shared, secret)).transpose()?;
    Ok(ValidServer {
        namespace: server.metadata.namespace.clone().unwrap_or_default(),
        key: ServerKey {
            uid: server.metadata.uid.clone().unwrap_or_default(),
            name: server.metadata.name.clone().unwrap_or_default(),
            revision: name::revision(spec),
        },
        generation: server.metadata.generation.unwrap_or_default(),
        url: http.url.clone(),
        headers: headers.into_iter().collect(),
        timeouts: timeouts(server)?,
        pool: pool_size(&spec.pool),
    })
}

fn header(shared: &SharedAuth, secret: SecretState<'_>) -> Result<Header, Refusal> {
    let (name, key) = (shared.secret_key_ref.name.clone(), shared.secret_key_ref.key.clone());
    let secret = match secret {
        SecretState::Missing => return Err(Refusal::SecretNotFound { secret: name, key }),
        SecretState::Unlabelled => return Err(Refusal::RefNotPermitted { secret: name }),
        SecretState::Present(secret) => secret,
    };
    let labels = secret.metadata.labels.as_ref();
    if labels.and_then(|map| map.get(label::CREDENTIAL)).is_none_or(|value| value != label::CREDENTIAL_SERVER)
    {
        return Err(Refusal::RefNotPermitted { secret: name });
    }
    let Some(bytes) = secret.data.as_ref().and_then(|data| data.get(&key)) else {
        return Err(Refusal::KeyNotFound { secret: name, key });
    };
    match credential::parse(&bytes.0) {
        Ok(credential) if shared.scheme.is_empty() => {
            Ok(Header { name: shared.header.clone(), value: credential.to_owned() })
        }
        Ok(credential) => {
            Ok(Header { name: shared.header.clone(), value: format!("{} {credential}", shared.scheme) })
        }
        Err(problem) => Err(Refusal::InvalidCredential { secret: name, key, problem }),
    }
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
    use crate::server::fixture::{server, valid};

    const SHARED: &str = "{auth: {type: Shared, shared: {secretKeyRef: {name: token, key: value}}}}";

    fn secret(label: &str, key: &str, value: &str) -> Secret {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "token", "labels": {"berth.dev/credential": label}},
            "data": {key: k8s_openapi::ByteString(value.as_bytes().to_vec())},
        }))
        .unwrap()
    }

    fn refused(state: SecretState<'_>) -> Refusal {
        validate(&server(SHARED), state).unwrap_err()
    }

    #[test]
    fn defaults_are_those_of_the_crd() {
        let valid = valid("{}");
        assert_eq!(
            valid.pool,
            PoolSize { warm: 1, slots: 50, max_pods: 20, max_sessions: None, max_sessions_per_subject: None }
        );
        assert_eq!((valid.timeouts.connect_millis, valid.timeouts.request_max_millis), (30_000, 1_800_000));
        assert_eq!(valid.headers, vec![]);
    }

    #[test]
    fn a_shared_credential_becomes_a_header() {
        let secret = secret("server", "value", "tok\n");
        let header = |yaml: &str| validate(&server(yaml), SecretState::Present(&secret)).unwrap().headers;
        assert_eq!(header(SHARED), vec![Header { name: "Authorization".into(), value: "Bearer tok".into() }]);
        let bare = "{auth: {type: Shared, shared: {secretKeyRef: {name: token, key: value}, header: X-Key, scheme: ''}}}";
        assert_eq!(header(bare), vec![Header { name: "X-Key".into(), value: "tok".into() }]);
    }

    #[test]
    fn an_unusable_secret_is_refused_with_its_reason() {
        let session = secret("session", "value", "tok");
        let other = secret("server", "other", "tok");
        let table = [
            (refused(SecretState::Missing), Reason::RefNotFound),
            (refused(SecretState::Unlabelled), Reason::RefNotPermitted),
            (refused(SecretState::Present(&session)), Reason::RefNotPermitted),
            (refused(SecretState::Present(&other)), Reason::RefNotFound),
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
    fn a_bad_credential_names_secret_and_key_and_never_the_value() {
        let secret = secret("server", "value", "hunter2\u{e9}");
        let refusal = refused(SecretState::Present(&secret));
        assert_eq!(refusal.reason(), Reason::InvalidCredential);
        let text = refusal.to_string();
        assert!(text.contains("token") && text.contains("value") && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn a_duration_past_the_crd_is_refused_with_its_field() {
        let refusal = validate(&server("{timeouts: {drain: abc}}"), SecretState::Missing).unwrap_err();
        assert_eq!((refusal.reason(), refusal.concerns()), (Reason::InvalidSpec, ConditionType::Accepted));
        assert!(refusal.to_string().starts_with("spec.timeouts.drain is not a duration"), "{refusal}");
    }
}
