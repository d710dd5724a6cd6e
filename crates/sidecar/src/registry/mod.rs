//! All sessions of the pod: who holds a slot, who ends, who has ended.

mod admit;
mod term;
mod tombstones;

use crate::session::{Deadlines, Desired, Session, Shared, SpecError};
use crate::sync::lock;
use admit::{Admission, Situation, Standing, admit, explain};
use berth_net::feed::Urgency;
use berth_net::metrics::Held;
use berth_wire::{
    EndPhase, EndReport, Outcome, Refusal, RefusalReason, ServerKey, SessionReport, SessionSpec, Subject,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use term::Terms;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tombstones::{Tombstone, Tombstones};

/// How long the shutdown waits for attempts that outlive their sessions.
const STRAGGLERS: Duration = Duration::from_secs(5);

/// The sessions of one pod.
pub(crate) struct Registry {
    /// What the pod serves.
    pub server: ServerKey,
    /// Sessions that it takes at once.
    pub slots: u32,
    pub shared: Arc<Shared>,
    state: Mutex<State>,
}

struct State {
    terms: Terms,
    sessions: HashMap<Arc<str>, Slot>,
    tombstones: Tombstones,
    was_used: bool,
    shutting_down: bool,
}

/// A slot that is held.
struct Slot {
    session: Arc<Session>,
    /// The end that is under way.
    end: Option<watch::Receiver<EndReport>>,
    _held: Held,
}

/// Why a PUT was not taken.
#[derive(Debug)]
pub(crate) enum PutError {
    /// The slot or the change is refused.
    Refused(Refusal),
    /// The spec cannot be used.
    Invalid(SpecError),
}

impl Registry {
    /// A registry without sessions; `stop` ends its watches.
    pub(crate) fn new(
        server: ServerKey,
        slots: u32,
        shared: Arc<Shared>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let state = State {
            terms: Terms::new(stop),
            sessions: HashMap::new(),
            tombstones: Tombstones::default(),
            was_used: false,
            shutting_down: false,
        };
        Arc::new(Self { server, slots, shared, state: Mutex::new(state) })
    }

    /// Refuses a term that is lower than one seen before, and remembers it otherwise.
    pub(crate) fn check_term(&self, term: u64) -> Result<(), Refusal> {
        self.of_term(term).map(drop)
    }

    /// Takes the whole desired state of a session.
    pub(crate) fn put(&self, term: u64, spec: SessionSpec) -> Result<SessionReport, PutError> {
        let uid: Arc<str> = spec.uid.as_str().into();
        let desired = Desired::new(spec, &self.shared.dialer).map_err(PutError::Invalid)?;
        let mut state = self.of_term(term).map_err(PutError::Refused)?;
        let situation = Situation {
            server: &self.server,
            slots: self.slots,
            held: u32::try_from(state.sessions.len()).unwrap_or(u32::MAX),
            was_used: state.was_used,
            shutting_down: state.shutting_down,
            session: state.standing(&uid, &desired.subject),
        };
        let admission = admit(situation, &desired.server, desired.generation)
            .map_err(|reason| PutError::Refused(self.refusal(reason)))?;
        let session = match admission {
            Admission::Create => {
                tracing::info!(session = %uid, name = desired.display_name, server = desired.server.name, "slot given");
                let session = Session::new(uid.clone(), desired, self.shared.clone());
                let held = Held::new(&self.shared.metrics.sessions);
                state.was_used = true;
                state.sessions.insert(uid.clone(), Slot { session: session.clone(), end: None, _held: held });
                self.shared.feed.mark(&uid, Urgency::Now);
                session
            }
            Admission::Update => {
                let Some(slot) = state.sessions.get(&uid) else {
                    return Err(PutError::Refused(self.refusal(RefusalReason::Ended)));
                };
                slot.session.update(desired);
                slot.session.clone()
            }
        };
        drop(state);
        Ok(session.report())
    }

    /// The session `uid`, if it holds a slot.
    pub(crate) fn get(&self, uid: &str) -> Option<Arc<Session>> {
        lock(&self.state).sessions.get(uid).map(|slot| slot.session.clone())
    }

    /// Starts the end of a session, or joins it; the first one fixes the deadlines. What it answers is followed until its
    /// phase is `Ended`. A session that was never here leaves a tombstone, so that a PUT that was overtaken is refused.
    pub(crate) fn end(
        self: &Arc<Self>,
        term: u64,
        uid: &str,
        deadlines: Deadlines,
    ) -> Result<watch::Receiver<EndReport>, Refusal> {
        let mut state = self.of_term(term)?;
        Ok(self.begin_end(&mut state, uid, deadlines))
    }

    fn begin_end(
        self: &Arc<Self>,
        state: &mut State,
        uid: &str,
        deadlines: Deadlines,
    ) -> watch::Receiver<EndReport> {
        let Some(slot) = state.sessions.get_mut(uid) else {
            let end = state.tombstones.get(uid).map_or(EndReport::NOTHING_HELD, |tombstone| tombstone.end);
            state.tombstones.add(uid.into(), Tombstone { end, last: None });
            return watch::channel(end).1;
        };
        if let Some(end) = &slot.end {
            return end.clone();
        }
        let (progress, end) = watch::channel(BEGUN);
        slot.end = Some(end.clone());
        if slot.session.fence() {
            self.shared.tasks.spawn(self.clone().carry_out(slot.session.clone(), deadlines, progress));
        }
        end
    }

    async fn carry_out(
        self: Arc<Self>,
        session: Arc<Session>,
        deadlines: Deadlines,
        progress: watch::Sender<EndReport>,
    ) {
        let server = &self.server.name;
        tracing::info!(session = %session.uid, server, ?deadlines, "end begun");
        let progress = Arc::new(progress);
        // A task of its own, so that even a panic in it leaves a tombstone and frees the slot.
        let end = tokio::spawn({
            let (session, progress) = (session.clone(), progress.clone());
            async move { session.end(deadlines, &progress).await }
        });
        let end = end.await.unwrap_or(EndReport { phase: EndPhase::Ended, ..BEGUN });
        let mut state = lock(&self.state);
        let SessionReport { generation, activity, .. } = session.report();
        let last = Some((generation, activity));
        state.tombstones.add(session.uid.clone(), Tombstone { end, last });
        state.sessions.remove(&session.uid);
        drop(state);
        progress.send_replace(end);
        self.shared.feed.mark(&session.uid, Urgency::Now);
        tracing::info!(session = %session.uid, server, drain = ?end.drain, close = ?end.close, remove = ?end.remove, "ended");
    }

    /// Observed state of a session that holds a slot or has held one.
    pub(crate) fn report(&self, uid: &str) -> Option<SessionReport> {
        let state = lock(&self.state);
        match state.sessions.get(uid) {
            Some(slot) => Some(slot.session.report()),
            None => state.tombstones.get(uid)?.report(uid),
        }
    }

    /// Observed state of every session that holds a slot, for one that leads.
    pub(crate) fn list(&self, term: u64) -> Result<Vec<SessionReport>, Refusal> {
        self.check_term(term)?;
        Ok(self.reports())
    }

    /// What ends a watch of one that leads: a higher term, or the end of the pod.
    pub(crate) fn watch(&self, term: u64) -> Result<CancellationToken, Refusal> {
        self.of_term(term).map(|state| state.terms.watches())
    }

    /// Observed state of every session that holds a slot.
    pub(crate) fn reports(&self) -> Vec<SessionReport> {
        let sessions: Vec<_> = lock(&self.state).sessions.values().map(|slot| slot.session.clone()).collect();
        sessions.iter().map(|session| session.report()).collect()
    }

    /// Refuses new sessions, ends all by their own timeouts, and returns when they have ended.
    pub(crate) async fn shut_down(self: &Arc<Self>) {
        let sessions: Vec<_> = {
            let mut state = lock(&self.state);
            state.shutting_down = true;
            state.sessions.values().map(|slot| slot.session.clone()).collect()
        };
        let ends: Vec<_> = sessions
            .iter()
            .map(|session| {
                let desired = session.desired();
                let deadlines = Deadlines { drain: desired.drain(), close: desired.close() };
                self.begin_end(&mut lock(&self.state), &session.uid, deadlines)
            })
            .collect();
        for mut end in ends {
            let _ = end.wait_for(|end| end.phase == EndPhase::Ended).await;
        }
        self.shared.tasks.close();
        if tokio::time::timeout(STRAGGLERS, self.shared.tasks.wait()).await.is_err() {
            tracing::warn!("attempts to connect are cut; what they opened upstream is not closed");
        }
    }

    /// The state, for a request of `term`. What the request does has to be done under this very hold of the lock.
    fn of_term(&self, term: u64) -> Result<MutexGuard<'_, State>, Refusal> {
        let mut state = lock(&self.state);
        match state.terms.admit(term) {
            Ok(()) => Ok(state),
            Err(highest) => Err(Refusal { term: Some(highest), ..self.refusal(RefusalReason::OldTerm) }),
        }
    }

    fn refusal(&self, reason: RefusalReason) -> Refusal {
        Refusal { reason, message: explain(reason, &self.server), term: None }
    }
}

/// The report on an end that has only begun.
const BEGUN: EndReport = EndReport {
    phase: EndPhase::Draining,
    drain: Outcome::Unconfirmed,
    close: Outcome::Unconfirmed,
    remove: Outcome::Unconfirmed,
};

impl State {
    /// What is held of the session `uid`, for a PUT that names `subject`.
    fn standing(&self, uid: &str, subject: &Subject) -> Standing {
        match self.sessions.get(uid) {
            Some(slot) if slot.session.takes_work() => {
                let held = slot.session.desired();
                Standing::Held { generation: held.generation, same_subject: held.subject == *subject }
            }
            Some(_) => Standing::Ending,
            None if self.tombstones.get(uid).is_some() => Standing::Ended,
            None => Standing::Unknown,
        }
    }
}

#[cfg(test)]
mod tests;
