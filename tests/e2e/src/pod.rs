//! What a pod's status says.

use k8s_openapi::api::core::v1::Pod;

/// Whether a pod is Ready and not on its way out.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_so = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    is_so && pod.metadata.deletion_timestamp.is_none()
}
