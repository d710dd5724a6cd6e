//! May a binding of a session be acted on, and with which credential? Each binding is judged on its own: one bad server of
//! several leaves the others.

use crate::server;
use crate::server::authorities::{self, CaState};
use crate::server::credential::{self, Reference, SecretState, User};
use crate::server::validate::{Auth, ValidServer, accept, shared_header};
use berth_api::{AgentSession, AuthType, ConditionType, McpServer, Reason, SecretKeyRef, ServerBinding};
use berth_wire::{Failure, Header, UpstreamTls};

/// A binding whose server can be acted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The server.
    pub server: ValidServer,
    /// Headers of every request to the upstream, the credential among them. Without the credential that the server asks for no
    /// slot is taken, and a slot that is held is kept, with nothing sent.
    pub headers: Result<Vec<Header>, Refusal>,
    /// How the upstream's certificate is checked. Without the authorities that the server names it is as without a credential.
    pub tls: Result<Option<UpstreamTls>, Refusal>,
}

/// Why a binding cannot be acted on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The server does not exist.
    #[error(
        "server {server:?} does not exist in namespace {namespace:?}; create the McpServer or remove it from spec.servers"
    )]
    ServerNotFound {
        /// Name of the server.
        server: String,
        /// Namespace of the session.
        namespace: String,
    },
    /// The server itself cannot be acted on.
    #[error("server {server:?}: {refusal}")]
    Server {
        /// Name of the server.
        server: String,
        /// Why.
        refusal: server::validate::Refusal,
    },
    /// The server takes the session's own credential, and the session names none.
    #[error(
        "spec.servers[{index}].credential is required, since server {server:?} has auth.type Session; set its secretKeyRef to a Secret with the label berth.dev/credential=session"
    )]
    NoCredential {
        /// Which binding.
        index: usize,
        /// Name of the server.
        server: String,
    },
    /// The session's own credential cannot be had.
    #[error("server {server:?}: {refusal}")]
    Credential {
        /// Name of the server.
        server: String,
        /// Why.
        refusal: credential::Refusal,
    },
}

impl Refusal {
    /// The reason for conditions.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::ServerNotFound { .. } => Reason::RefNotFound,
            Self::Server { refusal, .. } => refusal.reason(),
            Self::NoCredential { .. } => Reason::InvalidSpec,
            Self::Credential { refusal, .. } => refusal.reason(),
        }
    }

    /// The condition that it makes false.
    pub const fn concerns(&self) -> ConditionType {
        match self {
            Self::NoCredential { .. } => ConditionType::Accepted,
            Self::ServerNotFound { .. } | Self::Server { .. } | Self::Credential { .. } => {
                ConditionType::ResolvedRefs
            }
        }
    }

    /// What is missing, in words for a caller.
    pub const fn subject(&self) -> &'static str {
        match self {
            Self::Server { refusal: server::validate::Refusal::Authorities(_), .. } => "the CA certificates",
            Self::ServerNotFound { .. }
            | Self::Server { .. }
            | Self::NoCredential { .. }
            | Self::Credential { .. } => "the credential",
        }
    }

    /// What a caller is told who calls meanwhile.
    pub const fn failure(&self) -> Failure {
        match self.reason() {
            Reason::RefNotFound => Failure::RefNotFound,
            Reason::RefNotPermitted => Failure::RefNotPermitted,
            Reason::InvalidCredential => Failure::InvalidCredential,
            _ => Failure::InvalidSpec,
        }
    }

    /// Whether it may be over without an event that says so.
    pub const fn is_unseen(&self) -> bool {
        match self {
            Self::Server { refusal, .. } => refusal.is_unseen(),
            Self::Credential { refusal, .. } => refusal.is_unseen(),
            Self::ServerNotFound { .. } | Self::NoCredential { .. } => false,
        }
    }
}

/// The Secret that holds the credential of one binding at `server`, if there has to be one.
pub fn secret_ref<'a>(server: &'a McpServer, binding: &'a ServerBinding) -> Option<&'a SecretKeyRef> {
    let auth = &server.spec.auth;
    match auth.type_ {
        AuthType::None => None,
        AuthType::Shared => auth.shared.as_ref().map(|shared| &shared.secret_key_ref),
        AuthType::Session => binding.credential.as_ref().map(|credential| &credential.secret_key_ref),
    }
}

/// The binding number `index` of `session`, or why it cannot be acted on. `found` is the server of that name, and what is known
/// of the Secret that [`secret_ref`] names and of the object that [`authorities::ca_ref`] names.
pub fn binding(
    session: &AgentSession,
    (index, binding): (usize, &ServerBinding),
    found: Option<(&McpServer, SecretState<'_>, CaState<'_>)>,
) -> Result<Binding, Refusal> {
    let name = || binding.name.clone();
    let Some((server, secret, ca)) = found else {
        let namespace = session.metadata.namespace.clone().unwrap_or_default();
        return Err(Refusal::ServerNotFound { server: name(), namespace });
    };
    let tls = authorities::resolve(server, ca)
        .map_err(|refusal| Refusal::Server { server: name(), refusal: refusal.into() });
    let server = accept(server).map_err(|refusal| Refusal::Server { server: name(), refusal })?;
    let headers = match &server.auth {
        Auth::None => Ok(Vec::new()),
        Auth::Shared(shared) => shared_header(shared, secret)
            .map(|header| vec![header])
            .map_err(|refusal| Refusal::Server { server: name(), refusal: refusal.into() }),
        Auth::Session(carrier) => own_credential((index, binding), secret)
            .map(|credential| vec![credential::header(&carrier.header, &carrier.scheme, credential)]),
    };
    Ok(Binding { server, headers, tls })
}

fn own_credential<'a>(
    (index, binding): (usize, &ServerBinding),
    secret: SecretState<'a>,
) -> Result<&'a str, Refusal> {
    let server = || binding.name.clone();
    let named =
        binding.credential.as_ref().ok_or_else(|| Refusal::NoCredential { index, server: server() })?;
    let field = format!("spec.servers[{index}].credential.secretKeyRef");
    let reference = Reference { user: User::Session, field: &field, named: &named.secret_key_ref };
    credential::resolve(reference, secret)
        .map_err(|refusal| Refusal::Credential { server: server(), refusal })
}

#[cfg(test)]
pub(crate) mod fixture {
    use berth_api::AgentSession;

    /// A session of Alice whose spec names the server `everything` and holds what `yaml` (one flow mapping) says beside it.
    pub fn session(yaml: &str) -> AgentSession {
        let mut spec: serde_json::Value = serde_saphyr::from_str(yaml).unwrap();
        if spec.get("servers").is_none() {
            spec["servers"] = serde_json::json!([{"name": "everything"}]);
        }
        spec["subject"] = serde_json::json!({"issuer": "", "name": "alice@corp.example"});
        serde_json::from_value(serde_json::json!({
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "AgentSession",
            "metadata": {"name": "chat", "namespace": "demo", "uid": "77-session", "generation": 2},
            "spec": spec,
        }))
        .unwrap()
    }
}

#[cfg(test)]
mod tests;
