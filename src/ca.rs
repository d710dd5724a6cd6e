//! The CA of Berth's own parts.
//!
//! Its key lives in one Secret of the operator's namespace. The operator issues its own client identity in memory, the
//! gateway's into a Secret beside the CA, and one serving certificate into the namespace of each `McpServer`. Sidecars
//! and gateways follow their mounted files, so that renewing is writing a Secret.

mod issue;
mod secret;

pub use issue::{Issued, Purpose};

use crate::api_error;
use berth_net::identity::Identity;
use berth_plan::time::Moment;
use issue::Authority;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Secret that holds the CA's certificate and key.
const CA_SECRET: &str = "berth-ca";
/// Secret that holds the gateway's client identity.
const GATEWAY_SECRET: &str = "berth-gateway-tls";
/// How long a Secret that was found good is not looked at again.
const TRUST: Duration = Duration::from_mins(10);

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
    /// The CA's Secret holds something else.
    #[error("secret \"berth-ca\" cannot be used: {0}; delete it to get a new CA")]
    Unusable(String),
    /// A certificate could not be made.
    #[error("cannot issue a certificate: {0}")]
    Issue(#[from] rcgen::Error),
    /// The own identity could not be taken up.
    #[error(transparent)]
    Identity(#[from] berth_net::identity::IdentityError),
}

/// The CA; clones share it.
#[derive(Clone)]
pub struct Ca {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    namespace: String,
    authority: Authority,
    /// When each Secret was last found good, by namespace and name.
    good: Mutex<HashMap<(String, String), Moment>>,
}

impl Ca {
    /// The CA of the Secret, which is made when there is none.
    pub async fn open(client: Client, namespace: &str, now: Moment) -> Result<Self, Error> {
        let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let found = match secret::read(&api, CA_SECRET).await? {
            Some(found) => found,
            None => {
                secret::create(&api, &secret::of_authority(CA_SECRET, &Authority::create(now)?), CA_SECRET)
                    .await?
            }
        };
        let authority = secret::authority(&found)?;
        let shared = Shared { client, namespace: namespace.to_owned(), authority, good: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A certificate for the operator itself, kept in memory.
    pub fn own_identity(&self, now: Moment) -> Result<(Identity, Issued), Error> {
        let issued = self.shared.authority.issue(&Purpose::Operator, now)?;
        let ca = self.shared.authority.pem().as_bytes();
        Ok((Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), ca)?, issued))
    }

    /// Gives `identity` a new certificate; says when it is due again.
    pub fn renew_own(&self, identity: &Identity, now: Moment) -> Result<Moment, Error> {
        let issued = self.shared.authority.issue(&Purpose::Operator, now)?;
        let ca = self.shared.authority.pem().as_bytes();
        identity.replace_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), ca)?;
        Ok(issued.renew_at)
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
    pub async fn ensure_server(&self, server: secret::Server<'_>, now: Moment) -> Result<(), Error> {
        self.ensure(secret::Wanted::of_server(server), now).await
    }

    async fn ensure(&self, wanted: secret::Wanted, now: Moment) -> Result<(), Error> {
        let key = (wanted.namespace.clone(), wanted.name.clone());
        let trusted = |good: &HashMap<_, Moment>| good.get(&key).is_some_and(|seen| seen.plus(TRUST) > now);
        if trusted(&self.shared.good.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(());
        }
        let api: Api<Secret> = Api::namespaced(self.shared.client.clone(), &wanted.namespace);
        let found = secret::read(&api, &wanted.name).await?;
        if !found.is_some_and(|found| secret::is_good(&found, self.shared.authority.pem(), now)) {
            let issued = self.shared.authority.issue(&wanted.purpose, now)?;
            secret::apply(&api, &wanted, &issued, self.shared.authority.pem()).await?;
            tracing::info!(namespace = wanted.namespace, secret = wanted.name, "certificate issued");
        }
        let mut good = self.shared.good.lock().unwrap_or_else(PoisonError::into_inner);
        // The book is small, and one of servers that are gone is cleared here.
        good.retain(|_, seen| seen.plus(TRUST) > now);
        good.insert(key, now);
        Ok(())
    }
}

pub use secret::Server;

#[cfg(test)]
impl Ca {
    /// An identity for a stand-in of one of Berth's parts.
    pub fn identity_for_test(&self, purpose: &Purpose) -> Identity {
        let issued = self.shared.authority.issue(purpose, crate::context::Clock::SYSTEM.now()).unwrap();
        let ca = self.shared.authority.pem().as_bytes();
        Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), ca).unwrap()
    }
}
