//! What a pool pod tells, and who holds its slots.

use crate::lead::MOST_TERMS;
use crate::server::build::CONTAINER;
use crate::time::Moment;
use berth_api::label::LEADER_LEASE;
use berth_api::{Reason, label};
use berth_wire::{SessionReport, SessionState};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodCondition};
use std::collections::BTreeSet;
use std::time::Duration;

/// Annotation of a pool pod: how many sessions it takes at once.
pub const SLOTS: &str = "berth.dev/slots";
/// Annotation of a pool pod: the sidecar image that it was made with.
pub const IMAGE: &str = "berth.dev/sidecar-image";

/// A pool pod as it was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPod {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// IP address, once it has one.
    pub address: Option<String>,
    /// Revision of the server that it was made for.
    pub revision: String,
    /// Sessions that it takes at once.
    pub slots: u32,
    /// Sidecar image that it was made with.
    pub image: String,
    /// Where it stands in its life.
    pub life: Life,
    /// What the kubelet or the scheduler says is wrong with it.
    pub trouble: Option<Trouble>,
    /// Whether its sidecar refuses every operator, so that its slots are out of reach.
    pub locked: bool,
    /// Who holds its slots.
    pub occupancy: Occupancy,
}

/// Where a pod stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its container has not run yet.
    Starting,
    /// The kubelet says that it is ready.
    Ready,
    /// It ran, and is not ready since then.
    NotReady {
        /// Since when.
        since: Moment,
    },
    /// It was deleted and is on its way out.
    Terminating,
    /// It runs no container any more and never will.
    Dead,
}

/// What is wrong with a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The reason for conditions.
    pub reason: Reason,
    /// Text of the kubelet or scheduler.
    pub message: String,
}

impl Trouble {
    /// The sidecar of `pod` has seen the term of an operator that there cannot have been, and refuses every other one.
    pub fn locked(pod: &str, term: u64) -> Self {
        let reset = format!(", or set spec.leaseTransitions of the Lease {LEADER_LEASE:?} back to {term}");
        // A count above that is not believed, whoever wrote it.
        let reset = if term <= MOST_TERMS { reset } else { String::new() };
        let message = format!(
            "pod {pod:?} refuses every operator: its sidecar has seen the term {term}, far above that of the Lease; delete the pod{reset}"
        );
        Self { reason: Reason::PoolStarting, message }
    }
}

/// Who holds the slots of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Whether the sidecar's stream is up and complete, so that nobody unknown can hold a slot.
    pub synced: bool,
    /// For how long this process has heard nothing of its sidecar.
    pub silent: Duration,
    /// Sessions that hold a slot, or were promised one.
    pub held: BTreeSet<String>,
    /// Whether a session has ended in this pod, or may have: one that takes a single session is then used up.
    pub used: bool,
}

impl Occupancy {
    /// The occupancy of a pod from what its sidecar reports and from what was promised and is not reported yet; `silent` is
    /// for how long nothing was heard of its stream, if that is not up and complete; `used` is whether a session that is not reported any
    /// more has ended there.
    pub fn new<'a>(
        silent: Option<Duration>,
        used: bool,
        reports: impl IntoIterator<Item = &'a SessionReport>,
        promised: impl IntoIterator<Item = String>,
    ) -> Self {
        let mut held: BTreeSet<String> = promised.into_iter().collect();
        let mut used = used;
        for report in reports {
            if report.state == SessionState::Ended {
                // What the sidecar says outweighs a promise that was kept and is over.
                held.remove(&report.uid);
                used = true;
            } else {
                held.insert(report.uid.clone());
            }
        }
        Self { synced: silent.is_none(), silent: silent.unwrap_or_default(), held, used }
    }
}

impl PoolPod {
    /// Reads a pod of a pool. Pods whose annotations do not read as ours have no slots.
    pub fn read(pod: &Pod, mut occupancy: Occupancy) -> Self {
        // A sidecar that was restarted does not know any more whether a session was there.
        occupancy.used |= restarted(pod).is_some();
        let meta = &pod.metadata;
        let annotation =
            |key: &str| meta.annotations.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default();
        let label =
            |key: &str| meta.labels.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default();
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            address: pod.status.as_ref().and_then(|status| status.pod_ip.clone()).filter(|ip| !ip.is_empty()),
            revision: label(label::REVISION),
            slots: annotation(SLOTS).parse().unwrap_or(0),
            image: annotation(IMAGE),
            life: life(pod),
            trouble: trouble(pod),
            locked: false,
            occupancy,
        }
    }

    /// The same with `lock`, what is wrong with a pod whose sidecar refuses every operator.
    #[must_use]
    pub fn locked_by(self, lock: Option<Trouble>) -> Self {
        Self { locked: lock.is_some(), trouble: lock.or(self.trouble), ..self }
    }

    /// Slots that nobody holds and that can be had; none when the pod took the single session of its life.
    pub fn free(&self) -> u32 {
        let used_up = self.slots == 1 && self.occupancy.used;
        let held = u32::try_from(self.occupancy.held.len()).unwrap_or(u32::MAX);
        if used_up || self.locked { 0 } else { self.slots.saturating_sub(held) }
    }

    /// Whether a session may be placed here now: the kubelet says Ready and the sidecar has told all that it holds.
    pub fn is_placeable(&self) -> bool {
        self.life == Life::Ready && self.occupancy.synced && self.address.is_some()
    }

    /// Whether it may hold sessions that nobody has heard of: it is ready, and its sidecar has not told everything.
    pub fn is_unheard(&self) -> bool {
        self.life == Life::Ready && !self.occupancy.synced
    }

    /// Whether it runs, or will.
    pub fn is_alive(&self) -> bool {
        !matches!(self.life, Life::Terminating | Life::Dead)
    }
}

/// Whether the sidecar's container was restarted at `when` or later, so that a session that was there by then may have been
/// lost. The API counts whole seconds: within one second, and while no container runs, the answer is yes.
pub fn restarted_since(pod: &Pod, when: Moment) -> bool {
    restarted(pod).is_some_and(|status| {
        let running = status.state.as_ref().and_then(|state| state.running.as_ref());
        let started = running.and_then(|running| running.started_at.as_ref()).map(Moment::from_api);
        started.is_none_or(|started| started >= when)
    })
}

/// The status of the sidecar's container if that was restarted.
fn restarted(pod: &Pod) -> Option<&ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == CONTAINER && status.restart_count > 0)
}

fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == type_)
}

fn life(pod: &Pod) -> Life {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    if pod.metadata.deletion_timestamp.is_some() {
        return Life::Terminating;
    }
    match phase {
        "Succeeded" | "Failed" => Life::Dead,
        "Pending" => Life::Starting,
        _ => match condition(pod, "Ready") {
            Some(ready) if ready.status == "True" => Life::Ready,
            Some(ready) => Life::NotReady {
                since: ready.last_transition_time.as_ref().map_or(Moment(0), Moment::from_api),
            },
            None => Life::Starting,
        },
    }
}

fn trouble(pod: &Pod) -> Option<Trouble> {
    if let Some(scheduled) = condition(pod, "PodScheduled").filter(|scheduled| scheduled.status == "False") {
        let message = scheduled.message.clone().unwrap_or_default();
        return Some(Trouble { reason: Reason::Unschedulable, message });
    }
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find_map(|status| container_trouble(&status.image, status.state.as_ref()?))
}

/// Trouble of a container that waits. A crash is not told here: the pod is then not Ready, which status shows.
fn container_trouble(image: &str, state: &ContainerState) -> Option<Trouble> {
    let waiting = state.waiting.as_ref()?;
    let text = waiting.message.as_deref().unwrap_or_default();
    let reason = match waiting.reason.as_deref()? {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "InvalidImageName"
        | "ErrImageNeverPull"
        | "RegistryUnavailable" => Reason::ImagePullFailed,
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => Reason::PodForbidden,
        _ => return None,
    };
    Some(Trouble { reason, message: format!("image {image:?}: {text}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_wire::{Activity, Generation};
    use serde_json::json;

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "labels": {"berth.dev/revision": "r"}, "annotations": {"berth.dev/slots": "3"}},
            "status": status,
        }))
        .unwrap()
    }

    fn report(uid: &str, state: SessionState) -> SessionReport {
        SessionReport {
            uid: uid.into(),
            generation: Generation::default(),
            state,
            failure: None,
            message: None,
            next_retry_unix_millis: None,
            activity: Activity::default(),
            end: None,
        }
    }

    #[test]
    fn life_follows_phase_and_the_ready_condition() {
        let ready = |status: &str| json!({"phase": "Running", "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": "1970-01-01T00:00:09Z"}]});
        for (status, life) in [
            (json!({}), Life::Starting),
            (json!({"phase": "Pending"}), Life::Starting),
            (json!({"phase": "Failed"}), Life::Dead),
            (ready("True"), Life::Ready),
            (ready("False"), Life::NotReady { since: Moment(9_000) }),
        ] {
            assert_eq!(PoolPod::read(&pod(&status), Occupancy::default()).life, life, "{status}");
        }
    }

    #[test]
    fn trouble_names_the_image_and_the_kubelets_text() {
        let read = PoolPod::read(
            &pod(
                &json!({"containerStatuses": [{"name": "sidecar", "image": "x/none:1", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}]}),
            ),
            Occupancy::default(),
        );
        let trouble = read.trouble.unwrap();
        assert_eq!(trouble.reason, Reason::ImagePullFailed);
        assert_eq!(trouble.message, "image \"x/none:1\": not found");
        let read = PoolPod::read(
            &pod(
                &json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]}),
            ),
            Occupancy::default(),
        );
        assert_eq!(read.trouble.unwrap().reason, Reason::Unschedulable);
    }

    #[test]
    fn a_lease_is_to_be_set_back_only_to_a_count_that_is_believed() {
        for (term, resets) in [(50_000, true), (MOST_TERMS, true), (MOST_TERMS + 1, false), (u64::MAX, false)]
        {
            let message = Trouble::locked("p", term).message;
            assert!(message.contains("; delete the pod"), "{message}");
            assert_eq!(message.ends_with(&format!("back to {term}")), resets, "{message}");
            // The remedy works: who holds the Lease stays at the count that was written.
            let seen = crate::lead::Seen {
                holder: "op-a_1",
                transitions: term,
                duration: std::time::Duration::ZERO,
                unchanged: std::time::Duration::ZERO,
            };
            let turn = crate::lead::turn("op-a_1", "op-a", Some(seen), 6);
            assert_eq!(turn == crate::lead::Turn::Hold { term }, resets);
        }
    }

    #[test]
    fn a_promise_counts_until_the_sidecar_says_that_the_session_ended() {
        let promised = || vec!["a".to_owned(), "b".to_owned()];
        let reports = [report("a", SessionState::Ended), report("c", SessionState::Idle)];
        let occupancy = Occupancy::new(None, false, &reports, promised());
        assert_eq!(occupancy.held.iter().map(String::as_str).collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(PoolPod::read(&pod(&json!({})), occupancy).free(), 1);
    }

    fn sidecar(restarts: i32, state: &serde_json::Value) -> Pod {
        pod(&json!({"phase": "Running", "containerStatuses": [
            {"name": "other", "image": "x", "imageID": "", "ready": true, "restartCount": 7},
            {"name": "sidecar", "image": "x", "imageID": "", "ready": true, "restartCount": restarts, "state": state},
        ]}))
    }

    #[test]
    fn a_sidecar_was_restarted_when_its_container_runs_since_then_or_does_not_run() {
        let running = json!({"running": {"startedAt": "1970-01-01T00:00:09Z"}});
        let since = |restarts: i32, state: &serde_json::Value, millis: i64| {
            restarted_since(&sidecar(restarts, state), Moment(millis))
        };
        assert!(since(1, &running, 8_000) && since(1, &running, 9_000) && !since(1, &running, 10_000));
        assert!(!since(0, &running, 8_000));
        assert!(since(2, &json!({"waiting": {"reason": "CrashLoopBackOff"}}), 10_000));
        assert!(!restarted_since(&pod(&json!({})), Moment(0)));
    }

    #[test]
    fn a_pod_for_a_single_session_whose_sidecar_was_restarted_is_used_up() {
        let running = json!({"running": {"startedAt": "1970-01-01T00:00:09Z"}});
        for (restarts, slots, free) in [(0, 1, 1), (1, 1, 0), (1, 3, 3)] {
            let mut read = PoolPod::read(&sidecar(restarts, &running), Occupancy::default());
            read.slots = slots;
            assert_eq!(read.free(), free, "{restarts} restarts, {slots} slots");
        }
    }

    #[test]
    fn a_pod_for_a_single_session_is_used_up_by_it() {
        let occupancy = Occupancy::new(None, false, &[report("a", SessionState::Ended)], vec![]);
        let mut read = PoolPod::read(&pod(&json!({})), occupancy);
        assert_eq!(read.free(), 3);
        read.slots = 1;
        assert_eq!(read.free(), 0);
    }
}
