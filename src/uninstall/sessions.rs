//! Ends every session of the cluster, and waits until the operator has done it.

use crate::api_error;
use crate::name_some::name_some;
use crate::pages;
use crate::uninstall::{Options, again, say};
use berth_api::label::SESSION_FINALIZER;
use berth_api::{AgentSession, EndReason};
use futures::{StreamExt, stream};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use std::collections::HashSet;
use std::fmt;
use std::time::Duration;
use tokio::time::Instant;

/// Sessions that are told to end at once.
const AT_ONCE: usize = 8;
/// How long objects without a finalizer may take to go.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// What clears the finalizers of sessions that nobody will end.
const REMEDY: &str = "kubectl get agentsessions --all-namespaces --output json \
    | kubectl patch --filename - --type merge --patch '{\"metadata\":{\"finalizers\":null}}'";

/// What helps when the API server was in the way.
const UNINSTALL_AGAIN: &str = "uninstall again";

/// A session without spec and status: whatever those hold, and whether this version can read them, it can be ended.
type Session = PartialObjectMeta<AgentSession>;

/// Sessions that did not end, and why.
#[derive(Debug)]
pub struct Left {
    names: Vec<String>,
    trouble: Option<String>,
    advice: String,
}

impl Left {
    /// The same with what can be done: `led` is whether an operator leads.
    pub fn explained(mut self, led: bool, options: &Options) -> Self {
        let Options { namespace, deployment, timeout, .. } = options;
        let reason = if led {
            format!("not over within {}s; Berth goes on as before", timeout.as_secs())
        } else {
            format!(
                "no operator leads, so nobody ends them: see `kubectl get pods -n {namespace}` and bring deployment {deployment} back"
            )
        };
        self.advice = format!(
            "{reason}. Nothing was removed. Uninstall again when they are gone. To give up what they \
             hold, sessions at upstream servers among it, run first: {REMEDY}"
        );
        self
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.names.len() {
            0 => write!(f, "it is not known which sessions are left")?,
            1 => write!(f, "1 session is left: {}", name_some(&self.names))?,
            number => write!(f, "{number} sessions are left: {}", name_some(&self.names))?,
        }
        self.trouble.iter().try_for_each(|trouble| write!(f, " ({trouble})"))?;
        write!(f, "; {}", self.advice)
    }
}

/// Tells every session to end, those that are made meanwhile too, and waits until none is left.
pub async fn end_all(client: &Client, deadline: Instant) -> Result<(), Left> {
    let (mut told, mut shown) = (HashSet::new(), None);
    loop {
        let (listed, mut trouble) = match list(client).await {
            Ok(listed) if listed.is_empty() => return Ok(()),
            Ok(listed) => (listed, None),
            Err(error) => (Vec::new(), Some(format!("cannot list them: {}", api_error::text(&error)))),
        };
        let wishes = listed
            .iter()
            .filter(|session| !told.contains(&session.uid()))
            .map(|session| end(client, session));
        let ended: Vec<_> = stream::iter(wishes).buffer_unordered(AT_ONCE).collect().await;
        for ended in ended {
            match ended {
                Ok(uid) => drop(told.insert(uid)),
                Err(error) => trouble = Some(error),
            }
        }
        if trouble.is_none() && shown != Some(listed.len()) {
            shown = Some(listed.len());
            say(&format!("sessions still to end: {} ({})", listed.len(), name_some(&names(&listed))));
        }
        if !again(deadline).await {
            let trouble = trouble.or_else(|| held_by_others(&listed));
            return Err(Left { names: names(&listed), trouble, advice: String::new() });
        }
    }
}

/// Deletes the sessions that were made while the operator stopped. False when one of them has our finalizer, so that it takes
/// an operator to end it.
pub async fn end_late(client: &Client) -> Result<bool, Left> {
    let listed = listed(client).await?;
    for session in &listed {
        end(client, session).await.map_err(|trouble| Left {
            names: names(&listed),
            trouble: Some(trouble),
            advice: UNINSTALL_AGAIN.to_owned(),
        })?;
    }
    Ok(!listed.iter().any(|session| session.finalizers().iter().any(|held| held == SESSION_FINALIZER)))
}

/// Deletes all that are left, removes our finalizer from them, and waits until they are gone.
pub async fn give_up(client: &Client) -> Result<(), Left> {
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        let listed = listed(client).await?;
        if listed.is_empty() {
            return Ok(());
        }
        let mut trouble = None;
        for session in &listed {
            // Only what is deleted goes when its finalizer does: an operator would give another to what is not.
            if session.metadata.deletion_timestamp.is_none() {
                trouble = end(client, session).await.err().or(trouble);
                continue;
            }
            match release(client, session).await {
                Ok(true) => say(&format!(
                    "finalizer of session {} removed; what it held upstream may live on",
                    name(session)
                )),
                Ok(false) => {}
                Err(error) => trouble = Some(api_error::text(&error)),
            }
        }
        if !again(deadline).await {
            return Err(Left { names: names(&listed), trouble, advice: advice(&listed) });
        }
    }
}

/// What can be done about sessions that were given up and have not gone.
fn advice(left: &[Session]) -> String {
    held_by_others(left).unwrap_or_else(|| UNINSTALL_AGAIN.to_owned())
}

/// Which sessions wait for somebody else.
fn held_by_others(left: &[Session]) -> Option<String> {
    let of_others =
        |session: &&Session| session.finalizers().iter().any(|finalizer| finalizer != SESSION_FINALIZER);
    let held: Vec<String> = left.iter().filter(of_others).map(name).collect();
    (!held.is_empty())
        .then(|| format!("finalizers of others hold {}: ask those who set them", name_some(&held)))
}

/// Ends one session: the reason first, then the deletion, so that the reason stands. Gives its UID.
async fn end(client: &Client, session: &Session) -> Result<Option<String>, String> {
    let uid = session.uid();
    if session.metadata.deletion_timestamp.is_some() {
        return Ok(uid);
    }
    let (api, called) = (api_of(client, session), session.name_any());
    let reason = json!({"spec": {"end": {"reason": EndReason::Shutdown}}});
    match api.patch(&called, &PatchParams::default(), &Patch::Merge(reason)).await {
        // Gone, or it has a reason already, which stands.
        Err(error) if !api_error::is_outdated(&error) => return Err(failed(session, &error)),
        _ => {}
    }
    let preconditions = Preconditions { uid: uid.clone(), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&called, &params).await {
        Err(error) if !api_error::is_outdated(&error) => Err(failed(session, &error)),
        _ => Ok(uid),
    }
}

/// Removes our finalizer, unless the object has changed since it was listed. True when it was there.
async fn release(client: &Client, session: &Session) -> kube::Result<bool> {
    let held = session.finalizers();
    let others: Vec<&String> = held.iter().filter(|finalizer| *finalizer != SESSION_FINALIZER).collect();
    if others.len() == held.len() {
        return Ok(false);
    }
    let patch = json!({"metadata": {"resourceVersion": session.resource_version(), "finalizers": others}});
    match api_of(client, session)
        .patch(&session.name_any(), &PatchParams::default(), &Patch::Merge(patch))
        .await
    {
        Err(error) if api_error::is_outdated(&error) => Ok(false),
        patched => patched.map(|_| true),
    }
}

/// All sessions, or what is said when they cannot be known.
async fn listed(client: &Client) -> Result<Vec<Session>, Left> {
    list(client).await.map_err(|error| Left {
        names: Vec::new(),
        trouble: Some(api_error::text(&error)),
        advice: UNINSTALL_AGAIN.to_owned(),
    })
}

/// All sessions.
async fn list(client: &Client) -> kube::Result<Vec<Session>> {
    match pages::metadata(&Api::<AgentSession>::all(client.clone())).await {
        // The kind itself is gone, and every session with it.
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Vec::new()),
        listed => listed,
    }
}

fn api_of(client: &Client, session: &Session) -> Api<Session> {
    Api::namespaced(client.clone(), &session.namespace().unwrap_or_default())
}

fn failed(session: &Session, error: &kube::Error) -> String {
    format!("cannot end {}: {}", name(session), api_error::text(error))
}

fn name(session: &Session) -> String {
    format!("{}/{}", session.namespace().unwrap_or_default(), session.name_any())
}

fn names(sessions: &[Session]) -> Vec<String> {
    sessions.iter().map(name).collect()
}
