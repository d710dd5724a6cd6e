//! What the gateway keeps of an `AgentSession`: only what routing reads, so that thousands cost little.

use berth_api::{AgentSession, BindingState, BindingStatus, Reason};
use std::net::IpAddr;
use std::sync::Arc;

/// One session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// UID of the `AgentSession`: the session's key in sidecars.
    pub uid: Arc<str>,
    /// Issuer of the subject; empty is the Kubernetes API server.
    pub issuer: Box<str>,
    /// Name of the subject.
    pub subject: Box<str>,
    /// Whether its deletion has begun: it takes no more calls.
    pub deleting: bool,
    /// Its servers, as in `spec.servers`.
    pub servers: Box<[Server]>,
}

/// One server of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Name of the `McpServer`.
    pub name: Box<str>,
    /// Where its slot is.
    pub binding: Binding,
}

/// Where a slot is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// In this pod.
    Placed(Placement),
    /// Nowhere yet, for this reason.
    Pending(Reason),
}

/// The pod that holds a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// UID of the pod.
    pub pod_uid: Arc<str>,
    /// Address of the pod.
    pub address: IpAddr,
    /// UID of the `McpServer`: the name in the pod's certificate.
    pub server_uid: Arc<str>,
}

impl Entry {
    /// What is kept of `session`; `None` when it has no UID, which the API server never sends.
    pub fn of(session: &AgentSession) -> Option<Self> {
        let statuses = session.status.as_ref().map(|status| status.servers.as_slice()).unwrap_or_default();
        let server = |name: &str| Server {
            name: name.into(),
            binding: Binding::of(statuses.iter().find(|status| status.name == name)),
        };
        Some(Self {
            uid: session.metadata.uid.as_deref()?.into(),
            issuer: session.spec.subject.issuer.as_str().into(),
            subject: session.spec.subject.name.as_str().into(),
            deleting: session.metadata.deletion_timestamp.is_some(),
            servers: session.spec.servers.iter().map(|binding| server(&binding.name)).collect(),
        })
    }
}

impl Binding {
    fn of(status: Option<&BindingStatus>) -> Self {
        let Some(status) = status else { return Self::Pending(Reason::Pending) };
        let placed = matches!(status.state, BindingState::Bound | BindingState::Degraded);
        match status.pod_ref.as_ref().filter(|_| placed) {
            Some(pod) => match pod.address.parse() {
                Ok(address) => Self::Placed(Placement {
                    pod_uid: pod.uid.as_str().into(),
                    address,
                    server_uid: pod.server_uid.as_str().into(),
                }),
                Err(_) => Self::Pending(Reason::Pending),
            },
            None => Self::Pending(status.reason.as_deref().map_or(Reason::Pending, waits_for)),
        }
    }
}

/// The reason of that name; one that this version does not know counts as [`Reason::Pending`].
fn waits_for(text: &str) -> Reason {
    Reason::parse(text).unwrap_or(Reason::Pending)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn session(statuses: &serde_json::Value) -> Entry {
        let session = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "AgentSession",
            "metadata": {"name": "s", "namespace": "demo", "uid": "uid-1"},
            "spec": {"subject": {"name": "alice"}, "servers": [{"name": "a"}, {"name": "b"}]},
            "status": {"servers": statuses},
        }));
        Entry::of(&session.unwrap()).unwrap()
    }

    fn pod(address: &str) -> serde_json::Value {
        json!({"name": "p", "uid": "pod-1", "address": address, "serverUid": "server-1"})
    }

    #[test]
    fn the_spec_says_which_servers_there_are_and_the_status_where_they_are() {
        let entry = session(
            &json!([{"name": "b", "state": "Bound", "podRef": pod("10.0.0.7")}, {"name": "c", "state": "Bound"}]),
        );
        assert_eq!((&*entry.uid, &*entry.subject, entry.deleting), ("uid-1", "alice", false));
        let names: Vec<_> = entry.servers.iter().map(|server| &*server.name).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(entry.servers[0].binding, Binding::Pending(Reason::Pending));
        let placement = Placement {
            pod_uid: "pod-1".into(),
            address: "10.0.0.7".parse().unwrap(),
            server_uid: "server-1".into(),
        };
        assert_eq!(entry.servers[1].binding, Binding::Placed(placement));
    }

    #[test]
    fn only_a_bound_or_degraded_server_with_a_usable_address_is_placed() {
        let table = [
            (json!({"name": "a", "state": "Degraded", "podRef": pod("fd00::1")}), true),
            (json!({"name": "a", "state": "Pending", "podRef": pod("10.0.0.7")}), false),
            (json!({"name": "a", "state": "Ending", "podRef": pod("10.0.0.7")}), false),
            (json!({"name": "a", "state": "Bound", "podRef": pod("")}), false),
            (json!({"name": "a", "state": "Bound"}), false),
        ];
        for (status, placed) in table {
            let entry = session(&json!([status]));
            assert_eq!(matches!(entry.servers[0].binding, Binding::Placed(_)), placed, "{status}");
        }
    }

    #[test]
    fn a_pending_server_keeps_its_reason() {
        let entry = session(&json!([{"name": "a", "state": "Pending", "reason": "LimitReached"}]));
        assert_eq!(entry.servers[0].binding, Binding::Pending(Reason::LimitReached));
    }

    #[test]
    fn a_reason_of_a_newer_operator_counts_as_pending() {
        let entry = session(&json!([{"name": "a", "state": "Pending", "reason": "MoonPhase"}]));
        assert_eq!(entry.servers[0].binding, Binding::Pending(Reason::Pending));
    }
}
