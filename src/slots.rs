//! Who was promised which slot by this process, before caches and sidecars say so.
//!
//! Deciding and promising are one step under one lock, so that two sessions placed at once never pass a bound together,
//! and a pod that is about to be deleted is promised to nobody. Filled from status at start; the sidecar has the last word.

use berth_api::{AgentSession, Subject};
use berth_net::feed::{Feed, Urgency};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

/// The book of promises.
#[derive(Default)]
pub struct Slots {
    book: Mutex<Book>,
    /// Tells of sessions whose confirmed slots changed.
    feed: Feed,
}

/// What the book holds; reached through [`Slots::with`].
#[derive(Default)]
pub struct Book {
    /// Sessions that exist, by UID.
    sessions: HashMap<String, Known>,
    /// Promises by server UID, then session UID.
    promises: HashMap<String, HashMap<String, Promise>>,
    /// UIDs of pods that are being deleted, before the cache says so.
    condemned: HashSet<String>,
    /// Sessions whose confirmed slots changed in the step that is under way.
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

impl Slots {
    /// Looks and promises in one step. `step` must not wait or lock anything that is held while calling this.
    pub fn with<T>(&self, step: impl FnOnce(&mut Book) -> T) -> T {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let done = step(&mut book);
        let changed = std::mem::take(&mut book.changed);
        drop(book);
        for session in changed {
            self.feed.mark(&session.into(), Urgency::Now);
        }
        done
    }

    /// Tells of sessions whose confirmed slots changed: see [`Slots::confirmed`].
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Every session with a confirmed slot: see [`Slots::confirmed`].
    pub fn all_confirmed(&self) -> HashMap<String, Vec<(String, String)>> {
        self.with(|book| {
            let mut all: HashMap<String, Vec<(String, String)>> = HashMap::new();
            for (server, promises) in &book.promises {
                for (session, promise) in promises.iter().filter(|(_, promise)| promise.sent.is_some()) {
                    all.entry(session.clone()).or_default().push((server.clone(), promise.pod.clone()));
                }
            }
            all
        })
    }

    /// The slots of a session that a sidecar has confirmed to this process: server UID and pod UID.
    pub fn confirmed(&self, session_uid: &str) -> Vec<(String, String)> {
        self.with(|book| {
            let of = |(server, promises): (&String, &HashMap<String, Promise>)| {
                let promise = promises.get(session_uid).filter(|promise| promise.sent.is_some())?;
                Some((server.clone(), promise.pod.clone()))
            };
            book.promises.iter().filter_map(of).collect()
        })
    }

    /// Enters a session, with the promises that its status speaks of when it is new here.
    pub fn know(&self, session: &AgentSession) {
        let Some(uid) = session.uid() else { return };
        self.with(|book| {
            if book.sessions.contains_key(&uid) || book.gone.contains(&uid) {
                return;
            }
            for server in session.status.iter().flat_map(|status| &status.servers) {
                if let Some(pod) = &server.pod_ref {
                    book.promise(&uid, &pod.server_uid, &pod.uid);
                }
            }
            let known = Known {
                object: ObjectRef::from_obj(session),
                subject: session.spec.subject.clone(),
                over: false,
            };
            book.sessions.insert(uid, known);
        });
    }

    /// Drops a session that is gone; gives the UIDs of the servers where it was promised a slot.
    pub fn forget(&self, session_uid: &str) -> Vec<String> {
        self.with(|book| {
            book.sessions.remove(session_uid);
            book.gone.insert(session_uid.to_owned());
            let held = book.promises.iter().filter(|(_, promises)| promises.contains_key(session_uid));
            let servers = held.map(|(server, _)| server.clone()).collect();
            book.release_all(session_uid);
            servers
        })
    }

    /// Notes that a pod is gone: no slot in it is confirmed any more.
    pub fn pod_gone(&self, pod_uid: &str) {
        self.with(|book| {
            book.spare(pod_uid);
            let in_pod = book.promises.values_mut().flatten().filter(|(_, promise)| promise.pod == pod_uid);
            let confirmed = in_pod.filter_map(|(session, promise)| promise.sent.take().map(|_| session));
            let changed: Vec<String> = confirmed.cloned().collect();
            book.changed.extend(changed);
        });
    }

    /// Marks a session whose end is told and whose finalizer is gone; a cache that lags behind must not begin it anew.
    pub fn finish(&self, session_uid: &str) {
        self.with(|book| {
            book.release_all(session_uid);
            if let Some(known) = book.sessions.get_mut(session_uid) {
                known.over = true;
            }
        });
    }

    /// Whether the end of a session is over.
    pub fn is_over(&self, session_uid: &str) -> bool {
        self.with(|book| book.sessions.get(session_uid).is_some_and(|known| known.over))
    }

    /// Drops sessions and marks on pods that do not exist any more, and gives the UIDs of servers where that freed a slot.
    /// `sessions` and `pods` are asked after what is held here is listed, so that what comes meanwhile is not taken for gone.
    pub fn retain(
        &self,
        sessions: impl FnOnce() -> HashSet<String>,
        pods: impl FnOnce() -> HashSet<String>,
    ) -> HashSet<String> {
        // A promise may outlive its session, when that went while a look at it was under way.
        let (known, condemned): (HashSet<String>, HashSet<String>) = self.with(|book| {
            book.gone.clear();
            let promised = book.promises.values().flat_map(HashMap::keys);
            (book.sessions.keys().chain(promised).cloned().collect(), book.condemned.clone())
        });
        let (sessions, pods) = (sessions(), pods());
        let left = known.iter().filter(|session| !sessions.contains(*session));
        let freed = left.flat_map(|session| self.forget(session)).collect();
        self.with(|book| condemned.difference(&pods).for_each(|pod| book.spare(pod)));
        freed
    }

    /// The object of a session that is known.
    pub fn object(&self, session_uid: &str) -> Option<ObjectRef<AgentSession>> {
        self.with(|book| book.sessions.get(session_uid).map(|known| known.object.clone()))
    }

    /// The sessions that were promised a slot in a pod of a server.
    pub fn promised_to(&self, server_uid: &str, pod_uid: &str) -> Vec<String> {
        self.with(|book| {
            book.promised(server_uid)
                .filter(|(_, promise)| promise.pod == pod_uid)
                .map(|(uid, _)| uid.clone())
                .collect()
        })
    }

    /// The promises to a session: server UID and pod UID.
    pub fn promises_of(&self, session_uid: &str) -> Vec<(String, String)> {
        self.with(|book| {
            let of = |(server, promises): (&String, &HashMap<String, Promise>)| {
                promises.get(session_uid).map(|promise| (server.clone(), promise.pod.clone()))
            };
            book.promises.iter().filter_map(of).collect()
        })
    }
}

impl Book {
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
        let before = self.promises.get_mut(server_uid).and_then(|promises| promises.remove(session_uid));
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
        if gone.is_some_and(|promise| promise.sent.is_some()) {
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

    /// How many other sessions of `subject` were promised a slot at a server, in a pod that `counts`.
    pub fn of_subject(
        &self,
        server_uid: &str,
        subject: &Subject,
        except: &str,
        counts: impl Fn(&str) -> bool,
    ) -> usize {
        self.promised(server_uid)
            .filter(|(session, promise)| *session != except && counts(&promise.pod))
            .filter(|(session, _)| self.sessions.get(*session).is_some_and(|known| known.subject == *subject))
            .count()
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(uid: &str, subject: &str, pod: Option<&str>) -> AgentSession {
        let pod_ref = pod.map(
            |pod| serde_json::json!({"name": pod, "uid": pod, "address": "10.0.0.1", "serverUid": "server"}),
        );
        serde_json::from_value(serde_json::json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "AgentSession",
            "metadata": {"name": uid, "namespace": "demo", "uid": uid},
            "spec": {"subject": {"issuer": "", "name": subject}, "servers": [{"name": "everything"}]},
            "status": {"servers": [{"name": "everything", "state": "Bound", "podRef": pod_ref}]},
        }))
        .unwrap()
    }

    #[test]
    fn what_status_says_is_promised_from_the_start_and_gone_with_the_session() {
        let slots = Slots::default();
        slots.know(&session("a", "alice", Some("p1")));
        slots.know(&session("b", "bob", None));
        assert_eq!(slots.promised_to("server", "p1"), ["a"]);
        assert_eq!(slots.promises_of("a"), [("server".to_owned(), "p1".to_owned())]);
        slots.finish("a");
        assert_eq!((slots.promised_to("server", "p1"), slots.is_over("a")), (vec![], true));
        slots.forget("a");
        assert!(slots.object("a").is_none() && slots.object("b").is_some());
    }

    #[test]
    fn knowing_again_does_not_undo_a_newer_promise() {
        let slots = Slots::default();
        slots.know(&session("a", "alice", Some("p1")));
        slots.with(|book| book.promise("a", "server", "p2"));
        slots.know(&session("a", "alice", Some("p1")));
        assert_eq!(slots.promised_to("server", "p2"), ["a"]);
    }

    #[test]
    fn sessions_of_a_subject_count_where_their_pod_counts() {
        let slots = Slots::default();
        for (uid, subject, pod) in [("a", "alice", "p1"), ("b", "alice", "p2"), ("c", "bob", "p1")] {
            slots.know(&session(uid, subject, Some(pod)));
        }
        let alice = Subject { issuer: String::new(), name: "alice".into() };
        slots.with(|book| {
            assert_eq!(book.of_subject("server", &alice, "z", |_| true), 2);
            assert_eq!(book.of_subject("server", &alice, "a", |_| true), 1);
            assert_eq!(book.of_subject("server", &alice, "z", |pod| pod == "p1"), 1);
        });
    }

    #[test]
    fn a_session_or_a_mark_that_comes_while_the_sweep_looks_is_not_taken_for_gone() {
        let slots = Slots::default();
        slots.know(&session("stays", "alice", None));
        slots.know(&session("gone", "alice", Some("p1")));
        slots.with(|book| book.condemn("p1"));
        slots.with(|book| book.promise("unknown", "server", "p3"));
        // What the store says is read last: what comes after the list of the book is in neither.
        let sessions = || {
            slots.know(&session("late", "alice", Some("p2")));
            slots.with(|book| book.condemn("p2"));
            HashSet::from(["stays".to_owned()])
        };
        slots.retain(sessions, HashSet::new);
        assert!(slots.object("stays").is_some() && slots.object("late").is_some());
        assert!(slots.object("gone").is_none());
        assert_eq!(slots.promised_to("server", "p3"), Vec::<String>::new());
        assert_eq!(
            (slots.promised_to("server", "p1"), slots.promised_to("server", "p2")),
            (vec![], vec!["late".to_owned()])
        );
        assert!(slots.with(|book| !book.is_condemned("p1") && book.is_condemned("p2")));
    }

    #[test]
    fn a_look_that_began_before_its_session_went_does_not_promise_it_a_slot() {
        let slots = Slots::default();
        let session = session("a", "alice", Some("p1"));
        slots.know(&session);
        assert_eq!(slots.forget("a"), ["server"]);
        slots.know(&session);
        assert_eq!((slots.object("a"), slots.promised_to("server", "p1")), (None, vec![]));
    }

    #[test]
    fn a_sweep_says_where_slots_came_free() {
        let slots = Slots::default();
        slots.know(&session("a", "alice", Some("p1")));
        slots.know(&session("b", "alice", Some("p1")));
        let freed = slots.retain(|| HashSet::from(["b".to_owned()]), HashSet::new);
        assert_eq!(freed, HashSet::from(["server".to_owned()]));
        assert_eq!(slots.retain(|| HashSet::from(["b".to_owned()]), HashSet::new), HashSet::new());
    }

    #[test]
    fn a_slot_in_a_pod_that_is_gone_is_not_confirmed_any_more() {
        let slots = Slots::default();
        slots.with(|book| {
            book.promise("a", "server", "p1");
            book.sent("a", "server", "p1", "f".into());
            book.promise("b", "server", "p2");
            book.sent("b", "server", "p2", "g".into());
        });
        slots.pod_gone("p1");
        assert_eq!((slots.confirmed("a").len(), slots.confirmed("b").len()), (0, 1));
    }

    #[test]
    fn what_was_sent_is_forgotten_with_the_pod() {
        let slots = Slots::default();
        slots.with(|book| {
            book.promise("a", "server", "p1");
            book.sent("a", "server", "p1", "f".into());
            book.sent("a", "server", "p9", "g".into());
            assert_eq!(book.promise_of("a", "server").unwrap().sent.as_deref(), Some("f"));
            book.promise("a", "server", "p2");
            assert_eq!(book.promise_of("a", "server").unwrap().sent, None);
        });
    }

    #[tokio::test]
    async fn only_slots_that_a_sidecar_confirmed_are_told_and_told_again_when_they_are_given_back() {
        let slots = Slots::default();
        slots.know(&session("a", "alice", Some("p0")));
        let news = slots.feed().watch();
        slots.with(|book| book.promise("a", "server", "p1"));
        assert_eq!((slots.confirmed("a"), slots.all_confirmed().len()), (vec![], 0));
        slots.with(|book| book.sent("a", "server", "p1", "f".into()));
        assert_eq!(slots.confirmed("a"), [("server".to_owned(), "p1".to_owned())]);
        assert_eq!(slots.all_confirmed(), HashMap::from([("a".to_owned(), slots.confirmed("a"))]));
        assert_eq!(news.changed().await, HashSet::from(["a".into()]));
        slots.with(|book| book.sent("a", "server", "p1", "g".into()));
        slots.with(|book| book.promise("a", "server", "p2"));
        assert_eq!((slots.confirmed("a"), news.changed().await), (vec![], HashSet::from(["a".into()])));
    }
}
