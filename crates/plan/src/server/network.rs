//! The `NetworkPolicy` of one server: who reaches the port of its sidecars that gives calls and control away.
//!
//! Mutual TLS decides who may use that port. The policy is a second wall: who cannot reach it cannot try.

use crate::name;
use crate::server::build::{ADMIN_PORT, owner};
use berth_api::label;
use berth_wire::{SIDECAR_PORT, ServerKey};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::collections::BTreeMap;

/// Label that every namespace has, with its own name as the value.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// The pods that may reach sidecars: those of operator and gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callers {
    /// Their namespace.
    pub namespace: String,
    /// Labels that all of them have.
    pub labels: BTreeMap<String, String>,
}

/// The policy for the sidecars of a server. Every field that the API server would fill in is written out, so that what it
/// holds compares equal. Health and metrics stay open: the kubelet asks for them, and they name nobody. What sidecars dial is
/// not restricted, since only the user knows where the upstream is.
pub fn network_policy(namespace: &str, server: &ServerKey, callers: &Callers) -> NetworkPolicy {
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let selector = |labels| Some(LabelSelector { match_labels: Some(labels), ..LabelSelector::default() });
    let callers = NetworkPolicyPeer {
        namespace_selector: selector(labels(&[(NAMESPACE_NAME, &callers.namespace)])),
        pod_selector: selector(callers.labels.clone()),
        ip_block: None,
    };
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(name::network_policy(&server.name, &server.uid)),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels(&[(label::MANAGED_BY, label::MANAGER), (label::SERVER_UID, &server.uid)])),
            owner_references: Some(vec![owner(&server.name, &server.uid)]),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: selector(labels(&[(label::SERVER_UID, &server.uid)])),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(vec![
                NetworkPolicyIngressRule {
                    from: Some(vec![callers]),
                    ports: Some(vec![port(i32::from(SIDECAR_PORT))]),
                },
                NetworkPolicyIngressRule { from: None, ports: Some(vec![port(ADMIN_PORT)]) },
            ]),
            egress: None,
        }),
    }
}

/// Whether what the API server holds does what `wanted` says, and goes with the same server. Labels and annotations of
/// others do not matter.
pub fn is_current(found: &NetworkPolicy, wanted: &NetworkPolicy) -> bool {
    let labelled = |(key, value): (&String, &String)| {
        found.metadata.labels.as_ref().and_then(|labels| labels.get(key)) == Some(value)
    };
    let owned =
        |owner: &OwnerReference| found.metadata.owner_references.iter().flatten().any(|held| held == owner);
    found.spec == wanted.spec
        && wanted.metadata.owner_references.iter().flatten().all(owned)
        && wanted.metadata.labels.iter().flatten().all(labelled)
}

fn port(number: i32) -> NetworkPolicyPort {
    NetworkPolicyPort {
        protocol: Some("TCP".to_owned()),
        port: Some(IntOrString::Int(number)),
        end_port: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::build;
    use crate::server::fixture::valid;

    fn policy(labels: &[(&str, &str)]) -> NetworkPolicy {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let server = valid("{}");
        network_policy(&server.namespace, &server.key, &Callers { namespace: "berth-system".into(), labels })
    }

    #[test]
    fn a_policy_is_exactly_this() {
        let wanted: NetworkPolicy = serde_saphyr::from_str(include_str!("network_policy.yaml")).unwrap();
        assert_eq!(
            serde_json::to_string_pretty(&policy(&[("app.kubernetes.io/part-of", "berth")])).unwrap(),
            serde_json::to_string_pretty(&wanted).unwrap(),
        );
    }

    #[test]
    fn it_selects_the_pods_that_are_built_for_the_server() {
        let pod = build::pod(&valid("{}"), &build::Sidecar::default(), "everything-x-0");
        let (labels, selector) =
            (pod.metadata.labels.unwrap(), policy(&[]).spec.unwrap().pod_selector.unwrap());
        let selected = selector.match_labels.unwrap();
        assert!(!selected.is_empty() && selected.iter().all(|(key, value)| labels.get(key) == Some(value)));
    }

    #[test]
    fn what_others_add_is_left_alone_and_what_they_change_is_set_right() {
        let wanted = policy(&[("a", "b")]);
        let mut found = wanted.clone();
        found.metadata.resource_version = Some("7".into());
        found.metadata.labels.get_or_insert_default().insert("team".into(), "x".into());
        assert!(is_current(&found, &wanted));
        assert!(!is_current(&policy(&[("a", "c")]), &wanted));
        let mut opened = found.clone();
        opened.spec.as_mut().unwrap().ingress.as_mut().unwrap()[0].from = None;
        let mut unlabelled = found.clone();
        unlabelled.metadata.labels = None;
        let mut orphaned = found;
        orphaned.metadata.owner_references = None;
        for broken in [opened, unlabelled, orphaned] {
            assert!(!is_current(&broken, &wanted), "{broken:?}");
        }
    }
}
