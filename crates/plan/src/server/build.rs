//! What a pool pod looks like: one sidecar container that passes Pod Security `restricted` and needs no API access.

use crate::name;
use crate::pod::{IMAGE, SLOTS};
use crate::server::validate::ValidServer;
use crate::session::clocks::end_bound;
use berth_api::{GROUP, VERSION, label};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, HTTPGetAction, Pod, PodSecurityContext, PodSpec, Probe,
    ResourceRequirements, SeccompProfile, SecretVolumeSource, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::collections::BTreeMap;
use std::time::Duration;

/// Name of the sidecar's container.
pub const CONTAINER: &str = "sidecar";
/// Where the identity is mounted.
const TLS_DIR: &str = "/etc/berth/tls";
/// Port of health and metrics.
pub const ADMIN_PORT: i32 = 8081;
/// User and group of every Berth container.
const USER: i64 = 65532;
/// Memory that a sidecar may use without any session, in MiB.
const BASE_MEBIBYTES: u32 = 128;

/// The pool pod called `pod_name`.
pub fn pod(server: &ValidServer, image: &str, pod_name: &str) -> Pod {
    Pod {
        metadata: metadata(server, image, pod_name),
        spec: Some(PodSpec {
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            termination_grace_period_seconds: Some(grace_seconds(server)),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                run_as_group: Some(USER),
                fs_group: Some(USER),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".into(),
                    localhost_profile: None,
                }),
                ..PodSecurityContext::default()
            }),
            containers: vec![container(server, image)],
            volumes: Some(vec![Volume {
                name: "tls".into(),
                secret: Some(SecretVolumeSource {
                    secret_name: Some(name::certificate(&server.key.name, &server.key.uid)),
                    default_mode: Some(0o440),
                    ..SecretVolumeSource::default()
                }),
                ..Volume::default()
            }]),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// The reference that lets an object go with its `McpServer`.
pub fn owner(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: "McpServer".into(),
        name: name.into(),
        uid: uid.into(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

fn metadata(server: &ValidServer, image: &str, pod_name: &str) -> ObjectMeta {
    let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    ObjectMeta {
        name: Some(pod_name.into()),
        namespace: Some(server.namespace.clone()),
        labels: Some(text(&[
            ("app.kubernetes.io/name", "berth-sidecar"),
            (label::MANAGED_BY, label::MANAGER),
            (label::ROLE, label::ROLE_POOL),
            (label::SERVER_UID, &server.key.uid),
            (label::REVISION, &server.key.revision),
        ])),
        annotations: Some(text(&[(SLOTS, &server.pool.slots.to_string()), (IMAGE, image)])),
        owner_references: Some(vec![owner(&server.key.name, &server.key.uid)]),
        ..ObjectMeta::default()
    }
}

/// A pod may take as long to go as the longest end of a session in it.
fn grace_seconds(server: &ValidServer) -> i64 {
    let span = end_bound(
        Duration::from_millis(server.timeouts.drain_millis),
        Duration::from_millis(server.timeouts.close_millis),
    );
    i64::try_from(span.as_millis().div_ceil(1000)).unwrap_or(i64::MAX)
}

fn container(server: &ValidServer, image: &str) -> Container {
    let env =
        |name: &str, value: &str| EnvVar { name: name.into(), value: Some(value.into()), value_from: None };
    Container {
        name: CONTAINER.into(),
        image: Some(image.into()),
        command: Some(vec!["/berth-sidecar".into()]),
        env: Some(vec![
            env("BERTH_SERVER_UID", &server.key.uid),
            env("BERTH_SERVER_NAME", &server.key.name),
            env("BERTH_REVISION", &server.key.revision),
            env("BERTH_SLOTS", &server.pool.slots.to_string()),
            env("BERTH_TLS_DIR", TLS_DIR),
        ]),
        ports: Some(vec![port("control", i32::from(berth_wire::SIDECAR_PORT)), port("admin", ADMIN_PORT)]),
        readiness_probe: Some(probe("/readyz", 1, 3)),
        liveness_probe: Some(probe("/livez", 10, 6)),
        resources: Some(resources(server.pool.slots)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![VolumeMount {
            name: "tls".into(),
            mount_path: TLS_DIR.into(),
            read_only: Some(true),
            ..VolumeMount::default()
        }]),
        ..Container::default()
    }
}

fn port(name: &str, number: i32) -> ContainerPort {
    ContainerPort { name: Some(name.into()), container_port: number, ..ContainerPort::default() }
}

fn probe(path: &str, period_seconds: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::Int(ADMIN_PORT),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        failure_threshold: Some(failures),
        timeout_seconds: Some(5),
        ..Probe::default()
    }
}

/// Small requests; the memory limit grows with the sessions that a pod may hold.
fn resources(slots: u32) -> ResourceRequirements {
    let quantities = |pairs: &[(&str, String)]| -> BTreeMap<String, Quantity> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), Quantity(value.clone()))).collect()
    };
    ResourceRequirements {
        requests: Some(quantities(&[("cpu", "10m".into()), ("memory", "32Mi".into())])),
        limits: Some(quantities(&[("memory", format!("{}Mi", BASE_MEBIBYTES + slots))])),
        claims: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::fixture::valid;

    #[test]
    fn a_pool_pod_is_exactly_this() {
        let built = pod(
            &valid("{pool: {sessionsPerPod: 4}, timeouts: {drain: 1500ms, close: 5s}}"),
            "berth:1",
            "everything-x-0",
        );
        let wanted: Pod = serde_saphyr::from_str(include_str!("pool_pod.yaml")).unwrap();
        assert_eq!(
            serde_json::to_string_pretty(&built).unwrap(),
            serde_json::to_string_pretty(&wanted).unwrap(),
        );
    }
}
