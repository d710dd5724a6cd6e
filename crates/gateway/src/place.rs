//! Where a call goes: now, or once the session's place is known.

use crate::authenticate::User;
use crate::entry::Entry;
use crate::gateway::Gateway;
use crate::metrics::Kind;
use crate::path::SessionPath;
use crate::respond::Refusal;
use crate::route::{self, Decision, Destination};
use std::time::Instant;
use tokio::time::timeout_at;

/// A call that is looked up.
pub struct Ask<'a> {
    /// Which server of which session.
    pub path: &'a SessionPath<'a>,
    /// Key of the session in the index.
    pub key: String,
    /// Whether it is a message, or a stream that listens.
    pub kind: Kind,
    /// Who calls.
    pub user: &'a User,
    /// Whether the user may use sessions of others.
    pub may_connect: bool,
    /// When the whole of it had come: every wait counts from here.
    pub since: Instant,
}

impl Ask<'_> {
    /// The decision on it, given the session's entry.
    pub fn decide(&self, entry: Option<&Entry>) -> Decision {
        route::decide(entry, self.path.server, self.user, self.may_connect)
    }
}

/// The place to send a call to. `refused` did not accept it: another place is taken as soon as there is one, the same one
/// only after a pause, since the sidecar there may get the session back.
///
/// # Errors
/// [`Refusal::SessionNotFound`], [`Refusal::Blocked`], or [`Refusal::NotPlaced`], [`Refusal::SidecarUnavailable`] and
/// [`Refusal::Starting`] when the wait is over; [`Refusal::Ending`] when the process is.
pub async fn place(
    gateway: &Gateway,
    ask: &Ask<'_>,
    refused: Option<&Destination>,
) -> Result<Destination, Refusal> {
    if let Decision::Forward(destination) = ask.decide(gateway.index.get(&ask.key).as_deref())
        && refused != Some(&destination)
    {
        return Ok(destination);
    }
    let (began, _waiting) = (Instant::now(), gateway.metrics.waiting());
    let placed = wait(gateway, ask, refused).await;
    gateway.metrics.waited(began.elapsed());
    placed
}

async fn wait(
    gateway: &Gateway,
    ask: &Ask<'_>,
    refused: Option<&Destination>,
) -> Result<Destination, Refusal> {
    let settings = &gateway.settings;
    let end = ask.since + settings.placement_wait;
    let again = end.min(Instant::now() + settings.retry_pause);
    let mut session = gateway.index.follow(&ask.key);
    let ending = gateway.ending.of(ask.kind);
    loop {
        let decision = ask.decide(session.current().as_deref());
        let synced = gateway.index.is_synced();
        let until = match &decision {
            Decision::Forward(destination) if refused != Some(destination) => return Ok(destination.clone()),
            Decision::Forward(_) => again,
            // The watch may be a moment behind whoever made the session, or repaired it.
            Decision::NotFound if synced => ask.since + settings.settle,
            Decision::Blocked(_) => ask.since + settings.settle,
            Decision::NotFound | Decision::Wait(_) => end,
        };
        tokio::select! {
            changed = timeout_at(until.into(), session.changed()) => if changed.is_ok() { continue },
            () = ending.cancelled() => return Err(Refusal::Ending),
        }
        return match decision {
            Decision::Forward(destination) if until < end => Ok(destination),
            Decision::Forward(_) => Err(Refusal::SidecarUnavailable),
            Decision::Wait(reason) => Err(Refusal::NotPlaced { reason }),
            Decision::Blocked(reason) => {
                let (namespace, session) = (ask.path.namespace.into(), ask.path.session.into());
                Err(Refusal::Blocked { reason, namespace, session })
            }
            Decision::NotFound if synced => Err(Refusal::SessionNotFound),
            Decision::NotFound => Err(Refusal::Starting),
        };
    }
}
