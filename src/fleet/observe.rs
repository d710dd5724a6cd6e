//! What the streams tell, taken into the fleet; a change asks for looks at what it concerns.

use crate::fleet::Fleet;
use berth_wire::{SessionReport, SessionState};
use std::collections::HashSet;
use tokio::time::Instant;

impl Fleet {
    /// The stream of a pod is down; it said something last at `heard`. What it said stands until it is up again.
    pub(super) fn lost(&self, pod_uid: &str, heard: Instant) {
        let server = self.with(|pods| {
            let sidecar = pods.get_mut(pod_uid)?;
            if !std::mem::take(&mut sidecar.synced) {
                return None;
            }
            sidecar.silent_since = heard;
            let held = sidecar.reports.values().filter(|report| report.state != SessionState::Ended);
            sidecar.before = held.map(|report| report.uid.clone()).collect();
            Some(sidecar.server.clone())
        });
        if let Some(server) = server {
            self.shared.triggers.servers.fire(server);
        }
    }

    /// A sidecar reports a session.
    pub(super) fn reported(&self, pod_uid: &str, report: &SessionReport) {
        let session = report.uid.clone();
        // Tombstones of sessions whose object is gone would pile up for the pod's life.
        let known = self.shared.slots.object(&session).is_some();
        let changed = self.with(|pods| {
            let sidecar = pods.get_mut(pod_uid)?;
            let over = report.state == SessionState::Ended;
            let before = if over && !known {
                sidecar.reports.remove(&session)
            } else {
                sidecar.reports.insert(session.clone(), report.clone())
            };
            sidecar.used |= over;
            let same = before.as_ref().is_some_and(|before| is_same(before, report));
            let was_over = before.is_some_and(|before| before.state == SessionState::Ended);
            (!same).then(|| (over != was_over).then(|| sidecar.server.clone()))
        });
        if let Some(server) = changed {
            self.look_at(&session);
            if let Some(server) = server {
                self.shared.triggers.servers.fire(server);
            }
        }
    }

    /// A sidecar has told everything: `told` are the sessions that it knows. Who was promised a slot there and is not known is
    /// looked at: the sidecar was restarted. So is who is known and has its slot elsewhere by now: the pod was out of reach.
    pub(super) fn synced(&self, pod_uid: &str, told: &HashSet<String>) {
        let synced = self.with(|pods| {
            let sidecar = pods.get_mut(pod_uid)?;
            // It tells of those who live.
            let ended = |report: &SessionReport| report.state == SessionState::Ended;
            sidecar.reports.retain(|session, report| told.contains(session) || ended(report));
            sidecar.synced = true;
            sidecar.locked = None;
            let before = std::mem::take(&mut sidecar.before);
            let missing: Vec<String> = before.difference(told).cloned().collect();
            Some((sidecar.server.clone(), sidecar.server_uid.clone(), missing))
        });
        if let Some((server, server_uid, missing)) = synced {
            // The book is never asked under the lock of the fleet.
            let known = missing.into_iter().filter(|session| self.shared.slots.object(session).is_some());
            let lost: Vec<String> = known.collect();
            self.with(|pods| {
                if let Some(sidecar) = pods.get_mut(pod_uid) {
                    sidecar.lost.extend(lost);
                }
            });
            let promised = self.shared.slots.promised_to(&server_uid, pod_uid);
            for session in promised.iter().chain(told).collect::<HashSet<_>>() {
                self.look_at(session);
            }
            self.shared.triggers.servers.fire(server);
        }
    }
}

/// Whether two reports are the same but for counts, which change with every call and concern nobody.
fn is_same(a: &SessionReport, b: &SessionReport) -> bool {
    let quiet = SessionReport { activity: a.activity, ..b.clone() };
    *a == quiet
}
