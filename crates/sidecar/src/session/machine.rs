//! Where a session's upstream connection stands, and what follows from each event. Pure; effects are in [`super`].
//!
//! ```text
//!            Needed                Established
//!   Idle ------------> Connecting -------------> Connected
//!    | ^ ^ ^            ^   |   |                   |
//!    | | | |     Needed |   |   | Refused           | Lost
//!    | | | +------------|---|---|-------------------+
//!    | | |    Failed    |   |   v
//!    | | |  +-----------|---+  Barred
//!    | | |  v           |       |
//!    +-|-+-Backoff------+       | Changed
//! Held +------------------------+
//!   any of them -- EndAsked --> Closing -- Removed --> Closed
//! ```
//!
//! Whether a failure is followed by another attempt, and when, is the [gate](super::gate)'s to say, which all sessions share;
//! only what is the session's own, a credential that is refused, bars it here.

use berth_wire::SessionState;

/// Where the connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing is connected, and nothing is wrong.
    Idle,
    /// An attempt is in flight.
    Connecting,
    /// The upstream session is established.
    Connected,
    /// The last attempt failed, or the gate is closed. The next request that needs the upstream asks the gate.
    Backoff,
    /// The upstream refuses what the session carries: no attempt until that changes.
    Barred,
    /// The end is under way.
    Closing,
    /// Only the tombstone is left.
    Closed,
}

/// The state, and the number of the last attempt to connect. Attempts are numbered from 1; a connection has the number
/// of the attempt that made it, so that news of an old one cannot touch a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    state: State,
    epoch: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A request needs the upstream; the gate is open if an attempt has to be made.
    Needed,
    /// A request needs the upstream, and the gate is closed.
    Held,
    /// This attempt made a connection.
    Established(u64),
    /// This attempt failed.
    Failed(u64),
    /// The upstream refused what this attempt carried.
    Refused(u64),
    /// What the session carries, or where it leads, has changed.
    Changed,
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
    /// Nothing: the event is old news, or changes nothing.
    Nothing,
    /// Start the attempt of this number.
    StartAttempt(u64),
    /// Wait for the attempt that is in flight.
    JoinAttempt,
    /// Use the connection that is there.
    UseConnection,
    /// No attempt: the gate is closed.
    Hold,
    /// No attempt: the upstream refuses what the session carries.
    Bar,
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
        Self { state: State::Idle, epoch: 0 }
    }

    #[cfg(test)]
    pub(crate) const fn state(self) -> State {
        self.state
    }

    /// The state as operators are told it. One that cannot be connected for now is idle with a failure.
    pub(crate) const fn reported(self) -> SessionState {
        match self.state {
            State::Idle | State::Backoff | State::Barred => SessionState::Idle,
            State::Connecting => SessionState::Connecting,
            State::Connected => SessionState::Connected,
            State::Closing => SessionState::Ending,
            State::Closed => SessionState::Ended,
        }
    }

    /// Attempts begun so far.
    pub(crate) const fn attempts(self) -> u64 {
        self.epoch
    }

    /// Whether new work is taken.
    pub(crate) const fn takes_work(self) -> bool {
        !matches!(self.state, State::Closing | State::Closed)
    }

    /// Whether the last attempt failed, or none may be made.
    pub(crate) const fn is_backing_off(self) -> bool {
        matches!(self.state, State::Backoff)
    }

    /// Whether a request that needs the upstream now would begin an attempt.
    pub(crate) const fn would_begin(self) -> bool {
        matches!(self.state, State::Idle | State::Backoff)
    }

    /// Takes `event` and says what has to be done.
    pub(crate) fn step(&mut self, event: Event) -> Effect {
        use State::{Backoff, Barred, Closed, Closing, Connected, Connecting, Idle};
        let is_current = |epoch| epoch == self.epoch;
        let (state, effect) = match (self.state, event) {
            (Idle | Backoff, Event::Needed) => (Connecting, Effect::StartAttempt(self.epoch + 1)),
            (Idle | Backoff, Event::Held) => (Backoff, Effect::Hold),
            (Connecting, Event::Needed | Event::Held) => (Connecting, Effect::JoinAttempt),
            (Connected, Event::Needed | Event::Held) => (Connected, Effect::UseConnection),
            (Barred, Event::Needed | Event::Held) => (Barred, Effect::Bar),
            (state @ (Closing | Closed), Event::Needed | Event::Held) => (state, Effect::Refuse),

            (Connecting, Event::Established(epoch)) if is_current(epoch) => (Connected, Effect::Publish),
            (state, Event::Established(_)) => (state, Effect::CloseLate),
            (Connecting, Event::Failed(epoch)) if is_current(epoch) => (Backoff, Effect::TellFailure),
            (Connecting, Event::Refused(epoch)) if is_current(epoch) => (Barred, Effect::TellFailure),
            (state @ (Closing | Closed), Event::Failed(_) | Event::Refused(_)) => {
                (state, Effect::TellFailure)
            }
            (Connected, Event::Lost(epoch)) if is_current(epoch) => (Idle, Effect::Evict),
            (Barred, Event::Changed) => (Idle, Effect::Nothing),

            (Closing, Event::Removed) => (Closed, Effect::Bury),
            (state @ (Closing | Closed), Event::EndAsked) => (state, Effect::JoinEnd),
            (_, Event::EndAsked) => (Closing, Effect::BeginEnd),
            (
                state,
                Event::Failed(_) | Event::Refused(_) | Event::Lost(_) | Event::Changed | Event::Removed,
            ) => (state, Effect::Nothing),
        };
        if let Effect::StartAttempt(epoch) = effect {
            self.epoch = epoch;
        }
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
        Need { gate_is_open: bool },
        FinishAttempt { how: u8 },
        Change,
        Lose { age: u64 },
        End,
        Remove,
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            4 => prop::bool::weighted(0.8).prop_map(|gate_is_open| Move::Need { gate_is_open }),
            4 => (0_u8..3).prop_map(|how| Move::FinishAttempt { how }),
            1 => Just(Move::Change),
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
        barred: bool,
        end_begun: bool,
        buried: bool,
    }

    impl World {
        fn apply(&mut self, machine: &mut Machine, one: Move) -> Result<(), TestCaseError> {
            let event = match one {
                Move::Need { gate_is_open: true } => Event::Needed,
                Move::Need { gate_is_open: false } => Event::Held,
                Move::FinishAttempt { how } => match (self.in_flight.take(), how) {
                    (Some(epoch), 0) => Event::Established(epoch),
                    (Some(epoch), 1) => Event::Failed(epoch),
                    (Some(epoch), _) => {
                        self.barred = !self.end_begun;
                        Event::Refused(epoch)
                    }
                    (None, _) => return Ok(()),
                },
                Move::Change => {
                    self.barred = false;
                    Event::Changed
                }
                Move::Lose { age } => Event::Lost(machine.attempts().saturating_sub(age)),
                Move::End => Event::EndAsked,
                Move::Remove => Event::Removed,
            };
            let effect = machine.step(event);
            match effect {
                Effect::StartAttempt(epoch) => {
                    prop_assert!(self.in_flight.is_none() && self.usable.is_none() && !self.end_begun);
                    prop_assert!(!self.barred, "the credential is refused");
                    prop_assert_eq!(event, Event::Needed, "the gate is closed");
                    self.in_flight = Some(epoch);
                }
                Effect::JoinAttempt => prop_assert!(self.in_flight.is_some()),
                Effect::UseConnection => prop_assert!(self.usable.is_some() && !self.end_begun),
                Effect::Hold => prop_assert!(event == Event::Held && self.in_flight.is_none()),
                Effect::Bar => prop_assert!(self.barred && self.in_flight.is_none()),
                Effect::Refuse => prop_assert!(self.end_begun),
                Effect::Publish => {
                    prop_assert!(self.usable.is_none() && !self.end_begun);
                    self.usable = Some(machine.attempts());
                }
                Effect::CloseLate => prop_assert!(self.end_begun),
                Effect::TellFailure => prop_assert!(matches!(event, Event::Failed(_) | Event::Refused(_))),
                Effect::Evict => prop_assert_eq!(self.usable.take(), Some(machine.attempts())),
                Effect::BeginEnd => prop_assert!(!std::mem::replace(&mut self.end_begun, true)),
                Effect::JoinEnd => prop_assert!(self.end_begun),
                Effect::Bury => prop_assert!(self.end_begun && !std::mem::replace(&mut self.buried, true)),
                Effect::Nothing => {
                    prop_assert!(matches!(event, Event::Lost(_) | Event::Changed | Event::Removed));
                }
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
                prop_assert_eq!(machine.state() == State::Closed, world.buried);
                prop_assert_eq!(machine.state() == State::Barred, world.barred && !world.end_begun);
                prop_assert_eq!(machine.state() == State::Connected, world.usable.is_some() && !world.end_begun);
            }
        }
    }

    #[test]
    fn a_refused_credential_bars_until_it_changes_and_a_failure_does_not() {
        let mut machine = Machine::new();
        machine.step(Event::Needed);
        assert_eq!(machine.step(Event::Failed(1)), Effect::TellFailure);
        assert_eq!((machine.state(), machine.step(Event::Held)), (State::Backoff, Effect::Hold));
        assert_eq!(machine.step(Event::Needed), Effect::StartAttempt(2));
        assert_eq!(machine.step(Event::Refused(2)), Effect::TellFailure);
        assert_eq!((machine.step(Event::Needed), machine.would_begin()), (Effect::Bar, false));
        machine.step(Event::Changed);
        assert_eq!(machine.step(Event::Needed), Effect::StartAttempt(3));
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
        assert_eq!(machine.state(), State::Connected);
    }
}
