//! The book of promises itself: no lock, no clock, no news of its own.

use berth_api::{AgentSession, Subject};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::{HashMap, HashSet};

/// What the book holds.
#[derive(Default)]
pub struct Book {
    /// Sessions that exist, by UID.
    sessions: HashMap<String, Known>,
    /// Promises by server UID, then session UID.
    promises: HashMap<String, HashMap<String, Promise>>,
    /// UIDs of pods that are being deleted, before the cache says so.
    condemned: HashSet<String>,
    /// Sessions whose confirmed slots changed since this was taken last.
    changed: HashSet<String>,
    /// Sessions that went since the last sweep: a look that began before that must not enter them anew.
    gone: HashSet<String>,
}

struct Known {
    object: ObjectRef<AgentSession>,
    subject: Subject,
    /// Its finalizer is gone, though the cache may still show it.
    over: bool,
}

/// A slot that was promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// UID of the pod.
    pub pod: String,
    /// Fingerprint of the spec that this process last sent there.
    pub sent: Option<String>,
}

impl Promise {
    /// Whether a sidecar has confirmed the slot to this process.
    pub fn is_confirmed(&self) -> bool {
        self.sent.is_some()
    }
}

impl Book {
    /// Enters a session, with the promises that its status speaks of when it is new here.
    pub fn know(&mut self, session: &AgentSession) {
        let Some(uid) = session.uid() else { return };
        if self.sessions.contains_key(&uid) || self.gone.contains(&uid) {
            return;
        }
        for server in session.status.iter().flat_map(|status| &status.servers) {
            if let Some(pod) = &server.pod_ref {
                self.promise(&uid, &pod.server_uid, &pod.uid);
            }
        }
        let known = Known {
            object: ObjectRef::from_obj(session),
            subject: session.spec.subject.clone(),
            over: false,
        };
        self.sessions.insert(uid, known);
    }

    /// Drops a session that is gone; gives the UIDs of the servers where it was promised a slot.
    pub fn forget(&mut self, session_uid: &str) -> Vec<String> {
        self.sessions.remove(session_uid);
        self.gone.insert(session_uid.to_owned());
        let held = self.promises.iter().filter(|(_, promises)| promises.contains_key(session_uid));
        let servers = held.map(|(server, _)| server.clone()).collect();
        self.release_all(session_uid);
        servers
    }

    /// Marks a session whose end is told and whose finalizer is gone.
    pub fn finish(&mut self, session_uid: &str) {
        self.release_all(session_uid);
        if let Some(known) = self.sessions.get_mut(session_uid) {
            known.over = true;
        }
    }

    /// Whether the end of a session is over.
    pub fn is_over(&self, session_uid: &str) -> bool {
        self.sessions.get(session_uid).is_some_and(|known| known.over)
    }

    /// The object of a session that is known.
    pub fn object(&self, session_uid: &str) -> Option<ObjectRef<AgentSession>> {
        self.sessions.get(session_uid).map(|known| known.object.clone())
    }

    /// UIDs of all sessions that are known or promised a slot, and of all condemned pods: what a sweep looks at. A promise may
    /// outlive its session, when that went while a look at it was under way.
    pub fn begin_sweep(&mut self) -> (HashSet<String>, HashSet<String>) {
        self.gone.clear();
        let promised = self.promises.values().flat_map(HashMap::keys);
        (self.sessions.keys().chain(promised).cloned().collect(), self.condemned.clone())
    }

    /// Sessions whose confirmed slots changed, taken out.
    pub fn take_changed(&mut self) -> HashSet<String> {
        std::mem::take(&mut self.changed)
    }

    /// The promises to a session that are as `wanted`: server UID and pod UID.
    pub fn promises_of(&self, session_uid: &str, wanted: impl Fn(&Promise) -> bool) -> Vec<(String, String)> {
        let of = |(server, promises): (&String, &HashMap<String, Promise>)| {
            let promise = promises.get(session_uid).filter(|promise| wanted(promise))?;
            Some((server.clone(), promise.pod.clone()))
        };
        self.promises.iter().filter_map(of).collect()
    }

    /// Every session with a confirmed slot: server UID and pod UID of each.
    pub fn all_confirmed(&self) -> HashMap<String, Vec<(String, String)>> {
        let mut all: HashMap<String, Vec<(String, String)>> = HashMap::new();
        for (server, promises) in &self.promises {
            for (session, promise) in promises.iter().filter(|(_, promise)| promise.is_confirmed()) {
                all.entry(session.clone()).or_default().push((server.clone(), promise.pod.clone()));
            }
        }
        all
    }

    /// The promises at a server, by session UID.
    pub fn promised(&self, server_uid: &str) -> impl Iterator<Item = (&String, &Promise)> {
        self.promises.get(server_uid).into_iter().flatten()
    }

    /// The promise to a session at a server.
    pub fn promise_of(&self, session_uid: &str, server_uid: &str) -> Option<&Promise> {
        self.promises.get(server_uid)?.get(session_uid)
    }

    /// Promises a slot; a promise in the same pod keeps what was sent.
    pub fn promise(&mut self, session_uid: &str, server_uid: &str, pod_uid: &str) {
        let promises = self.promises.entry(server_uid.to_owned()).or_default();
        let same = promises.get(session_uid).is_some_and(|promise| promise.pod == pod_uid);
        if !same {
            let before =
                promises.insert(session_uid.to_owned(), Promise { pod: pod_uid.to_owned(), sent: None });
            self.note(session_uid, before.as_ref());
        }
    }

    /// Takes a promise back.
    pub fn release(&mut self, session_uid: &str, server_uid: &str) {
        let Some(promises) = self.promises.get_mut(server_uid) else { return };
        let before = promises.remove(session_uid);
        if promises.is_empty() {
            self.promises.remove(server_uid);
        }
        self.note(session_uid, before.as_ref());
    }

    fn release_all(&mut self, session_uid: &str) {
        let before: Vec<Promise> =
            self.promises.values_mut().filter_map(|promises| promises.remove(session_uid)).collect();
        for promise in &before {
            self.note(session_uid, Some(promise));
        }
        self.promises.retain(|_, promises| !promises.is_empty());
    }

    /// Notes that a promise is gone: a confirmed one is news.
    fn note(&mut self, session_uid: &str, gone: Option<&Promise>) {
        if gone.is_some_and(Promise::is_confirmed) {
            self.changed.insert(session_uid.to_owned());
        }
    }

    /// Notes which spec a pod has taken, if the promise still names that pod.
    pub fn sent(&mut self, session_uid: &str, server_uid: &str, pod_uid: &str, fingerprint: String) {
        let promise = self.promises.get_mut(server_uid).and_then(|promises| promises.get_mut(session_uid));
        if let Some(promise) = promise.filter(|promise| promise.pod == pod_uid)
            && promise.sent.replace(fingerprint).is_none()
        {
            self.changed.insert(session_uid.to_owned());
        }
    }

    /// Whose session it is, if it is known.
    pub fn subject_of(&self, session_uid: &str) -> Option<&Subject> {
        self.sessions.get(session_uid).map(|known| &known.subject)
    }

    /// Marks a pod as about to be deleted: it takes nobody from now on.
    pub fn condemn(&mut self, pod_uid: &str) {
        self.condemned.insert(pod_uid.to_owned());
    }

    /// Takes the mark back: the pod could not be deleted, or is gone.
    pub fn spare(&mut self, pod_uid: &str) {
        self.condemned.remove(pod_uid);
    }

    /// Whether a pod is about to be deleted.
    pub fn is_condemned(&self, pod_uid: &str) -> bool {
        self.condemned.contains(pod_uid)
    }

    /// Notes that a pod is gone: no slot in it is confirmed any more.
    pub fn pod_gone(&mut self, pod_uid: &str) {
        self.spare(pod_uid);
        let in_pod = self.promises.values_mut().flatten().filter(|(_, promise)| promise.pod == pod_uid);
        let confirmed = in_pod.filter_map(|(session, promise)| promise.sent.take().map(|_| session));
        self.changed.extend(confirmed.cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_whose_last_promise_is_taken_back_leaves_nothing() {
        let mut book = Book::default();
        for session in ["a", "b"] {
            book.promise(session, "server", "pod");
        }
        book.release("a", "server");
        assert!(book.promise_of("b", "server").is_some());
        book.release("b", "server");
        assert!(book.promises.is_empty());
    }
}
