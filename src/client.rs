//! Clients to the API server: one for the leader's calls, one for watches and the election.

use crate::lead::{Lead, fence::Fence};
use berth_cluster::builder;
use kube::{Client, Config};
use std::time::Duration;

/// How long a call may go without a byte from the API server.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The clients.
pub struct Clients {
    /// For the leader's calls, which pass only while it leads. An API server that accepts and then says nothing is an error
    /// after ten seconds.
    pub calls: Client,
    /// For watches, which are silent for minutes: the watcher has its own clock. For the election, which has its own too.
    pub watches: Client,
}

/// Clients from the pod's service account, or from the kubeconfig outside a cluster.
pub async fn clients(lead: &Lead) -> Result<Clients, Error> {
    let mut config = Config::infer().await.map_err(|error| Error::Infer(error.to_string()))?;
    // None of them sends again what may have been sent: retries are the work queue's.
    let watches = builder(&config).map_err(|error| Error::Build(error.to_string()))?.build();
    config.read_timeout = Some(CALL_TIMEOUT);
    config.reset_reader_on_write = true;
    let calls = builder(&config).map_err(|error| Error::Build(error.to_string()))?;
    let calls = calls.with_layer(&Fence(lead.clone())).build();
    Ok(Clients { calls, watches })
}

/// A client for a command that runs once, without any lead.
pub async fn single() -> Result<Client, Error> {
    let mut config = Config::infer().await.map_err(|error| Error::Infer(error.to_string()))?;
    config.read_timeout = Some(CALL_TIMEOUT);
    config.reset_reader_on_write = true;
    Ok(builder(&config).map_err(|error| Error::Build(error.to_string()))?.build())
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither a service account nor a kubeconfig was found.
    #[error("cannot find the API server: {0}; run in a pod with a service account, or set KUBECONFIG")]
    Infer(String),
    /// The configuration cannot be used.
    #[error("cannot use the cluster's configuration: {0}")]
    Build(String),
}
