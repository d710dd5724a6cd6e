//! Ends that sidecars confirmed before their pods went.
//!
//! A pod for one session is deleted as soon as that has ended there, while the session may still wait for another pod, or for
//! its Event. What its sidecar has said must not go with it: the end would be told as one that nobody confirmed.

use super::{Fleet, Reported, Sidecar};
use berth_plan::end::record::last_word;
use berth_wire::{Activity, Generation, SessionReport, SessionState};
use std::collections::HashMap;
use std::sync::PoisonError;

/// The reports of ended sessions in pods that are gone, by session UID. They stay only while the session's object exists.
pub(super) type Ended = HashMap<String, Vec<Reported>>;

impl Fleet {
    /// Keeps what a sidecar whose pod goes has said of sessions that ended there, or had nothing to end.
    pub(super) fn keep_ends(&self, pod_uid: &str, sidecar: &Sidecar) {
        // What a sidecar says after it has lost a session speaks of what came later.
        let kept = sidecar.reports.values().filter(|report| !sidecar.lost.contains(&report.uid));
        // One that is only believed to be gone may go on: what it said last need not be its last word.
        let is_last = sidecar.synced && self.is_gone(pod_uid);
        let ended = kept.filter_map(|report| last_word(report, is_last));
        // The book is never asked under the lock of the fleet.
        for report in ended.filter(|report| self.shared.slots.object(&report.uid).is_some()) {
            let reported = Reported::new(pod_uid, sidecar, &report);
            self.with_ends(|ends| ends.entry(report.uid.clone()).or_default().push(reported));
        }
    }

    /// What sidecars whose pods are gone have said of a session.
    pub(super) fn ends_of(&self, session_uid: &str) -> Vec<Reported> {
        self.with_ends(|ends| ends.get(session_uid).cloned().unwrap_or_default())
    }

    /// Takes out what was kept of a pod, by session UID: it is there after all, and its stream has the next word.
    pub(super) fn take_ends_in(&self, pod_uid: &str) -> HashMap<String, SessionReport> {
        self.with_ends(|ends| {
            let of_pod = |reported: &mut Reported| reported.pod == pod_uid;
            let taken = ends.values_mut().flat_map(|said| said.extract_if(.., of_pod));
            let taken = taken.map(|reported| (reported.report.uid.clone(), reported.report)).collect();
            ends.retain(|_, said| !said.is_empty());
            taken
        })
    }

    /// Forgets a session that is gone.
    pub(super) fn forget_ends(&self, session_uid: &str) {
        self.with_ends(|ends| ends.remove(session_uid));
    }

    /// Forgets sessions that went without a word.
    pub(super) fn clear_ends(&self) {
        let kept: Vec<String> = self.with_ends(|ends| ends.keys().cloned().collect());
        for session in kept.iter().filter(|session| self.shared.slots.object(session).is_none()) {
            self.forget_ends(session);
        }
    }

    fn with_ends<T>(&self, step: impl FnOnce(&mut Ended) -> T) -> T {
        step(&mut self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The report on a session that has ended in a pod whose stream has told nothing of it.
pub(super) fn report(session_uid: &str) -> SessionReport {
    SessionReport {
        uid: session_uid.to_owned(),
        generation: Generation::default(),
        state: SessionState::Ended,
        failure: None,
        message: None,
        next_retry_unix_millis: None,
        activity: Activity::default(),
        end: None,
    }
}
