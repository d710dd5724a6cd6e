//! Whether a namespace is being deleted.

use crate::api_error;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};

/// Whether a namespace is being deleted: nothing is made there any more. Where that cannot be learnt, making shows it.
pub async fn is_terminating(namespace: &str, client: &Client) -> bool {
    match Api::<Namespace>::all(client.clone()).get_metadata_opt(namespace).await {
        Ok(found) => found.is_some_and(|found| found.metadata.deletion_timestamp.is_some()),
        Err(error) => {
            tracing::debug!(
                namespace,
                error = api_error::text(&error),
                "cannot tell whether the namespace is being deleted"
            );
            false
        }
    }
}
