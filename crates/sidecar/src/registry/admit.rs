//! Whether a PUT is taken. Pure: slots are decided here and nowhere else.

use berth_wire::{Generation, RefusalReason, ServerKey};

/// What the sidecar knows when a PUT arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation<'a> {
    /// What the pod serves.
    pub server: &'a ServerKey,
    /// Sessions that it takes at once.
    pub slots: u32,
    /// Slots that are held, ending sessions among them.
    pub held: u32,
    /// Whether a slot was ever held.
    pub was_used: bool,
    /// Whether the pod is shutting down.
    pub shutting_down: bool,
    /// What it holds of the session.
    pub session: Standing,
}

/// What a sidecar holds of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing.
    Unknown,
    /// A slot.
    Held {
        /// Generation of the PUT in force.
        generation: Generation,
        /// Whether it is held for the subject that the PUT names.
        same_subject: bool,
    },
    /// A slot, until its end is over.
    Ending,
    /// A tombstone.
    Ended,
}

/// What to do with a PUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Give it a slot.
    Create,
    /// Apply it to the session that is held.
    Update,
}

/// Decides on a PUT for `server` of `generation`.
pub(crate) fn admit(
    situation: Situation<'_>,
    server: &ServerKey,
    generation: Generation,
) -> Result<Admission, RefusalReason> {
    if (&server.uid, &server.revision) != (&situation.server.uid, &situation.server.revision) {
        return Err(RefusalReason::WrongServer);
    }
    match situation.session {
        Standing::Ending | Standing::Ended => Err(RefusalReason::Ended),
        Standing::Held { same_subject: false, .. } => Err(RefusalReason::SubjectChanged),
        Standing::Held { generation: held, .. } if generation.is_older_than(held) => {
            Err(RefusalReason::Stale)
        }
        Standing::Held { .. } => Ok(Admission::Update),
        Standing::Unknown if situation.shutting_down => Err(RefusalReason::ShuttingDown),
        // A dedicated pod takes one session in its life: what a session leaves in a pod, no other may find.
        Standing::Unknown if situation.slots == 1 && situation.was_used => Err(RefusalReason::Full),
        Standing::Unknown if situation.held >= situation.slots => Err(RefusalReason::Full),
        Standing::Unknown => Ok(Admission::Create),
    }
}

/// Text to a refusal.
pub(crate) fn explain(reason: RefusalReason, server: &ServerKey) -> String {
    match reason {
        RefusalReason::OldTerm => {
            "the request's term is over: another operator leads by now; this one must stop".to_owned()
        }
        RefusalReason::Full => {
            "every slot of the pod is held or used up; place the session in another pod".to_owned()
        }
        RefusalReason::Stale => "the PUT is older than the one held; read the objects again".to_owned(),
        RefusalReason::SubjectChanged => {
            "the session is held for another subject and never changes it; make a new AgentSession".to_owned()
        }
        RefusalReason::Ended => {
            "the session ends or has ended here; it cannot come back to this pod".to_owned()
        }
        RefusalReason::WrongServer => {
            format!(
                "the pod serves server {:?} at revision {:?}; place the session in a pod of its own",
                server.name, server.revision
            )
        }
        RefusalReason::ShuttingDown => {
            "the pod is shutting down; place the session in another pod".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: Generation = Generation { session: 2, server: 2 };

    fn server(revision: &str) -> ServerKey {
        ServerKey { uid: "s".into(), name: "server".into(), revision: revision.into() }
    }

    fn held(session: i64, server: i64, same_subject: bool) -> Standing {
        Standing::Held { generation: Generation { session, server }, same_subject }
    }

    fn decide(change: impl FnOnce(&mut Situation<'_>)) -> Result<Admission, RefusalReason> {
        let ours = server("r1");
        let mut situation = Situation {
            server: &ours,
            slots: 2,
            held: 1,
            was_used: true,
            shutting_down: false,
            session: Standing::Unknown,
        };
        change(&mut situation);
        admit(situation, &server("r1"), HELD)
    }

    #[test]
    fn a_free_slot_is_given_and_no_more() {
        assert_eq!(decide(|_| {}), Ok(Admission::Create));
        assert_eq!(decide(|s| s.held = 2), Err(RefusalReason::Full));
        assert_eq!(decide(|s| s.shutting_down = true), Err(RefusalReason::ShuttingDown));
    }

    #[test]
    fn a_dedicated_pod_takes_one_session_in_its_life() {
        assert_eq!(decide(|s| (s.slots, s.held, s.was_used) = (1, 0, false)), Ok(Admission::Create));
        assert_eq!(decide(|s| (s.slots, s.held, s.was_used) = (1, 0, true)), Err(RefusalReason::Full));
    }

    #[test]
    fn a_held_session_takes_what_is_not_older_even_if_full() {
        let held = |session, server| held(session, server, true);
        assert_eq!(decide(|s| (s.held, s.session) = (2, held(2, 2))), Ok(Admission::Update));
        assert_eq!(decide(|s| s.session = held(1, 2)), Ok(Admission::Update));
        assert_eq!(decide(|s| s.session = held(3, 1)), Err(RefusalReason::Stale));
        assert_eq!(decide(|s| s.session = held(2, 3)), Err(RefusalReason::Stale));
    }

    #[test]
    fn a_session_never_changes_its_subject() {
        for (session, server) in [(2, 2), (1, 1), (3, 3)] {
            let decision = decide(|s| s.session = held(session, server, false));
            assert_eq!(decision, Err(RefusalReason::SubjectChanged));
        }
    }

    #[test]
    fn what_has_ended_never_comes_back() {
        assert_eq!(decide(|s| s.session = Standing::Ending), Err(RefusalReason::Ended));
        assert_eq!(decide(|s| s.session = Standing::Ended), Err(RefusalReason::Ended));
    }

    #[test]
    fn another_revision_is_refused_before_all() {
        let ours = server("r2");
        let situation = Situation {
            server: &ours,
            slots: 1,
            held: 0,
            was_used: false,
            shutting_down: false,
            session: held(2, 2, true),
        };
        assert_eq!(admit(situation, &server("r1"), HELD), Err(RefusalReason::WrongServer));
    }
}
