//! Reads what an `AgentSession` names: its servers, each judged on its own.

use crate::context::Context;
use crate::controller::server::secret_state;
use berth_api::AgentSession;
use berth_plan::server::validate::{ValidServer, validate};
use berth_plan::session::status::Outcome;
use berth_plan::session::validate::binding;
use futures::future::join_all;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

/// The server of each binding, or what becomes of the binding without it; in the order of `spec.servers`. What cannot be read
/// concerns its own binding only.
pub async fn bindings(session: &AgentSession, ctx: &Context) -> Vec<Result<ValidServer, Outcome>> {
    join_all(session.spec.servers.iter().map(|server| server_of(session, &server.name, ctx))).await
}

async fn server_of(session: &AgentSession, name: &str, ctx: &Context) -> Result<ValidServer, Outcome> {
    let namespace = session.namespace().unwrap_or_default();
    let found = ctx.stores.servers.get(&ObjectRef::new(name).within(&namespace));
    let found = match found.filter(|found| found.metadata.deletion_timestamp.is_none()) {
        Some(found) => {
            let secret = secret_state(&found, ctx)
                .await
                .map_err(|error| Outcome::Unconfirmed { error: error.to_string() })?;
            Some(validate(&found, secret.state()))
        }
        None => None,
    };
    binding(session, name, found).map_err(Outcome::Refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{context, deleted_session, failure, server, store_of};
    use serde_json::json;

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
        assert_eq!(judged[1].as_ref().unwrap().key.name, "everything");
    }
}
