//! The CA of Berth's own parts.
//!
//! Its key lives in one Secret of the operator's namespace. The operator issues its own identity in memory, the gateway's
//! into a Secret beside the CA, and one serving certificate into the namespace of each `McpServer`. Sidecars and gateways
//! follow their mounted files, so that renewing is writing a Secret; `rotate` replaces the CA itself.

mod issue;
mod record;
mod rotate;
mod scope;
mod secret;
mod trust;

pub use issue::Purpose;
pub use rotate::Own;
pub use secret::Server;

use crate::found_good::{FoundGood, Key, Version};
use crate::{api_error, namespace};
use berth_net::identity::Identity;
use berth_plan::time::Moment;
use berth_wire::ScopeKey;
use issue::{Authority, Pair};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use record::{CA_SECRET, Record};
use scope::Master;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use trust::Trust;

/// Secret that holds the gateway's client identity.
const GATEWAY_SECRET: &str = "berth-gateway-tls";

/// Why a certificate cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A Secret could not be read or written.
    #[error("failed to {verb} secret {secret:?} in namespace {namespace:?}: {}", api_error::text(source))]
    Api {
        /// What was tried.
        verb: &'static str,
        /// Name of the Secret.
        secret: String,
        /// Namespace of the Secret.
        namespace: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// Certificates could not be listed.
    #[error("failed to list the secrets of certificates: {}", api_error::text(.0))]
    List(Box<kube::Error>),
    /// The CA's Secret holds something else.
    #[error(
        "secret \"berth-ca\" cannot be used: {0}; put back what it held, or delete it: the operator that leads writes back \
         the CA that it holds, and one that starts without any makes a new one"
    )]
    Unusable(String),
    /// Nothing is made in a namespace that is being deleted.
    #[error("namespace {0:?} is being deleted")]
    Terminating(String),
    /// The system gives no random numbers.
    #[error("cannot make a key: the system gives no random numbers")]
    Random,
    /// A certificate could not be made.
    #[error("cannot issue a certificate: {0}")]
    Issue(#[from] rcgen::Error),
    /// The own identity could not be taken up.
    #[error(transparent)]
    Identity(#[from] berth_net::identity::IdentityError),
}

impl Error {
    /// Whether nothing can be made in the namespace any more, as it is being deleted.
    pub fn is_terminating_namespace(&self) -> bool {
        match self {
            Self::Terminating(_) => true,
            Self::Api { source, .. } => api_error::is_terminating_namespace(source),
            _ => false,
        }
    }
}

/// The CA; clones share it.
#[derive(Clone)]
pub struct Ca {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    namespace: String,
    state: Mutex<State>,
    /// The CA's Secret, and those that were found good under what is trusted now.
    good: FoundGood,
    /// Somebody wants a look at everything.
    asked: Notify,
}

struct State {
    current: Arc<Current>,
    /// Known once the Secrets of all certificates were found good under it, or made so.
    settled: Option<Settled>,
}

/// The Secrets of all certificates are good.
#[derive(Clone, Copy)]
struct Settled {
    /// When they first were, with none that had to be issued since.
    since: Moment,
    /// When they were last looked at.
    seen: Moment,
}

/// The CA that signs now, and what all trust.
struct Current {
    trust: Trust,
    scope: Master,
    authority: Authority,
    bundle: String,
}

impl Current {
    fn new(trust: Trust) -> Result<Arc<Self>, Error> {
        let authority = Authority::from_pem(&trust.signer).map_err(Error::Unusable)?;
        if let Some((next, _)) = &trust.next {
            Authority::from_pem(next)
                .map_err(|reason| Error::Unusable(format!("of the CA to come, {reason}")))?;
        }
        let scope = trust
            .scope
            .clone()
            .ok_or_else(|| Error::Unusable("the key of session ids is missing".to_owned()))?;
        let bundle = trust.bundle();
        Ok(Arc::new(Self { trust, scope, authority, bundle }))
    }
}

impl Ca {
    /// The CA of the Secret, which is made when there is none. A CA whose Secret was lost stays trusted, as far as it can
    /// still be found: parts that are there show and trust its certificates.
    pub async fn open(client: Client, namespace: &str, now: Moment) -> Result<Self, Error> {
        let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let record = if let Some(found) = Record::read(&api).await? {
            found
        } else {
            let gateway = secret::read(&api, GATEWAY_SECRET).await?;
            let trust = Trust::first(Pair::create(now)?, record::still_trusted(gateway.as_ref()), now);
            Record::create(&api, &Trust { scope: Some(new_scope()?), ..trust }).await?
        };
        let record = record.with_scope(&api, new_scope).await?;
        let state = Mutex::new(State { current: Current::new(record.trust)?, settled: None });
        let (namespace, good) = (namespace.to_owned(), FoundGood::default());
        Ok(Self { shared: Arc::new(Shared { client, namespace, state, good, asked: Notify::new() }) })
    }

    /// The key that seals the session ids of clients of one session at one server.
    pub fn scope_key(&self, session_uid: &str, server_uid: &str) -> ScopeKey {
        self.current().scope.of_session(session_uid, server_uid)
    }

    /// The Secrets that were found good.
    pub fn good(&self) -> &FoundGood {
        &self.shared.good
    }

    /// The Secrets of the operator's own namespace, which [`keep`](Self::keep) sees to.
    pub fn own_secrets(&self) -> [Key; 2] {
        [CA_SECRET, GATEWAY_SECRET].map(|name| self.own_key(name))
    }

    fn own_key(&self, name: &str) -> Key {
        Key { namespace: self.shared.namespace.clone(), name: name.to_owned() }
    }

    /// Asks for a look at everything: any number of wishes until then are one.
    pub fn ask(&self) {
        self.shared.asked.notify_one();
    }

    /// Waits until somebody wants a look at everything. One waits at a time.
    pub async fn asked(&self) {
        self.shared.asked.notified().await;
    }

    /// The operator's own identity, kept in memory, and what it takes to keep it good.
    pub fn own_identity(&self, now: Moment) -> Result<(Identity, Own), Error> {
        let current = self.current();
        let issued = current.authority.issue(&Purpose::Operator, now)?;
        let ca = current.bundle.as_bytes();
        let identity = Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), ca)?;
        Ok((identity.clone(), Own { identity, renew_at: issued.renew_at, under: current }))
    }

    /// Sees to it that the gateway's Secret is good.
    pub async fn ensure_gateway(&self, now: Moment) -> Result<(), Error> {
        let wanted = secret::Wanted {
            namespace: self.shared.namespace.clone(),
            name: GATEWAY_SECRET.to_owned(),
            purpose: Purpose::Gateway,
            owner: None,
        };
        self.ensure(wanted, now).await
    }

    /// Sees to it that the Secret with a server's serving certificate is good.
    pub async fn ensure_server(&self, server: Server<'_>, now: Moment) -> Result<(), Error> {
        self.ensure(secret::Wanted::of_server(server), now).await
    }

    async fn ensure(&self, wanted: secret::Wanted, now: Moment) -> Result<(), Error> {
        let key = Key { namespace: wanted.namespace.clone(), name: wanted.name.clone() };
        if self.shared.good.trusts(&key, now) {
            return Ok(());
        }
        // Before the CA is taken: another that comes meanwhile makes this look void.
        let look = self.shared.good.begin(key);
        let current = self.current();
        let api: Api<Secret> = Api::namespaced(self.shared.client.clone(), &wanted.namespace);
        let found = secret::read(&api, &wanted.name).await?;
        let version = match found {
            Some(found) if secret::is_good(&found, &wanted, &current.bundle, now) => {
                found.metadata.resource_version
            }
            _ => self.issue(&wanted, &current, now).await?,
        };
        look.keep(version, now);
        Ok(())
    }

    /// Writes a new certificate. Says as which version.
    async fn issue(&self, wanted: &secret::Wanted, current: &Current, now: Moment) -> Result<Version, Error> {
        self.must_not_terminate(&wanted.namespace).await?;
        let api: Api<Secret> = Api::namespaced(self.shared.client.clone(), &wanted.namespace);
        let issued = current.authority.issue(&wanted.purpose, now)?;
        let version = secret::apply(&api, wanted, &issued, &current.bundle).await?;
        tracing::info!(namespace = wanted.namespace, secret = wanted.name, "certificate issued");
        Ok(version)
    }

    /// What goes with its namespace is not made again.
    async fn must_not_terminate(&self, namespace: &str) -> Result<(), Error> {
        if namespace::is_terminating(namespace, &self.shared.client).await {
            return Err(Error::Terminating(namespace.to_owned()));
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Arc<Current> {
        self.state().current.clone()
    }
}

fn new_scope() -> Result<Master, Error> {
    Master::create().ok_or(Error::Random)
}

#[cfg(test)]
impl Ca {
    /// An identity for a stand-in of one of Berth's parts.
    pub fn identity_for_test(&self, purpose: &Purpose) -> Identity {
        let current = self.current();
        let issued = current.authority.issue(purpose, crate::context::Clock::SYSTEM.now()).unwrap();
        let ca = current.bundle.as_bytes();
        Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), ca).unwrap()
    }
}
