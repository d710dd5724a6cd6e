//! The calls of a session that run, and those that wait for their turn, first come first served.
//!
//! A call that waits for a client that does not read gives its turn back, so that it holds up its own client alone; it counts on
//! among those for whom there is a place.

use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// Who runs and who waits.
#[derive(Default)]
pub(crate) struct Lanes(Mutex<State>);

#[derive(Default)]
struct State {
    running: u32,
    waiting: VecDeque<(u64, oneshot::Sender<()>)>,
    /// Those that gave their turn back and are not over.
    unread: u32,
    next: u64,
    /// How many may run, as the last who came was told.
    concurrent: u32,
}

/// There are as many as may run and wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// A place among as many as may run and wait; given back when dropped.
pub(crate) struct Turn {
    lanes: Arc<Lanes>,
    place: Place,
}

enum Place {
    Running,
    Waiting(u64, oneshot::Receiver<()>),
    Unread,
}

impl Lanes {
    /// Takes a place where `concurrent` may run and `queued` wait.
    pub(crate) fn enter(self: &Arc<Self>, concurrent: u32, queued: u32) -> Result<Turn, Full> {
        let mut state = lock(&self.0);
        state.concurrent = concurrent;
        state.admit();
        if state.places() >= u64::from(concurrent) + u64::from(queued) {
            return Err(Full);
        }
        let place = if state.running < concurrent {
            state.running += 1;
            Place::Running
        } else {
            let (turn, wait) = oneshot::channel();
            state.next += 1;
            let ticket = state.next;
            state.waiting.push_back((ticket, turn));
            Place::Waiting(ticket, wait)
        };
        Ok(Turn { lanes: self.clone(), place })
    }
}

impl State {
    /// Places that are taken. Those that run although the limit was lowered meanwhile take nobody's place in the queue.
    fn places(&self) -> u64 {
        let waiting = u64::try_from(self.waiting.len()).unwrap_or(u64::MAX);
        u64::from(self.running.min(self.concurrent)) + u64::from(self.unread) + waiting
    }

    /// Lets those run for whom there is room.
    fn admit(&mut self) {
        while self.running < self.concurrent {
            let Some((_, turn)) = self.waiting.pop_front() else {
                // An idle session must not keep the room of its busiest moment.
                self.waiting = VecDeque::new();
                return;
            };
            // Who waits takes itself out under the lock, so that nobody is told in vain.
            if turn.send(()).is_ok() {
                self.running += 1;
            }
        }
    }
}

impl Turn {
    /// Returns when it may run.
    pub(crate) async fn come(&mut self) {
        if let Place::Waiting(_, wait) = &mut self.place {
            let _ = wait.await;
            self.place = Place::Running;
        }
    }

    /// Lets another one run instead; it keeps its place. One that does not run has no turn to give.
    pub(crate) fn give_back(&mut self) {
        if matches!(self.place, Place::Running) {
            self.place = Place::Unread;
            let mut state = lock(&self.lanes.0);
            state.unread += 1;
            state.running -= 1;
            state.admit();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = lock(&self.lanes.0);
        let runs = match &mut self.place {
            Place::Running => true,
            Place::Unread => {
                state.unread -= 1;
                false
            }
            Place::Waiting(ticket, wait) => {
                state.waiting.retain(|(waiting, _)| waiting != ticket);
                wait.try_recv().is_ok()
            }
        };
        if runs {
            state.running -= 1;
            state.admit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use proptest::prelude::*;

    fn runs(turn: &mut Turn) -> bool {
        turn.come().now_or_never().is_some()
    }

    #[test]
    fn who_came_first_runs_first_and_who_leaves_is_passed_over() {
        let lanes = Arc::<Lanes>::default();
        let mut running = lanes.enter(1, 3).unwrap();
        assert!(runs(&mut running));
        let [mut first, second, mut third] = [(); 3].map(|()| lanes.enter(1, 3).unwrap());
        assert!(lanes.enter(1, 3).is_err(), "the queue is full");
        assert!(!runs(&mut first));
        drop(second);
        drop(running);
        assert!(runs(&mut first) && !runs(&mut third));
        drop(first);
        assert!(runs(&mut third));
    }

    #[test]
    fn one_that_leaves_as_its_turn_comes_passes_it_on() {
        let lanes = Arc::<Lanes>::default();
        let [running, told, mut next] = [(); 3].map(|()| lanes.enter(1, 2).unwrap());
        drop(running);
        drop(told);
        assert!(runs(&mut next));
    }

    #[test]
    fn a_limit_that_is_raised_lets_those_who_wait_run() {
        let lanes = Arc::<Lanes>::default();
        let mut turns = [(); 3].map(|()| lanes.enter(1, 5).unwrap());
        let mut last = lanes.enter(3, 5).unwrap();
        assert!(turns.iter_mut().all(runs));
        assert!(!runs(&mut last));
    }

    #[test]
    fn a_turn_that_is_given_back_is_another_ones_and_its_place_is_not() {
        let lanes = Arc::<Lanes>::default();
        let [mut unread, mut next] = [(); 2].map(|()| lanes.enter(1, 1).unwrap());
        assert!(runs(&mut unread) && !runs(&mut next));
        // It is not this one's to give.
        next.give_back();
        assert!(!runs(&mut next));
        unread.give_back();
        assert!(runs(&mut next));
        assert!(lanes.enter(1, 1).is_err(), "as many as before");
        unread.give_back();
        drop(unread);
        assert!(!runs(&mut lanes.enter(1, 1).unwrap()), "it gave no turn twice");
    }

    #[derive(Clone, Copy, Debug)]
    enum Move {
        Enter,
        Leave(usize),
        GiveBack(usize),
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let which = 0_usize..8;
        let one = prop_oneof![
            3 => Just(Move::Enter),
            2 => which.clone().prop_map(Move::Leave),
            1 => which.prop_map(Move::GiveBack),
        ];
        prop::collection::vec(one, 0..80)
    }

    proptest! {
        #[test]
        fn never_more_run_than_may_and_nobody_is_forgotten(moves in moves()) {
            let lanes = Arc::<Lanes>::default();
            // With each, whether it has given its turn back.
            let mut turns: Vec<(Turn, bool)> = Vec::new();
            for step in moves {
                match step {
                    Move::Enter => {
                        let entered = lanes.enter(3, 4).ok();
                        prop_assert_eq!(entered.is_some(), turns.len() < 7);
                        turns.extend(entered.map(|turn| (turn, false)));
                    }
                    Move::Leave(which) if which < turns.len() => drop(turns.remove(which)),
                    Move::GiveBack(which) if which < turns.len() => {
                        let (turn, unread) = &mut turns[which];
                        *unread |= runs(turn);
                        turn.give_back();
                    }
                    Move::Leave(_) | Move::GiveBack(_) => {}
                }
                let others = turns.iter_mut().filter(|(_, unread)| !unread);
                let running: Vec<_> = others.map(|(turn, _)| runs(turn)).collect();
                let expected: Vec<_> = (0..running.len()).map(|at| at < 3).collect();
                prop_assert_eq!(running, expected, "the oldest three run");
            }
            drop(turns);
            let state = lock(&lanes.0);
            prop_assert_eq!((state.running, state.unread), (0, 0));
        }
    }
}
