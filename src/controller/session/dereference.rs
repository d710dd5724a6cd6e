//! Reads what an `AgentSession` names: its servers and their credentials, each binding judged on its own.

use crate::context::Context;
use crate::controller::server::authorities::{self, Age, FoundCa};
use crate::controller::server::{Found, SecretError, named_secret};
use berth_api::{AgentSession, BindingState, ServerBinding};
use berth_plan::session::status::Outcome;
use berth_plan::session::validate::{Binding, binding, secret_ref};
use futures::future::join_all;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

/// Each binding with its server, or what becomes of it without; in the order of `spec.servers`. What cannot be read concerns
/// its own binding only.
pub async fn bindings(session: &AgentSession, ctx: &Context) -> Vec<Result<Binding, Outcome>> {
    join_all(session.spec.servers.iter().enumerate().map(|named| judge(session, named, ctx))).await
}

async fn judge(
    session: &AgentSession,
    named: (usize, &ServerBinding),
    ctx: &Context,
) -> Result<Binding, Outcome> {
    let namespace = session.namespace().unwrap_or_default();
    let server = ctx.stores.servers.get(&ObjectRef::new(&named.1.name).within(&namespace));
    let server = server.filter(|server| server.metadata.deletion_timestamp.is_none());
    let secret = match server.as_deref().and_then(|server| secret_ref(server, named.1)) {
        Some(secret) => match named_secret(&namespace, &secret.name, ctx).await {
            // Who holds a slot keeps it: until the Secret is known, nothing is sent there.
            Err(SecretError::Behind { .. }) if has_slot(session, named.1) => Found::Unlabelled,
            found => found.map_err(|error| Outcome::Unconfirmed { error: error.to_string() })?,
        },
        None => Found::Missing,
    };
    let ca = match server.as_deref() {
        Some(server) => match authorities::find(server, Age::Recent, ctx).await {
            Err(SecretError::Behind { .. }) if has_slot(session, named.1) => {
                FoundCa::Secret(Found::Unlabelled)
            }
            found => found.map_err(|error| Outcome::Unconfirmed { error: error.to_string() })?,
        },
        None => FoundCa::Missing,
    };
    let found = server.as_deref().map(|server| (server, secret.state(), ca.state()));
    binding(session, named, found).map_err(Outcome::Refused)
}

/// Whether status says that the session has a slot for `binding`.
fn has_slot(session: &AgentSession, binding: &ServerBinding) -> bool {
    let mut servers = session.status.iter().flat_map(|status| &status.servers);
    servers.any(|server| {
        server.name == binding.name && server.state != BindingState::Pending && server.pod_ref.is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{context, deleted_session, failure, server, store_of};
    use berth_api::{AuthType, SessionAuth};
    use berth_plan::session::validate::Refusal;
    use k8s_openapi::ByteString;
    use k8s_openapi::api::core::v1::Secret;
    use serde_json::{Value, json};

    #[tokio::test]
    async fn a_secret_that_cannot_be_read_concerns_its_own_binding_only() {
        let (mut ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
        let locked = json!({"auth": {"type": "Shared", "shared": {"secretKeyRef": {"name": "unreadable", "key": "token"}}}});
        ctx.stores.servers = store_of(vec![server("locked", &locked), server("everything", &json!({}))]);
        let mut session = deleted_session(&json!({}));
        let mut first = session.spec.servers[0].clone();
        first.name = "locked".into();
        session.spec.servers.insert(0, first);
        let judged = bindings(&session, &ctx).await;
        let Err(Outcome::Unconfirmed { error }) = &judged[0] else { panic!("not the binding's outcome") };
        assert_eq!(error, "failed to read secret \"unreadable\": etcd is away");
        assert_eq!(judged[1].as_ref().unwrap().server.key.name, "everything");
    }

    #[tokio::test]
    async fn a_secret_whose_watch_is_behind_is_not_known_yet_and_takes_no_slot_away() {
        let own = json!({"secretKeyRef": {"name": "labelled", "key": "token"}});
        let (mut ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
        let takes = json!({"auth": {"type": "Session", "session": {}}});
        ctx.stores.servers = store_of(vec![server("everything", &takes)]);
        let judged = async |status: Value| {
            let mut session = deleted_session(&status);
            session.spec.servers[0].credential = serde_json::from_value(own.clone()).unwrap();
            bindings(&session, &ctx).await.remove(0)
        };
        let Err(Outcome::Unconfirmed { error }) = judged(json!({})).await else { panic!("it is not known") };
        assert!(error.starts_with("secret \"labelled\" is not known yet"), "{error}");
        let pod = json!({"name": "p", "uid": "pod", "address": "10.0.0.1", "serverUid": "server"});
        let bound = json!({"servers": [{"name": "everything", "state": "Bound", "podRef": pod}]});
        assert!(judged(bound).await.unwrap().headers.is_err(), "kept, with nothing sent");
    }

    fn credential(namespace: &str, label: &str) -> Secret {
        serde_json::from_value(json!({
            "metadata": {"name": "own", "namespace": namespace, "labels": {"berth.dev/credential": label}},
            "data": {"token": ByteString(b"of-session\n".to_vec())},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_sessions_own_secret_is_looked_for_in_its_namespace_and_under_its_label() {
        let own = json!({"secretKeyRef": {"name": "own", "key": "token"}});
        let mut session = deleted_session(&json!({}));
        session.spec.servers[0].credential = serde_json::from_value(own).unwrap();
        let mut takes = server("everything", &json!({}));
        takes.spec.auth.type_ = AuthType::Session;
        takes.spec.auth.session = Some(SessionAuth { header: "X-Key".into(), scheme: String::new() });
        let cases: [(Vec<Secret>, Value); 4] = [
            (vec![], json!("RefNotFound")),
            (vec![credential("other", "session")], json!("RefNotFound")),
            (vec![credential("demo", "server")], json!("RefNotPermitted")),
            (
                vec![credential("other", "session"), credential("demo", "session")],
                json!(["X-Key", "of-session"]),
            ),
        ];
        for (secrets, wanted) in cases {
            let (mut ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
            ctx.stores.servers = store_of(vec![takes.clone()]);
            ctx.stores.secrets = store_of(secrets);
            let judged = bindings(&session, &ctx).await.remove(0).unwrap();
            let found = match judged.headers {
                Ok(headers) => json!([headers[0].name, headers[0].value]),
                Err(Refusal::Credential { refusal, .. }) => json!(refusal.reason().as_str()),
                Err(refusal) => panic!("{refusal}"),
            };
            assert_eq!(found, wanted);
        }
    }
}
