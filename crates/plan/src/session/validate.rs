//! May a binding of a session be acted on? Each binding is judged on its own: one bad server of several leaves the others.

use crate::server;
use crate::server::validate::ValidServer;
use berth_api::{AgentSession, Reason};

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
}

impl Refusal {
    /// The reason for conditions.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::ServerNotFound { .. } => Reason::RefNotFound,
            Self::Server { refusal, .. } => refusal.reason(),
        }
    }
}

/// The server of one binding, or why the binding cannot be acted on. `found` is the server of that name, judged.
pub fn binding(
    session: &AgentSession,
    server: &str,
    found: Option<Result<ValidServer, server::validate::Refusal>>,
) -> Result<ValidServer, Refusal> {
    match found {
        None => Err(Refusal::ServerNotFound {
            server: server.to_owned(),
            namespace: session.metadata.namespace.clone().unwrap_or_default(),
        }),
        Some(Err(refusal)) => Err(Refusal::Server { server: server.to_owned(), refusal }),
        Some(Ok(valid)) => Ok(valid),
    }
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
mod tests {
    use super::*;
    use crate::server::fixture::{server, valid};
    use crate::server::validate::{SecretState, validate};

    #[test]
    fn a_missing_server_is_named_with_its_namespace_and_the_remedy() {
        let refusal = binding(&fixture::session("{}"), "gone", None).unwrap_err();
        assert_eq!(refusal.reason(), Reason::RefNotFound);
        assert_eq!(
            refusal.to_string(),
            "server \"gone\" does not exist in namespace \"demo\"; create the McpServer or remove it from spec.servers"
        );
    }

    #[test]
    fn a_refused_server_passes_its_reason_on() {
        let judged = validate(
            &server("{auth: {type: Shared, shared: {secretKeyRef: {name: a, key: b}}}}"),
            SecretState::Unlabelled,
        );
        let refusal = binding(&fixture::session("{}"), "everything", Some(judged)).unwrap_err();
        assert_eq!(refusal.reason(), Reason::RefNotPermitted);
        assert!(refusal.to_string().starts_with("server \"everything\": secret \"a\""), "{refusal}");
    }

    #[test]
    fn a_valid_server_is_the_binding() {
        assert_eq!(binding(&fixture::session("{}"), "everything", Some(Ok(valid("{}")))), Ok(valid("{}")));
    }
}
