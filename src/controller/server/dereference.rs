//! Reads what an `McpServer` names: its Secret, its pods with who holds their slots, the sessions that name it.

use crate::api_error;
use crate::context::Context;
use crate::fleet::Reported;
use crate::slots::Book;
use berth_api::{AgentSession, McpServer, label};
use berth_plan::pod::{Life, PoolPod};
use berth_plan::server::pool::Claim;
use berth_plan::server::validate::{SecretState, secret_ref};
use berth_plan::time::Moment;
use berth_wire::SessionState;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::HashMap;
use std::sync::Arc;

/// Something could not be read.
#[derive(Debug, thiserror::Error)]
#[error("failed to read secret {secret:?}: {}", api_error::text(source))]
pub struct Error {
    secret: String,
    source: Box<kube::Error>,
}

/// What was found of a Secret.
pub enum Found {
    /// There is none.
    Missing,
    /// It exists without the label.
    Unlabelled,
    /// It is in the store.
    Present(Arc<Secret>),
}

impl Found {
    /// The same for `validate`.
    pub fn state(&self) -> SecretState<'_> {
        match self {
            Self::Missing => SecretState::Missing,
            Self::Unlabelled => SecretState::Unlabelled,
            Self::Present(secret) => SecretState::Present(secret),
        }
    }
}

/// The Secret that a server names, as far as it can be seen: only labelled ones are watched, so that of one that is not in
/// the store the metadata is asked for, to tell a missing Secret from a missing label.
pub async fn secret_state(server: &McpServer, ctx: &Context) -> Result<Found, Error> {
    let Some(shared) = secret_ref(server) else { return Ok(Found::Missing) };
    let (namespace, name) = (server.namespace().unwrap_or_default(), &shared.secret_key_ref.name);
    if let Some(secret) = ctx.stores.secrets.get(&ObjectRef::new(name).within(&namespace)) {
        return Ok(Found::Present(secret));
    }
    match ctx.api::<Secret>(&namespace).get_metadata_opt(name).await {
        // One that carries the label by now is about to be in the store, whose event asks for a look.
        Ok(Some(_)) => Ok(Found::Unlabelled),
        Ok(None) => Ok(Found::Missing),
        Err(source) => Err(Error { secret: name.clone(), source: Box::new(source) }),
    }
}

/// The pods of a server, with who holds their slots. Pods that are about to be deleted count as on their way out.
pub fn pool_pods(namespace: &str, server_uid: &str, ctx: &Context, book: &Book) -> Vec<PoolPod> {
    let of_server = |pod: &Pod| {
        pod.namespace().as_deref() == Some(namespace)
            && pod.labels().get(label::SERVER_UID).is_some_and(|uid| uid == server_uid)
    };
    let mut promised: HashMap<&str, Vec<String>> = HashMap::new();
    for (session, promise) in book.promised(server_uid) {
        promised.entry(&promise.pod).or_default().push(session.clone());
    }
    let read = |pod: Arc<Pod>| {
        let uid = pod.uid().unwrap_or_default();
        let occupancy = ctx.fleet.occupancy(&uid, promised.remove(uid.as_str()).unwrap_or_default());
        let mut read = PoolPod::read(&pod, occupancy);
        if book.is_condemned(&uid) {
            read.life = Life::Terminating;
        }
        read
    };
    ctx.stores.pods.state_filter(of_server).into_iter().map(read).collect()
}

/// The sessions that name a server and do not end.
pub fn claims(namespace: &str, server: &McpServer, ctx: &Context, book: &Book) -> Vec<Claim> {
    let (name, server_uid) = (server.name_any(), server.uid().unwrap_or_default());
    let names = |session: &AgentSession| {
        session.metadata.deletion_timestamp.is_none()
            && session.spec.end.is_none()
            && session.namespace().as_deref() == Some(namespace)
            && session.spec.servers.iter().any(|binding| binding.name == name)
    };
    let claim = |session: Arc<AgentSession>| {
        let uid = session.uid().unwrap_or_default();
        let pod = book.promise_of(&uid, &server_uid).map(|promise| promise.pod.clone());
        let over =
            |reported: &Reported| matches!(reported.report.state, SessionState::Ending | SessionState::Ended);
        // Only a session that waits for a slot can be shut out.
        let reports = if pod.is_none() { ctx.fleet.reports_of(&uid) } else { Vec::new() };
        Claim {
            pod,
            barred: reports.into_iter().filter(over).map(|reported| reported.pod).collect(),
            session: uid,
            subject: session.spec.subject.clone(),
            created: session.metadata.creation_timestamp.as_ref().map_or(Moment(0), Moment::from_api),
        }
    };
    ctx.stores.sessions.state_filter(names).into_iter().map(claim).collect()
}
