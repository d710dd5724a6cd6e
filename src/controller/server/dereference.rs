//! Reads what an `McpServer` names: its Secret, its pods with who holds their slots, the sessions that name it.

use crate::api_error;
use crate::context::Context;
use crate::fleet::Reported;
use crate::slots::Book;
use berth_api::{AgentSession, AuthType, McpServer, Reason, label};
use berth_plan::pod::{Life, PoolPod};
use berth_plan::server::authorities::CaState;
use berth_plan::server::credential::SecretState;
use berth_plan::server::pool::Claim;
use berth_plan::server::validate::secret_ref;
use berth_plan::session::validate;
use berth_plan::time::Moment;
use berth_wire::SessionState;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::HashMap;
use std::sync::Arc;

/// Something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not tell of a Secret.
    #[error("failed to read secret {secret:?}: {}", api_error::text(source))]
    Read {
        /// Name of the Secret.
        secret: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// The API server did not tell of a ConfigMap.
    #[error("failed to read configmap {config_map:?}: {}", api_error::text(source))]
    ReadConfigMap {
        /// Name of the ConfigMap.
        config_map: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// A Secret is there with its label, and the watch has not brought it yet.
    #[error("secret {secret:?} is not known yet; it is there and its watch will bring it")]
    Behind {
        /// Name of the Secret.
        secret: String,
    },
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

/// The Secret that a server names.
pub async fn secret_state(server: &McpServer, ctx: &Context) -> Result<Found, Error> {
    let Some(shared) = secret_ref(server) else { return Ok(Found::Missing) };
    named_secret(&server.namespace().unwrap_or_default(), &shared.secret_key_ref.name, ctx).await
}

/// A Secret, as far as it can be seen: only labelled ones are watched, so that of one that is not in the store the metadata is
/// asked for, to tell a missing Secret from a missing label.
pub async fn named_secret(namespace: &str, name: &str, ctx: &Context) -> Result<Found, Error> {
    if let Some(secret) = ctx.stores.secrets.get(&ObjectRef::new(name).within(namespace)) {
        return Ok(Found::Present(secret));
    }
    match ctx.api::<Secret>(namespace).get_metadata_opt(name).await {
        // Whatever its value, which is judged once the Secret is in the store.
        Ok(Some(found)) if found.labels().contains_key(label::CREDENTIAL) => {
            Err(Error::Behind { secret: name.to_owned() })
        }
        Ok(Some(_)) => Ok(Found::Unlabelled),
        Ok(None) => Ok(Found::Missing),
        Err(source) => Err(Error::Read { secret: name.to_owned(), source: Box::new(source) }),
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
        let mut read = PoolPod::read(&pod, occupancy).locked_by(ctx.fleet.lock_of(&uid));
        if book.is_condemned(&uid) {
            read.life = Life::Terminating;
        }
        read
    };
    ctx.stores.pods.state_filter(of_server).into_iter().map(read).collect()
}

/// The sessions that name a server, do not end, and have or could take a slot: one without the credential that the server asks
/// for takes none.
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
        let promised = book.promise_of(&uid, &server_uid).map(|promise| promise.pod.clone());
        let (held, over) =
            if promised.is_none() { reported(&uid, &server_uid, ctx) } else { (None, Vec::new()) };
        // A slot of which only the sidecar tells: whoever gave it died before that was written.
        let pod = promised.or(held);
        if pod.is_none() && !has_credential(&session, server, ctx) {
            return None;
        }
        Some(Claim {
            // Only a session that waits for a slot can be shut out.
            barred: if pod.is_none() { over } else { Vec::new() },
            told_limit: pod.is_none() && says_limit(&session, &name),
            pod,
            session: uid,
            subject: session.spec.subject.clone(),
            created: session.metadata.creation_timestamp.as_ref().map_or(Moment(0), Moment::from_api),
        })
    };
    ctx.stores.sessions.state_filter(names).into_iter().filter_map(claim).collect()
}

/// Whether the status of a session says that it waits for a bound of the server with that name.
fn says_limit(session: &AgentSession, server: &str) -> bool {
    let mut entries = session.status.iter().flat_map(|status| &status.servers);
    entries
        .any(|entry| entry.name == server && entry.reason.as_deref() == Some(Reason::LimitReached.as_str()))
}

/// What sidecars of a server tell of a session: the pod that holds it, and those where it has ended or ends.
fn reported(session_uid: &str, server_uid: &str, ctx: &Context) -> (Option<String>, Vec<String>) {
    let over =
        |reported: &Reported| matches!(reported.report.state, SessionState::Ending | SessionState::Ended);
    let reports = ctx.fleet.reports_of(session_uid).into_iter();
    let (over, held): (Vec<_>, Vec<_>) =
        reports.filter(|reported| reported.server_uid == server_uid).partition(over);
    let held = held.into_iter().map(|reported| reported.pod).next();
    (held, over.into_iter().map(|reported| reported.pod).collect())
}

/// Whether a session has the credential of its own that a server may ask for. A Secret that is not in the store is none,
/// whatever the reason.
fn has_credential(session: &AgentSession, server: &McpServer, ctx: &Context) -> bool {
    if server.spec.auth.type_ != AuthType::Session {
        return true;
    }
    let (namespace, name) = (server.namespace().unwrap_or_default(), server.name_any());
    let mut named = session.spec.servers.iter().enumerate().filter(|(_, binding)| binding.name == name);
    named.any(|(index, binding)| {
        let secret = validate::secret_ref(server, binding)
            .and_then(|named| ctx.stores.secrets.get(&ObjectRef::new(&named.name).within(&namespace)));
        let state = secret.as_deref().map_or(SecretState::Missing, SecretState::Present);
        let judged = validate::binding(session, (index, binding), Some((server, state, CaState::Missing)));
        judged.is_ok_and(|judged| judged.headers.is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{context, deleted_session, failure, server, store_of};
    use crate::fleet::stand::{Stand, pod, report, until};
    use k8s_openapi::ByteString;
    use serde_json::json;

    fn session(uid: &str, secret: Option<&str>) -> AgentSession {
        let mut session = deleted_session(&json!({}));
        session.metadata.deletion_timestamp = None;
        session.spec.end = None;
        (session.metadata.uid, session.metadata.name) = (Some(uid.into()), Some(uid.into()));
        let credential = secret.map(|name| json!({"secretKeyRef": {"name": name, "key": "token"}}));
        let servers = json!([{"name": "everything", "credential": credential}]);
        session.spec.servers = serde_json::from_value(servers).unwrap();
        session
    }

    fn secret(name: &str, label: &str) -> Secret {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "demo", "labels": {"berth.dev/credential": label}},
            "data": {"token": ByteString(b"tok".to_vec())},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn only_a_session_that_has_the_credential_or_a_slot_claims_one() {
        let (mut ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
        ctx.stores.secrets = store_of(vec![secret("own", "session"), secret("of-server", "server")]);
        ctx.stores.sessions = store_of(vec![
            session("has-it", Some("own")),
            session("may-not", Some("of-server")),
            session("misses-it", Some("missing")),
            session("names-none", None),
            session("holds-a-slot", Some("missing")),
        ]);
        ctx.slots.with(|book| book.promise("holds-a-slot", "server", "pod"));
        let claimed = |server: &McpServer| {
            let claims = ctx.slots.with(|book| claims("demo", server, &ctx, book));
            let mut sessions: Vec<String> = claims.into_iter().map(|claim| claim.session).collect();
            sessions.sort();
            sessions
        };
        let own = json!({"auth": {"type": "Session", "session": {}}});
        assert_eq!(claimed(&server("everything", &own)), ["has-it", "holds-a-slot"]);
        assert_eq!(claimed(&server("everything", &json!({}))).len(), 5, "who sends none needs none");
    }

    #[tokio::test]
    async fn who_waits_for_a_bound_is_known_by_what_its_status_says_of_that_server() {
        let (mut ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
        let says = |uid: &str, server: &str, reason: &str| {
            let mut session = session(uid, None);
            let entry = json!({"name": server, "state": "Pending", "reason": reason});
            session.status = serde_json::from_value(json!({"servers": [entry]})).unwrap();
            session
        };
        ctx.stores.sessions = store_of(vec![
            says("told", "everything", "LimitReached"),
            says("waits", "everything", "Pending"),
            says("told-of-another", "another", "LimitReached"),
            session("new", None),
        ]);
        let claims = ctx.slots.with(|book| claims("demo", &server("everything", &json!({})), &ctx, book));
        let told: Vec<String> =
            claims.into_iter().filter(|claim| claim.told_limit).map(|claim| claim.session).collect();
        assert_eq!(told, ["told"]);
    }

    #[tokio::test]
    async fn a_slot_of_which_only_a_sidecar_tells_is_held() {
        let (mut ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
        ctx.stores.sessions =
            store_of(vec![session("taken", None), session("ended", None), session("waits", None)]);
        let told = vec![report("taken", SessionState::Idle), report("ended", SessionState::Ended)];
        let _stand = Stand::start(&ctx.ca, "127.0.77.31", told).await;
        for uid in ["taken", "ended", "waits"] {
            ctx.slots.know(&session(uid, None));
        }
        ctx.fleet.follow(&pod("127.0.77.31"));
        until("synced", || ctx.fleet.is_synced("pod")).await;
        let claimed = |of: &McpServer| {
            let mut claims = ctx.slots.with(|book| claims("demo", of, &ctx, book));
            claims.sort_by(|one, other| one.session.cmp(&other.session));
            let told = |claim: Claim| (claim.session, claim.pod, claim.barred);
            claims.into_iter().map(told).collect::<Vec<_>>()
        };
        let (pod, none) = (|| "pod".to_owned(), Vec::<String>::new);
        let (taken, ended, waits) = ("taken".to_owned(), "ended".to_owned(), "waits".to_owned());
        assert_eq!(
            claimed(&server("everything", &json!({}))),
            [
                (ended.clone(), None, vec![pod()]),
                (taken.clone(), Some(pod()), none()),
                (waits.clone(), None, none())
            ]
        );
        // What another server of that name held once is no slot of this one.
        let mut anew = server("everything", &json!({}));
        anew.metadata.uid = Some("anew".into());
        assert_eq!(claimed(&anew), [(ended, None, none()), (taken, None, none()), (waits, None, none())]);
    }

    #[tokio::test]
    async fn a_secret_that_is_not_watched_is_told_from_one_that_is_not_there() {
        let (mut ctx, _) = context(|_| failure(404, "NotFound", "no")).await;
        ctx.stores.secrets = store_of(vec![secret("own", "session")]);
        let found = async |name: &str| match named_secret("demo", name, &ctx).await {
            Ok(Found::Present(secret)) => format!("present {}", secret.name_any()),
            Ok(Found::Unlabelled) => "unlabelled".to_owned(),
            Ok(Found::Missing) => "missing".to_owned(),
            Err(error) => error.to_string(),
        };
        assert_eq!(found("own").await, "present own");
        assert_eq!(found("unlabelled").await, "unlabelled");
        assert_eq!(found("missing").await, "missing");
        assert_eq!(
            found("labelled").await,
            "secret \"labelled\" is not known yet; it is there and its watch will bring it"
        );
        assert_eq!(found("unreadable").await, "failed to read secret \"unreadable\": etcd is away");
    }
}
