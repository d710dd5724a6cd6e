//! Keeps every certificate good, and lets one CA follow another: `trust` says when, this does it.

use crate::ca::issue::{Pair, Purpose};
use crate::ca::record::{CA_SECRET, Record};
use crate::ca::secret::{Wanted, is_good};
use crate::ca::{Ca, Current, Error, Settled};
use berth_api::label;
use berth_net::identity::Identity;
use berth_plan::time::Moment;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::ListParams;
use std::sync::Arc;
use std::time::Duration;

/// How often the Secrets of all certificates are looked at when nothing has changed; those of servers in good order are
/// looked at more often by their reconciles.
const REFRESH: Duration = Duration::from_hours(6);
/// Secrets listed in one request.
const PAGE: u32 = 250;

/// The operator's own identity, and what it was made of.
pub struct Own {
    pub(super) identity: Identity,
    pub(super) renew_at: Moment,
    pub(super) under: Arc<Current>,
}

impl Own {
    /// Makes the certificate anew when it is due, or when what is trusted has changed.
    fn renew(&mut self, current: Arc<Current>, now: Moment) -> Result<(), Error> {
        if Arc::ptr_eq(&self.under, &current) && now < self.renew_at {
            return Ok(());
        }
        let issued = current.authority.issue(&Purpose::Operator, now)?;
        let ca = current.bundle.as_bytes();
        self.identity.replace_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), ca)?;
        (self.renew_at, self.under) = (issued.renew_at, current);
        Ok(())
    }
}

impl Ca {
    /// One look at everything: the CA's Secret, the certificates of all parts, the own one.
    pub async fn keep(&self, own: &mut Own, now: Moment) -> Result<(), Error> {
        let record = self.look(now).await;
        // A Secret that cannot be used or written holds up what needs all of them, and nothing else.
        let spread = self.spread(own, now).await;
        let record = record?;
        let settled = self.state().settled.map(|settled| settled.since);
        let Some(step) = record.trust.step(record.asked, settled, now) else { return spread };
        let api = Api::namespaced(self.shared.client.clone(), &self.shared.namespace);
        let after = record.trust.after(step, Pair::create(now)?, now);
        let written = record.replace(&api, &after).await?;
        tracing::info!(?step, "rotation of the CA");
        self.take_up(&written)?;
        self.spread(own, now).await
    }

    /// Reads the CA's Secret and takes up what changed there. When it is gone, it comes back as it was: another CA would part
    /// what is there from what is made later, and is to be had by asking for it.
    async fn look(&self, now: Moment) -> Result<Record, Error> {
        let api = Api::namespaced(self.shared.client.clone(), &self.shared.namespace);
        let look = self.good().begin(self.own_key(CA_SECRET));
        let record = if let Some(found) = Record::read(&api).await? {
            found
        } else {
            self.must_not_terminate(&self.shared.namespace).await?;
            let created = Record::create(&api, &self.current().trust).await?;
            tracing::warn!(
                namespace = self.shared.namespace,
                secret = CA_SECRET,
                "the secret of the CA was gone and is written back as it was"
            );
            created
        };
        let held = self.current().scope.clone();
        let record = record.with_scope(&api, || Ok(held)).await?;
        self.take_up(&record)?;
        look.keep(record.version.clone(), now);
        Ok(record)
    }

    fn take_up(&self, record: &Record) -> Result<(), Error> {
        if self.current().trust != record.trust {
            let current = Current::new(record.trust.clone())?;
            let mut state = self.state();
            state.current = current;
            state.settled = None;
            self.good().clear();
        }
        Ok(())
    }

    /// Brings what is trusted now, and certificates under it, to every part.
    async fn spread(&self, own: &mut Own, now: Moment) -> Result<(), Error> {
        own.renew(self.current(), now)?;
        self.ensure_gateway(now).await?;
        self.refresh(now).await
    }

    /// Looks through the Secrets of all servers' certificates and issues those that are not good: also of servers whose
    /// reconcile fails, since the sidecars of a server that is not in order go on serving.
    async fn refresh(&self, now: Moment) -> Result<(), Error> {
        let current = self.current();
        if self.state().settled.is_some_and(|settled| settled.seen.plus(REFRESH) > now) {
            return Ok(());
        }
        let api = Api::<Secret>::all(self.shared.client.clone());
        let selector = format!("{}={}", label::ROLE, label::ROLE_CERTIFICATE);
        let mut params = ListParams::default().labels(&selector).limit(PAGE);
        let (mut result, mut issued) = (Ok(()), false);
        loop {
            let page = api.list(&params).await.map_err(|source| Error::List(Box::new(source)))?;
            for secret in &page.items {
                let Some(wanted) = Wanted::of_secret(secret) else { continue };
                if is_good(secret, &wanted, &current.bundle, now) {
                    continue;
                }
                issued = true;
                match self.issue(&wanted, &current, now).await {
                    Err(error) if !error.is_terminating_namespace() => result = Err(error),
                    _ => {}
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => break,
            }
        }
        result?;
        let mut state = self.state();
        if Arc::ptr_eq(&state.current, &current) {
            let before = state.settled.filter(|_| !issued);
            state.settled = Some(Settled { since: before.map_or(now, |before| before.since), seen: now });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
