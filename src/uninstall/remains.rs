//! Removes what the operator made, when no session needs it any more.

use crate::api_error;
use crate::name_some::name_some;
use crate::uninstall::{Options, again, say};
use berth_api::label;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::fmt::Debug;
use tokio::time::Instant;

/// Something is left.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused something.
    #[error("cannot {what}: {}; uninstall again", api_error::text(source))]
    Api {
        /// What was tried.
        what: &'static str,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// Objects did not go in time.
    #[error(
        "these {kind} objects have not gone in time: {}; uninstall again when they have",
        name_some(names)
    )]
    Left {
        /// Their kind.
        kind: String,
        /// Namespaces and names.
        names: Vec<String>,
    },
}

impl Error {
    fn api(what: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { what, source: Box::new(source) }
    }
}

/// The operator's Deployment.
pub struct Operator {
    client: Client,
    namespace: String,
    deployment: String,
    /// Its replicas before it was stopped, and the labels of its pods; none when there is no Deployment.
    found: Option<(i32, String)>,
    stopped: bool,
}

impl Operator {
    /// The operator as it is there.
    pub async fn find(client: &Client, options: &Options) -> Result<Self, Error> {
        let api: Api<Deployment> = Api::namespaced(client.clone(), &options.namespace);
        let found =
            api.get_opt(&options.deployment).await.map_err(Error::api("read the operator's Deployment"))?;
        let found = found.and_then(|found| {
            let labels = found.spec.selector.match_labels?;
            let selector: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            Some((found.spec.replicas.unwrap_or(1), selector.join(",")))
        });
        let (namespace, deployment) = (options.namespace.clone(), options.deployment.clone());
        Ok(Self { client: client.clone(), namespace, deployment, found, stopped: false })
    }

    /// Stops it and waits until none of its pods is left.
    pub async fn stop(&mut self, deadline: Instant) -> Result<(), Error> {
        let Some((_, selector)) = self.found.clone() else {
            say("there is no operator to stop");
            return Ok(());
        };
        self.stopped = true;
        self.scale(0).await.map_err(Error::api("scale the operator to zero"))?;
        say("the operator stops");
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = ListParams::default().labels(&selector);
        loop {
            let left = pods.list_metadata(&params).await.map_err(Error::api("list the operator's pods"))?;
            if left.items.is_empty() {
                return Ok(());
            }
            if !again(deadline).await {
                let names = left.iter().map(ResourceExt::name_any).collect();
                return Err(Error::Left { kind: "Pod".to_owned(), names });
            }
        }
    }

    /// Brings it back as it was, if it was stopped.
    pub async fn start(&mut self) -> Result<(), Error> {
        let Some((replicas, _)) = self.found.as_ref().filter(|_| self.stopped) else { return Ok(()) };
        self.scale(*replicas).await.map_err(Error::api("scale the operator back"))?;
        self.stopped = false;
        say("the operator is back");
        Ok(())
    }

    async fn scale(&self, replicas: i32) -> kube::Result<()> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        api.patch_scale(&self.deployment, &PatchParams::default(), &patch).await.map(drop)
    }
}

/// Removes pods, certificates, policies and the Lease.
pub async fn clear(client: &Client, namespace: &str, deadline: Instant) -> Result<(), Error> {
    let ours = format!("{}={}", label::MANAGED_BY, label::MANAGER);
    let pool = format!("{}={}", label::ROLE, label::ROLE_POOL);
    // Pods first: they use the rest.
    clear_all::<Pod>(client, &pool, deadline).await?;
    clear_all::<NetworkPolicy>(client, &ours, deadline).await?;
    clear_all::<Secret>(client, &ours, deadline).await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    match leases.delete(label::LEADER_LEASE, &DeleteParams::default()).await {
        Err(error) if !api_error::is_outdated(&error) => Err(Error::api("delete the lease")(error)),
        _ => Ok(()),
    }
}

/// Deletes the objects of a kind with those labels, in every namespace, until none is left.
async fn clear_all<K>(client: &Client, labels: &str, deadline: Instant) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let params = ListParams::default().labels(labels);
    loop {
        let left = Api::<K>::all(client.clone())
            .list_metadata(&params)
            .await
            .map_err(Error::api("list what is to be removed"))?;
        if left.items.is_empty() {
            return Ok(());
        }
        for object in left.iter().filter(|object| object.metadata.deletion_timestamp.is_none()) {
            let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
            match api.delete(&object.name_any(), &DeleteParams::default()).await {
                Err(error) if !api_error::is_outdated(&error) => {
                    return Err(Error::api("delete what is to be removed")(error));
                }
                _ => {}
            }
        }
        if !again(deadline).await {
            let name = |object: &PartialObjectMeta<K>| {
                format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
            };
            return Err(Error::Left {
                kind: K::kind(&()).into_owned(),
                names: left.iter().map(name).collect(),
            });
        }
    }
}
