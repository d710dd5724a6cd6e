//! The sidecars: what each of them reports, and requests to them.
//!
//! One stream is kept to each pool pod that runs. What it says is held here, by pod, and a change asks for looks at the
//! session and the server that it concerns.

mod control;
mod doubt;
mod ended;
mod hung;
mod observe;
mod stream;

pub use control::ControlError;

use crate::context::Triggers;
use crate::lead::Lead;
use crate::metrics::Metrics;
use crate::slots::Slots;
use crate::watch::routes;
use berth_api::{McpServer, label};
use berth_net::client::{PeerClient, Target};
use berth_plan::pod::Occupancy;
use berth_wire::{EndReport, SIDECAR_PORT, SessionReport, SessionState};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Requests to sidecars at once, streams not counted.
const MAX_REQUESTS: usize = 64;

/// The sidecars; clones share them.
#[derive(Clone)]
pub struct Fleet {
    shared: Arc<Shared>,
}

struct Shared {
    client: PeerClient,
    lead: Lead,
    requests: Semaphore,
    triggers: Triggers,
    slots: Arc<Slots>,
    metrics: Metrics,
    cancel: CancellationToken,
    began: Instant,
    pods: Mutex<HashMap<String, Sidecar>>,
    doubts: Mutex<doubt::Doubts>,
    ended: Mutex<ended::Ended>,
}

/// One sidecar.
struct Sidecar {
    /// Name of the pod.
    name: String,
    target: Target,
    server: ObjectRef<McpServer>,
    /// UID of the `McpServer`.
    server_uid: String,
    /// Whether the stream is up and has told everything.
    synced: bool,
    /// When a stream that had told everything said something last, or the pod was followed; counts while none is up that has.
    silent_since: Instant,
    /// When it said something last, or the pod was followed.
    heard: Instant,
    /// It did not answer a request; until then nobody else asks it.
    hung_until: Option<Instant>,
    /// Whether a session has ended here.
    used: bool,
    /// The term for which it refuses every operator, though there cannot have been one.
    locked: Option<u64>,
    /// What it reports, by session UID. Sessions that ended stay only while their object exists.
    reports: HashMap<String, SessionReport>,
    /// Sessions that it reported before its stream broke off.
    before: HashSet<String>,
    /// Those among them that it did not know any more afterwards; they stay only while their object exists.
    lost: HashSet<String>,
    /// Ends the stream.
    cancel: CancellationToken,
}

impl Fleet {
    /// A fleet of no pods, whose streams end with `cancel`; every request goes under the term of `lead`.
    pub fn new(
        client: PeerClient,
        lead: Lead,
        triggers: Triggers,
        slots: Arc<Slots>,
        metrics: Metrics,
        cancel: CancellationToken,
    ) -> Self {
        let requests = Semaphore::new(MAX_REQUESTS);
        Self {
            shared: Arc::new(Shared {
                client,
                lead,
                requests,
                triggers,
                slots,
                metrics,
                cancel,
                began: Instant::now(),
                pods: Mutex::default(),
                doubts: Mutex::default(),
                ended: Mutex::default(),
            }),
        }
    }

    /// Follows a pod that runs, of the server that owns it; one that is followed already stays.
    pub fn follow(&self, pod: &Pod) {
        if let Some(server) = routes::owner(pod) {
            self.follow_of(&server, pod);
        }
    }

    /// Follows a pod that runs, of the server of that name.
    pub fn follow_of(&self, server: &str, pod: &Pod) {
        let (Some(uid), Some((target, server_uid))) = (pod.uid(), target(pod)) else { return };
        let server = ObjectRef::new(server).within(&pod.namespace().unwrap_or_default());
        let (cancel, now) = (self.shared.cancel.child_token(), Instant::now());
        let sidecar = Sidecar {
            name: pod.name_any(),
            target: target.clone(),
            server,
            server_uid,
            synced: false,
            silent_since: now,
            heard: now,
            hung_until: None,
            used: false,
            locked: None,
            reports: HashMap::new(),
            before: HashSet::new(),
            lost: HashSet::new(),
            cancel: cancel.clone(),
        };
        let is_new = self.with(|pods| {
            if pods.get(&uid).is_some_and(|held| held.target == target) {
                return false;
            }
            let sidecar = Sidecar { reports: self.take_ends_in(&uid), ..sidecar };
            if let Some(replaced) = pods.insert(uid.clone(), sidecar) {
                replaced.cancel.cancel();
            }
            true
        });
        if is_new {
            tokio::spawn(stream::follow(self.clone(), uid, target, cancel));
        }
    }

    /// Drops a pod that is gone.
    pub fn drop_pod(&self, pod_uid: &str) {
        let dropped = self.with(|pods| pods.remove(pod_uid));
        if let Some(sidecar) = dropped {
            sidecar.cancel.cancel();
            self.keep_ends(pod_uid, &sidecar);
            sidecar.reports.keys().for_each(|session| self.look_at(session));
        }
    }

    /// Drops every pod that the cache does not have: a deletion may be missed when a watch begins anew. One that may be there
    /// all the same stays while it has sessions. `existing` is asked after the pods held here are listed, so that one which
    /// comes meanwhile is not taken for gone.
    pub fn retain(&self, existing: impl FnOnce() -> HashSet<String>) {
        let held: Vec<String> = self.with(|pods| pods.keys().cloned().collect());
        let existing = existing();
        for uid in held.iter().filter(|uid| !existing.contains(*uid) && !self.is_needed(uid)) {
            self.drop_pod(uid);
        }
        self.clear_ends();
    }

    /// Drops what is reported of a session that is gone.
    pub fn forget(&self, session_uid: &str) {
        self.forget_ends(session_uid);
        self.with(|pods| {
            for sidecar in pods.values_mut() {
                sidecar.lost.remove(session_uid);
                if sidecar.reports.get(session_uid).is_some_and(|report| report.state == SessionState::Ended)
                {
                    sidecar.reports.remove(session_uid);
                }
            }
        });
    }

    /// Who holds the slots of a pod, given who was promised one.
    pub fn occupancy(&self, pod_uid: &str, promised: Vec<String>) -> Occupancy {
        self.with(|pods| match pods.get(pod_uid) {
            Some(sidecar) => {
                let silent = (!sidecar.synced).then(|| sidecar.silent_since.elapsed());
                Occupancy::new(silent, sidecar.used, sidecar.reports.values(), promised)
            }
            // Nobody has listened for longer than there is a fleet.
            None => Occupancy::new(Some(self.shared.began.elapsed()), false, [], promised),
        })
    }

    /// Whether the sidecar of a pod has told all that it holds.
    pub fn is_synced(&self, pod_uid: &str) -> bool {
        self.with(|pods| pods.get(pod_uid).is_some_and(|sidecar| sidecar.synced))
    }

    /// Whether the sidecar of a pod has lost a session that it held, as a restart does; the pod's status tells of that later.
    pub fn has_lost(&self, pod_uid: &str, session_uid: &str) -> bool {
        self.with(|pods| pods.get(pod_uid).is_some_and(|sidecar| sidecar.lost.contains(session_uid)))
    }

    /// Notes that the sidecar of a pod has lost a session that it held.
    pub fn note_lost(&self, pod_uid: &str, session_uid: &str) {
        self.with(|pods| pods.get_mut(pod_uid).map(|sidecar| sidecar.lost.insert(session_uid.to_owned())));
    }

    /// What sidecars report of a session, each with the UID of its pod and its server; those that are gone too, if it had ended
    /// there.
    pub fn reports_of(&self, session_uid: &str) -> Vec<Reported> {
        let mut reports = self.with(|pods| {
            let of = |(pod, sidecar): (&String, &Sidecar)| {
                Some(Reported::new(pod, sidecar, sidecar.reports.get(session_uid)?))
            };
            pods.iter().filter_map(of).collect::<Vec<_>>()
        });
        reports.extend(self.ends_of(session_uid));
        reports
    }

    /// Every session that some sidecar holds and does not end yet.
    pub fn living(&self) -> Vec<Living> {
        let lives =
            |report: &&SessionReport| !matches!(report.state, SessionState::Ending | SessionState::Ended);
        self.with(|pods| {
            let of = |(pod, sidecar): (&String, &Sidecar)| {
                let namespace = sidecar.server.namespace.clone().unwrap_or_default();
                let living = |report: &SessionReport| Living {
                    session: report.uid.clone(),
                    pod: pod.clone(),
                    namespace: namespace.clone(),
                };
                sidecar.reports.values().filter(lives).map(living).collect::<Vec<_>>()
            };
            pods.iter().flat_map(of).collect()
        })
    }

    /// Notes that a session has ended in a pod, though its sidecar reports none; its server is looked at.
    pub fn mark_used(&self, pod_uid: &str) {
        let server = self.with(|pods| {
            let sidecar = pods.get_mut(pod_uid)?;
            (!std::mem::replace(&mut sidecar.used, true)).then(|| sidecar.server.clone())
        });
        if let Some(server) = server {
            self.shared.triggers.servers.fire(server);
        }
    }

    /// Notes the answer to a PUT, unless the stream already told of it.
    fn note(&self, pod_uid: &str, report: SessionReport) {
        self.with(|pods| {
            let Some(sidecar) = pods.get_mut(pod_uid) else { return };
            let differs = |held: &SessionReport| held.generation != report.generation;
            if sidecar.reports.get(&report.uid).is_none_or(differs) {
                sidecar.reports.insert(report.uid.clone(), report);
            }
        });
    }

    /// Notes how the end of a session goes in a pod.
    fn note_end(&self, pod_uid: &str, session_uid: &str, end: EndReport) {
        let over = end.phase == berth_wire::EndPhase::Ended;
        // An end of which no stream told this process is told by none: a stream begins with those who live. What was never held
        // has not ended, and what is known of sessions that are gone would pile up.
        let stays = over && end != EndReport::NOTHING_HELD && self.shared.slots.object(session_uid).is_some();
        let server = self.with(|pods| {
            let sidecar = pods.get_mut(pod_uid)?;
            if over {
                // Its sidecar has answered for it: it was not lost, though its stream tells of no session that has ended.
                sidecar.before.remove(session_uid);
            }
            if stays {
                let report = || ended::report(session_uid);
                sidecar.reports.entry(session_uid.to_owned()).or_insert_with(report);
            }
            if let Some(report) = sidecar.reports.get_mut(session_uid) {
                report.state = if over { SessionState::Ended } else { SessionState::Ending };
                report.end = Some(end);
                sidecar.used |= over;
            }
            Some(sidecar.server.clone())
        });
        if let Some(server) = server {
            self.shared.triggers.servers.fire(server);
        }
    }

    fn target_of(&self, pod_uid: &str) -> Option<Target> {
        self.with(|pods| pods.get(pod_uid).map(|sidecar| sidecar.target.clone()))
    }

    fn look_at(&self, session_uid: &str) {
        if let Some(session) = self.shared.slots.object(session_uid) {
            self.shared.triggers.sessions.fire(session);
        }
    }

    fn with<T>(&self, step: impl FnOnce(&mut HashMap<String, Sidecar>) -> T) -> T {
        step(&mut self.shared.pods.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What one sidecar reports of a session.
#[derive(Clone)]
pub struct Reported {
    /// UID of the pod.
    pub pod: String,
    /// Name of the pod.
    pub pod_name: String,
    /// Name of the server.
    pub server: String,
    /// UID of the server.
    pub server_uid: String,
    /// What it reports.
    pub report: SessionReport,
}

impl Reported {
    fn new(pod: &str, sidecar: &Sidecar, report: &SessionReport) -> Self {
        Self {
            pod: pod.to_owned(),
            pod_name: sidecar.name.clone(),
            server: sidecar.server.name.clone(),
            server_uid: sidecar.server_uid.clone(),
            report: report.clone(),
        }
    }
}

/// A session that a sidecar holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Living {
    /// UID of the session.
    pub session: String,
    /// UID of the pod.
    pub pod: String,
    /// Namespace of both.
    pub namespace: String,
}

/// Where the sidecar of a pod is, once the pod runs, and the UID of its server.
fn target(pod: &Pod) -> Option<(Target, String)> {
    let status = pod.status.as_ref()?;
    let address = status.pod_ip.as_ref()?.parse().ok()?;
    let server_uid = pod.labels().get(label::SERVER_UID)?.clone();
    let runs = status.phase.as_deref() == Some("Running");
    runs.then(|| (Target::sidecar(SocketAddr::new(address, SIDECAR_PORT), &server_uid), server_uid))
}

#[cfg(test)]
pub mod stand;
#[cfg(test)]
mod tests;
