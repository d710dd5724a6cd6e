//! The clients of a session: each known by the token that `initialize` gave it.

use super::profile::Profile;
use super::recover::Known;
use super::scope::Scope;
use super::seal::{Bound, ClientId, Key, NonceBytes, Sealed};
use super::{Desired, Session};
use crate::sync::lock;
use crate::upstream::Connection;
use std::sync::Arc;

/// A client that has a token and no scope yet.
pub(crate) struct NewClient {
    /// Its `Mcp-Session-Id`. Whoever holds it acts as the client.
    pub token: String,
    client: ClientId,
    profile: Profile,
}

/// Why a client has no scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoScope {
    /// Its token is not of this session, or it ended the scope.
    Unknown,
    /// The session is ending here, and the scope is not held any more, or was not yet. Where the session goes on, if it does, the
    /// client is known.
    Ending,
    /// Too many other clients are busy.
    TooMany,
}

impl Session {
    /// A token for a client that sent `initialize` with the raw `params`; none if the system has no randomness.
    pub(crate) fn new_client(&self, params: &str) -> Option<NewClient> {
        let (mut client, mut nonce) = (ClientId::default(), NonceBytes::default());
        self.shared.random.fill(&mut client).ok()?;
        self.shared.random.fill(&mut nonce).ok()?;
        let profile = Profile::read(params);
        let sealed = Sealed { client, params: profile.params.to_string() };
        let desired = self.desired();
        let token = self.key(&desired)?.seal(nonce, self.bound(&desired), &sealed)?;
        Some(NewClient { token, client, profile })
    }

    /// Opens the scope of a new client, on `connection`.
    pub(crate) fn open_scope(&self, new: NewClient, connection: &Connection) -> Result<(), NoScope> {
        let mut inner = lock(&self.inner);
        if !inner.link.takes_work() {
            return Err(NoScope::Ending);
        }
        let known = Known::of(connection);
        let scope = Scope::new(new.client, new.profile, known, &self.shared.metrics.scopes);
        if inner.scopes.add(scope) { Ok(()) } else { Err(NoScope::TooMany) }
    }

    /// The scope of the client with `token`. One that is not held here, as its sidecar was replaced or it gave way
    /// to others, is rebuilt.
    pub(crate) fn scope(&self, token: &str) -> Result<Arc<Scope>, NoScope> {
        let sealed = self.unseal(token).ok_or(NoScope::Unknown)?;
        let mut inner = lock(&self.inner);
        if let Some(scope) = inner.scopes.get(&sealed.client) {
            return Ok(scope);
        }
        if inner.scopes.is_closed(&sealed.client) {
            return Err(NoScope::Unknown);
        }
        if !inner.link.takes_work() {
            return Err(NoScope::Ending);
        }
        let profile = Profile::read(&sealed.params);
        let known = inner.scopes.known_of(&sealed.client).map_or_else(Known::none, Known::of_state);
        let scope = Scope::new(sealed.client, profile, known, &self.shared.metrics.scopes);
        if inner.scopes.add(scope.clone()) { Ok(scope) } else { Err(NoScope::TooMany) }
    }

    /// Ends the scope of the client with `token`, for good; its running calls go on. Gives the scope if it is held here; none if
    /// the client is unknown or has ended it before.
    pub(crate) fn close_scope(&self, token: &str) -> Result<Option<Arc<Scope>>, NoScope> {
        let sealed = self.unseal(token).ok_or(NoScope::Unknown)?;
        let mut inner = lock(&self.inner);
        if inner.scopes.is_closed(&sealed.client) {
            return Err(NoScope::Unknown);
        }
        Ok(inner.scopes.close(sealed.client))
    }

    /// All scopes, the one used last first.
    pub(crate) fn scopes(&self) -> Vec<Arc<Scope>> {
        lock(&self.inner).scopes.latest_first()
    }

    fn unseal(&self, token: &str) -> Option<Sealed> {
        let desired = self.desired();
        self.key(&desired)?.open(self.bound(&desired), token)
    }

    fn key<'a>(&'a self, desired: &'a Desired) -> Option<&'a Key> {
        desired.scope_key.as_ref().or(self.shared.scope_key.as_ref())
    }

    fn bound<'a>(&'a self, desired: &'a Desired) -> Bound<'a> {
        Bound { session: &self.uid, server: &desired.server.uid }
    }
}

impl Key {
    /// A random key; none if the system has no randomness.
    pub(crate) fn random(random: &dyn rustls::crypto::SecureRandom) -> Option<Self> {
        let mut bytes = [0; 32];
        random.fill(&mut bytes).ok()?;
        Self::new(&bytes)
    }
}
