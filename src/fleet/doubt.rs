//! Pods that the cache lost, and sidecars that obey nobody.

use crate::fleet::Fleet;
use berth_api::{McpServer, label};
use berth_plan::pod::Trouble;
use berth_wire::SessionState;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use std::collections::{HashMap, HashSet};
use std::sync::PoisonError;

/// Pods that are remembered of each kind. Beyond that all are forgotten: of those that are gone, one that is asked for again is
/// read again; one in doubt is found when its session, or its name, is needed.
const MAX_PODS: usize = 4096;

/// What is remembered of pods that the cache does not have.
#[derive(Default)]
pub(super) struct Doubts {
    /// UIDs of pods that are surely gone.
    gone: HashSet<String>,
    /// Pods that may be there still, by the UID of their server: each UID with its name.
    doubted: HashMap<String, HashMap<String, String>>,
    /// Pods that were found to be there, until the cache has them: why each does not come back; nothing for one that does.
    strays: HashMap<String, Option<String>>,
}

impl Fleet {
    /// A pod left the cache, and nobody has seen that it ends: it may have lost its labels and run on. Its sessions are looked at,
    /// and its server has to be, which finds out. Its stream stays as long as sessions need it: see [`Fleet::retain`].
    pub fn doubt(&self, pod: &Pod) {
        let Some((server_uid, uid)) = self.ask_for(pod) else { return };
        let sessions = self.sessions_in(&uid, &server_uid);
        if sessions.is_empty() {
            self.drop_pod(&uid);
        }
        for session in &sessions {
            self.look_at(session);
        }
    }

    /// Has the look at a pod's server look for that pod, which gets the labels back that it has lost; the UIDs of both.
    pub fn ask_for(&self, pod: &Pod) -> Option<(String, String)> {
        let owner = pod.owner_references().iter().find(|owner| owner.kind == McpServer::kind(&()));
        let server_uid = owner.map(|owner| &owner.uid).or_else(|| pod.labels().get(label::SERVER_UID));
        let (server_uid, uid) = (server_uid?.clone(), pod.uid()?);
        self.put_in_doubt(&server_uid, &uid, &pod.name_any());
        Some((server_uid, uid))
    }

    /// The sessions that a pod of a server holds, by its stream, or was promised to.
    fn sessions_in(&self, pod_uid: &str, server_uid: &str) -> HashSet<String> {
        let reported = self.with(|pods| {
            let reports = pods.get(pod_uid).map(|sidecar| sidecar.reports.values()).into_iter().flatten();
            let living = reports.filter(|report| report.state != SessionState::Ended);
            living.map(|report| report.uid.clone()).collect::<HashSet<String>>()
        });
        // The book is never asked under the lock of the fleet.
        let promised = self.shared.slots.promised_to(server_uid, pod_uid);
        reported.into_iter().chain(promised).collect()
    }

    /// Whether a pod that is not in the cache may be there still and sessions that exist are in it: its stream is all that the
    /// operator has of it.
    pub(super) fn is_needed(&self, pod_uid: &str) -> bool {
        let is_out_of_sight = self.with_doubts(|doubts| {
            doubts.strays.contains_key(pod_uid)
                || doubts.doubted.values().any(|of_server| of_server.contains_key(pod_uid))
        });
        let server_uid = self.with(|pods| Some(pods.get(pod_uid)?.server_uid.clone()));
        let exists = |session: &String| self.shared.slots.object(session).is_some();
        is_out_of_sight
            && server_uid.is_some_and(|server| self.sessions_in(pod_uid, &server).iter().any(exists))
    }

    /// Notes that a pod which the cache does not have exists; `why` it does not come back by itself, or nothing if it does.
    pub fn found_stray(&self, pod_uid: &str, why: Option<String>) {
        self.with_doubts(|doubts| {
            if doubts.strays.len() >= MAX_PODS {
                doubts.strays.clear();
            }
            doubts.strays.insert(pod_uid.to_owned(), why);
        });
    }

    /// Why a pod that exists does not come back to the cache by itself, as far as that was found.
    pub fn why_stray(&self, pod_uid: &str) -> Option<String> {
        self.with_doubts(|doubts| doubts.strays.get(pod_uid).cloned().flatten())
    }

    /// Notes that the cache has a pod.
    pub fn is_back(&self, pod_uid: &str) {
        self.with_doubts(|doubts| doubts.strays.remove(pod_uid));
    }

    /// Remembers that a pod of a server has to be looked for.
    pub fn put_in_doubt(&self, server_uid: &str, pod_uid: &str, name: &str) {
        self.with_doubts(|doubts| {
            if doubts.doubted.values().map(HashMap::len).sum::<usize>() >= MAX_PODS {
                doubts.doubted.clear();
            }
            let of_server = doubts.doubted.entry(server_uid.to_owned()).or_default();
            of_server.insert(pod_uid.to_owned(), name.to_owned());
        });
    }

    /// The pods of a server that have to be looked for, taken out: the UID and name of each.
    pub fn take_doubted(&self, server_uid: &str) -> Vec<(String, String)> {
        let taken = self.with_doubts(|doubts| doubts.doubted.remove(server_uid));
        taken.into_iter().flatten().collect()
    }

    /// Drops a pod that is surely gone.
    pub fn gone(&self, pod_uid: &str) {
        self.with_doubts(|doubts| {
            if doubts.gone.len() >= MAX_PODS {
                doubts.gone.clear();
            }
            doubts.gone.insert(pod_uid.to_owned());
            doubts.strays.remove(pod_uid);
        });
        self.drop_pod(pod_uid);
    }

    /// Whether a pod is surely gone. One that is may not be remembered.
    pub fn is_gone(&self, pod_uid: &str) -> bool {
        self.with_doubts(|doubts| doubts.gone.contains(pod_uid))
    }

    /// Whether the address of a pod's sidecar is known.
    pub fn is_reachable(&self, pod_uid: &str) -> bool {
        self.target_of(pod_uid).is_some()
    }

    /// What is wrong with a pod whose sidecar refuses every operator; nothing if it does not.
    pub fn lock_of(&self, pod_uid: &str) -> Option<Trouble> {
        self.with(|pods| {
            let sidecar = pods.get(pod_uid)?;
            Some(Trouble::locked(&sidecar.name, sidecar.locked?))
        })
    }

    /// Notes that a sidecar refuses every operator for a term that cannot be; its server is looked at.
    pub(super) fn note_lock(&self, pod_uid: &str, term: u64) {
        let server = self.with(|pods| {
            let sidecar = pods.get_mut(pod_uid)?;
            (sidecar.locked.replace(term) != Some(term)).then(|| sidecar.server.clone())
        });
        if let Some(server) = server {
            self.shared.triggers.servers.fire(server);
        }
    }

    fn with_doubts<T>(&self, step: impl FnOnce(&mut Doubts) -> T) -> T {
        step(&mut self.shared.doubts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
