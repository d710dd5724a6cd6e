//! Where a session's upstream connection stands, and what follows from each event. Pure; effects are in [`super`].
//!
//! ```text
//!            Needed                Established
//!   Idle ------------> Connecting -------------> Connected
//!    ^ ^                 |                          |
//!    | +-----------------+ Failed                   |
//!    +----------------------------------------------+ Lost
//!   any of them -- EndAsked --> Ending -- Removed --> Ended
//! ```

use berth_wire::SessionState;

/// The state, and the number of the last attempt to connect. Attempts are numbered from 1; a connection has the number
/// of the attempt that made it, so that news of an old one cannot touch a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    state: SessionState,
    epoch: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A request needs the upstream.
    Needed,
    /// This attempt made a connection.
    Established(u64),
    /// This attempt failed.
    Failed(u64),
    /// The connection of this attempt was lost.
    Lost(u64),
    /// The session is to end.
    EndAsked,
    /// Nothing of the session is left.
    Removed,
}

/// What has to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: the event is old news.
    Nothing,
    /// Start the attempt of this number.
    StartAttempt(u64),
    /// Wait for the attempt that is in flight.
    JoinAttempt,
    /// Use the connection that is there.
    UseConnection,
    /// No new work: the session ends or has ended.
    Refuse,
    /// Let everybody use the new connection.
    Publish,
    /// Close the new connection: it came after the end began.
    CloseLate,
    /// Tell those who wait that the attempt failed.
    TellFailure,
    /// Take the connection out of use.
    Evict,
    /// Begin the end.
    BeginEnd,
    /// Wait for the end that is under way, or read how it went.
    JoinEnd,
    /// The session has ended.
    Bury,
}

impl Machine {
    pub(crate) const fn new() -> Self {
        Self { state: SessionState::Idle, epoch: 0 }
    }

    pub(crate) const fn state(self) -> SessionState {
        self.state
    }

    /// Attempts begun so far.
    pub(crate) const fn attempts(self) -> u64 {
        self.epoch
    }

    /// Whether new work is taken.
    pub(crate) const fn takes_work(self) -> bool {
        !matches!(self.state, SessionState::Ending | SessionState::Ended)
    }

    /// Takes `event` and says what has to be done.
    pub(crate) fn step(&mut self, event: Event) -> Effect {
        use SessionState::{Connected, Connecting, Ended, Ending, Idle};
        let (state, effect) = match (self.state, event) {
            (Idle, Event::Needed) => {
                self.epoch += 1;
                (Connecting, Effect::StartAttempt(self.epoch))
            }
            (Connecting, Event::Needed) => (Connecting, Effect::JoinAttempt),
            (Connected, Event::Needed) => (Connected, Effect::UseConnection),
            (state @ (Ending | Ended), Event::Needed) => (state, Effect::Refuse),

            (Connecting, Event::Established(epoch)) if epoch == self.epoch => (Connected, Effect::Publish),
            (state, Event::Established(_)) => (state, Effect::CloseLate),
            (Connecting, Event::Failed(epoch)) if epoch == self.epoch => (Idle, Effect::TellFailure),
            (state @ (Ending | Ended), Event::Failed(_)) => (state, Effect::TellFailure),
            (Connected, Event::Lost(epoch)) if epoch == self.epoch => (Idle, Effect::Evict),

            (Idle | Connecting | Connected, Event::EndAsked) => (Ending, Effect::BeginEnd),
            (state @ (Ending | Ended), Event::EndAsked) => (state, Effect::JoinEnd),
            (Ending, Event::Removed) => (Ended, Effect::Bury),
            (state, Event::Failed(_) | Event::Lost(_) | Event::Removed) => (state, Effect::Nothing),
        };
        self.state = state;
        effect
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Move {
        Need,
        FinishAttempt { well: bool },
        Lose { age: u64 },
        End,
        Remove,
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            4 => Just(Move::Need),
            4 => any::<bool>().prop_map(|well| Move::FinishAttempt { well }),
            2 => (0_u64..3).prop_map(|age| Move::Lose { age }),
            1 => Just(Move::End),
            1 => Just(Move::Remove),
        ];
        prop::collection::vec(one, 0..60)
    }

    /// A world that does what the machine says and keeps books of it.
    #[derive(Default)]
    struct World {
        in_flight: Option<u64>,
        usable: Option<u64>,
        end_begun: bool,
        buried: bool,
    }

    impl World {
        fn apply(&mut self, machine: &mut Machine, one: Move) -> Result<(), TestCaseError> {
            let event = match one {
                Move::Need => Event::Needed,
                Move::FinishAttempt { well } => match self.in_flight.take() {
                    Some(epoch) if well => Event::Established(epoch),
                    Some(epoch) => Event::Failed(epoch),
                    None => return Ok(()),
                },
                Move::Lose { age } => Event::Lost(machine.attempts().saturating_sub(age)),
                Move::End => Event::EndAsked,
                Move::Remove => Event::Removed,
            };
            let effect = machine.step(event);
            match effect {
                Effect::StartAttempt(epoch) => {
                    prop_assert!(self.in_flight.is_none() && self.usable.is_none() && !self.end_begun);
                    self.in_flight = Some(epoch);
                }
                Effect::JoinAttempt => prop_assert!(self.in_flight.is_some()),
                Effect::UseConnection => prop_assert!(self.usable.is_some() && !self.end_begun),
                Effect::Refuse => prop_assert!(self.end_begun),
                Effect::Publish => {
                    prop_assert!(self.usable.is_none() && !self.end_begun);
                    self.usable = Some(machine.attempts());
                }
                Effect::CloseLate => prop_assert!(self.end_begun),
                Effect::TellFailure => prop_assert!(matches!(event, Event::Failed(_))),
                Effect::Evict => prop_assert_eq!(self.usable.take(), Some(machine.attempts())),
                Effect::BeginEnd => prop_assert!(!std::mem::replace(&mut self.end_begun, true)),
                Effect::JoinEnd => prop_assert!(self.end_begun),
                Effect::Bury => prop_assert!(self.end_begun && !std::mem::replace(&mut self.buried, true)),
                Effect::Nothing => prop_assert!(matches!(event, Event::Lost(_) | Event::Removed)),
            }
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn at_most_one_attempt_or_connection_and_none_after_the_end_began(moves in moves()) {
            let (mut machine, mut world) = (Machine::new(), World::default());
            for one in moves {
                world.apply(&mut machine, one)?;
                prop_assert_eq!(machine.takes_work(), !world.end_begun);
                prop_assert_eq!(machine.state() == SessionState::Ended, world.buried);
                prop_assert_eq!(machine.state() == SessionState::Connected, world.usable.is_some() && !world.end_begun);
            }
        }
    }

    #[test]
    fn news_of_an_old_connection_does_not_touch_the_new_one() {
        let mut machine = Machine::new();
        assert_eq!(machine.step(Event::Needed), Effect::StartAttempt(1));
        assert_eq!(machine.step(Event::Established(1)), Effect::Publish);
        assert_eq!(machine.step(Event::Lost(1)), Effect::Evict);
        assert_eq!(machine.step(Event::Lost(1)), Effect::Nothing);
        assert_eq!(machine.step(Event::Needed), Effect::StartAttempt(2));
        assert_eq!(machine.step(Event::Lost(1)), Effect::Nothing);
        assert_eq!(machine.step(Event::Established(2)), Effect::Publish);
        assert_eq!(machine.state(), SessionState::Connected);
    }
}
