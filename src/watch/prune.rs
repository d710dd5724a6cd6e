//! What a store leaves out: the cache is the operator's memory.

use berth_plan::server::build;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kube::{Resource, ResourceExt};

/// Drops `managedFields`, which is more than half of a small object.
pub fn meta<K: Resource>(object: &mut K) {
    object.managed_fields_mut().clear();
}

/// Keeps of a pod what `berth_plan` reads: metadata, from which labels follow, phase, address, conditions, states of containers.
pub fn pod(pod: &mut Pod) {
    meta(pod);
    pod.spec = pod.spec.take().map(build::identity);
    pod.status = pod.status.take().map(|status| PodStatus {
        phase: status.phase,
        pod_ip: status.pod_ip,
        conditions: status.conditions,
        container_statuses: status.container_statuses.map(|statuses| {
            let kept = |status: ContainerStatus| ContainerStatus {
                name: status.name,
                image: status.image,
                state: status.state,
                restart_count: status.restart_count,
                ..ContainerStatus::default()
            };
            statuses.into_iter().map(kept).collect()
        }),
        ..PodStatus::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_plan::pod::{Life, Occupancy, PoolPod, restarted_since};
    use berth_plan::time::Moment;
    use serde_json::json;

    #[test]
    fn a_pruned_pod_reads_as_before_restarts_and_all() {
        let mut whole: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "labels": {"berth.dev/revision": "r"},
                "annotations": {"berth.dev/slots": "3", "berth.dev/sidecar-image": "i"},
                "managedFields": [{"manager": "m"}]},
            "spec": {"nodeName": "n", "containers": [{"name": "other"}, {"name": "sidecar", "image": "i",
                "env": [{"name": "BERTH_SERVER_UID", "value": "s"}, {"name": "BERTH_REVISION", "value": "r"}, {"name": "X", "value": "x"}]}]},
            "status": {"phase": "Running", "podIP": "10.0.0.7", "hostIP": "10.0.0.1",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "sidecar", "image": "i", "imageID": "x", "ready": false, "restartCount": 1,
                    "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}]},
        }))
        .unwrap();
        let before = PoolPod::read(&whole, Occupancy::default());
        pod(&mut whole);
        assert_eq!((before.life, before.trouble.is_some()), (Life::Ready, true));
        assert_eq!(PoolPod::read(&whole, Occupancy::default()), before);
        assert!(before.occupancy.used && restarted_since(&whole, Moment(0)));
        let spec = json!({"containers": [{"name": "sidecar",
            "env": [{"name": "BERTH_SERVER_UID", "value": "s"}, {"name": "BERTH_REVISION", "value": "r"}]}]});
        assert_eq!(json!(whole.spec), spec);
        assert!(whole.metadata.managed_fields.unwrap_or_default().is_empty());
    }
}
