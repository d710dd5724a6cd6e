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
/// Variable of the container: UID of the server.
const SERVER_UID: &str = "BERTH_SERVER_UID";
/// Variable of the container: revision that it is for.
const REVISION: &str = "BERTH_REVISION";
/// Where the identity is mounted.
const TLS_DIR: &str = "/etc/berth/tls";
/// Port of health and metrics.
pub const ADMIN_PORT: i32 = 8081;
/// User and group of every Berth container.
const USER: i64 = 65532;
/// Memory that a sidecar may use without any session, in MiB.
const BASE_MEBIBYTES: u32 = 160;

/// What all sidecars are made with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sidecar {
    /// Image of the container.
    pub image: String,
    /// How they reach upstreams outside of the cluster.
    pub proxy: Proxy,
}

/// The proxies that sidecars go through; what is empty is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Proxy {
    /// URL of the proxy for `https` upstreams.
    pub https: String,
    /// URL of the proxy for `http` upstreams.
    pub http: String,
    /// Hosts that are reached without one.
    pub no: String,
}

impl Sidecar {
    /// Tells one made with this from one made with anything else: the image, and a hash of the proxies if there are any.
    pub fn mark(&self) -> String {
        let Proxy { https, http, no } = &self.proxy;
        if self.proxy == Proxy::default() {
            return self.image.clone();
        }
        format!("{} proxy-{}", self.image, name::hash(&[https, http, no], 8))
    }

    /// Variables of the container, by the names that other programs know them by.
    fn env(&self) -> impl Iterator<Item = EnvVar> {
        let Proxy { https, http, no } = &self.proxy;
        let all = [("HTTPS_PROXY", https), ("HTTP_PROXY", http), ("NO_PROXY", no)];
        all.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| env(name, value))
    }
}

/// The pool pod called `pod_name`.
pub fn pod(server: &ValidServer, sidecar: &Sidecar, pod_name: &str) -> Pod {
    Pod {
        metadata: metadata(server, sidecar, pod_name),
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
            containers: vec![container(server, sidecar)],
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

/// The labels by which the operator, policies and people know a pool pod.
pub fn labels(server_uid: &str, revision: &str) -> BTreeMap<String, String> {
    text(&[
        ("app.kubernetes.io/name", "berth-sidecar"),
        (label::MANAGED_BY, label::MANAGER),
        (label::ROLE, label::ROLE_POOL),
        (label::SERVER_UID, server_uid),
        (label::REVISION, revision),
    ])
}

/// What `pod`, read whole, lacks of its [`labels`]: anybody who may write pods can take them off, and the operator watches by
/// them. They follow from the environment of its container, which nobody can change. Nothing when it is no pool pod.
pub fn lost_labels(pod: &Pod) -> Option<BTreeMap<String, String>> {
    let sidecar = pod.spec.as_ref()?.containers.iter().find(|container| container.name == CONTAINER)?;
    let set = |name: &str| sidecar.env.iter().flatten().find(|var| var.name == name)?.value.as_deref();
    let (server_uid, revision) = (set(SERVER_UID)?, set(REVISION)?);
    let has = pod.metadata.labels.as_ref();
    let lost = |(key, value): &(String, String)| has.and_then(|labels| labels.get(key)) != Some(value);
    is_owned_by(pod, server_uid).then(|| labels(server_uid, revision).into_iter().filter(lost).collect())
}

/// Of the spec of a pod what [`lost_labels`] reads.
pub fn identity(spec: PodSpec) -> PodSpec {
    let named = |var: &EnvVar| [SERVER_UID, REVISION].contains(&var.name.as_str());
    let kept = |container: Container| Container {
        name: container.name,
        env: container.env.map(|vars| vars.into_iter().filter(named).collect()),
        ..Container::default()
    };
    let sidecar = spec.containers.into_iter().filter(|container| container.name == CONTAINER);
    PodSpec { containers: sidecar.map(kept).collect(), ..PodSpec::default() }
}

/// Whether `pod` goes with the `McpServer` of that UID.
pub fn is_owned_by(pod: &Pod, server_uid: &str) -> bool {
    let wanted = owner("", server_uid);
    let same = |held: &OwnerReference| {
        held.uid == wanted.uid && held.kind == wanted.kind && held.api_version == wanted.api_version
    };
    pod.metadata.owner_references.iter().flatten().any(same)
}

fn text(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
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

fn metadata(server: &ValidServer, sidecar: &Sidecar, pod_name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(pod_name.into()),
        namespace: Some(server.namespace.clone()),
        labels: Some(labels(&server.key.uid, &server.key.revision)),
        annotations: Some(text(&[(SLOTS, &server.pool.slots.to_string()), (IMAGE, &sidecar.mark())])),
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

fn env(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.into(), value: Some(value.into()), value_from: None }
}

fn container(server: &ValidServer, sidecar: &Sidecar) -> Container {
    let own = [
        env(SERVER_UID, &server.key.uid),
        env("BERTH_SERVER_NAME", &server.key.name),
        env(REVISION, &server.key.revision),
        env("BERTH_SLOTS", &server.pool.slots.to_string()),
        env("BERTH_TLS_DIR", TLS_DIR),
    ];
    Container {
        name: CONTAINER.into(),
        image: Some(sidecar.image.clone()),
        command: Some(vec!["/berth-sidecar".into()]),
        env: Some(own.into_iter().chain(sidecar.env()).collect()),
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
            &sidecar(),
            "everything-x-0",
        );
        let wanted: Pod = serde_saphyr::from_str(include_str!("pool_pod.yaml")).unwrap();
        assert_eq!(
            serde_json::to_string_pretty(&built).unwrap(),
            serde_json::to_string_pretty(&wanted).unwrap(),
        );
    }

    #[test]
    fn proxies_are_variables_of_the_container_and_mark_the_pod() {
        let proxy = Proxy { https: "http://proxy.corp:3128".into(), http: String::new(), no: ".corp".into() };
        let through = Sidecar { proxy: proxy.clone(), ..sidecar() };
        let built = pod(&valid("{}"), &through, "p");
        let env = built.spec.unwrap().containers[0].env.clone().unwrap();
        let set: Vec<String> =
            env.iter().skip(5).map(|var| format!("{}={}", var.name, var.value.as_deref().unwrap())).collect();
        assert_eq!(set, ["HTTPS_PROXY=http://proxy.corp:3128", "NO_PROXY=.corp"]);
        assert_eq!(built.metadata.annotations.unwrap()[IMAGE], through.mark());
        let other = Sidecar { proxy: Proxy { no: String::new(), ..proxy }, ..sidecar() };
        assert_eq!(sidecar().mark(), "berth:1");
        assert!(through.mark() != other.mark() && through.mark().starts_with("berth:1 proxy-"));
    }

    fn sidecar() -> Sidecar {
        Sidecar { image: "berth:1".into(), proxy: Proxy::default() }
    }

    #[test]
    fn labels_that_somebody_took_off_or_changed_are_known_from_what_nobody_can_change() {
        let whole = pod(&valid("{}"), &sidecar(), "everything-x-0");
        assert_eq!(lost_labels(&whole), Some(BTreeMap::new()));
        let revision = valid("{}").key.revision;
        let lost = |change: fn(&mut BTreeMap<String, String>)| {
            let mut pod = whole.clone();
            change(pod.metadata.labels.as_mut().unwrap());
            lost_labels(&pod).unwrap()
        };
        assert_eq!(lost(BTreeMap::clear), labels("0a1b-server", &revision));
        assert_eq!(
            lost(|labels| {
                labels.remove(label::ROLE);
                labels.insert(label::SERVER_UID.into(), "another".into());
                labels.insert("of.somebody".into(), "else".into());
            }),
            text(&[(label::ROLE, label::ROLE_POOL), (label::SERVER_UID, "0a1b-server")])
        );
        let mut without = whole.clone();
        without.metadata.labels = None;
        assert_eq!(lost_labels(&without), Some(labels("0a1b-server", &revision)));
    }

    #[test]
    fn a_pod_of_somebody_else_has_lost_nothing() {
        let whole = pod(&valid("{}"), &sidecar(), "everything-x-0");
        let not_ours = |change: fn(&mut Pod)| {
            let mut pod = whole.clone();
            change(&mut pod);
            lost_labels(&pod).is_none()
        };
        assert!(not_ours(|pod| pod.metadata.owner_references = None));
        assert!(not_ours(|pod| pod.metadata.owner_references.as_mut().unwrap()[0].uid = "another".into()));
        assert!(not_ours(|pod| pod.metadata.owner_references.as_mut().unwrap()[0].kind = "Job".into()));
        assert!(not_ours(|pod| pod.spec.as_mut().unwrap().containers[0].env = None));
        assert!(not_ours(|pod| pod.spec.as_mut().unwrap().containers[0].name = "web".into()));
        assert!(not_ours(|pod| pod.spec = None));
    }
}
