//! Reads what an `AgentSession` names: its servers, each judged on its own.

use crate::context::Context;
use crate::controller::server::secret_state;
use berth_api::AgentSession;
use berth_plan::server::validate::{ValidServer, validate};
use berth_plan::session::validate::{Refusal, binding};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

/// Something could not be read.
pub use crate::controller::server::DereferenceError as Error;

/// The server of each binding, or why it cannot be used; in the order of `spec.servers`.
pub async fn bindings(
    session: &AgentSession,
    ctx: &Context,
) -> Result<Vec<Result<ValidServer, Refusal>>, Error> {
    let namespace = session.namespace().unwrap_or_default();
    let mut judged = Vec::with_capacity(session.spec.servers.len());
    for server in &session.spec.servers {
        let found = ctx.stores.servers.get(&ObjectRef::new(&server.name).within(&namespace));
        let found = match found.filter(|found| found.metadata.deletion_timestamp.is_none()) {
            Some(found) => {
                let secret = secret_state(&found, ctx).await?;
                Some(validate(&found, secret.state()))
            }
            None => None,
        };
        judged.push(binding(session, &server.name, found));
    }
    Ok(judged)
}
