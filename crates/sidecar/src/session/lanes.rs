//! The calls of a session that run, and those that wait for their turn, first come first served.

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
    next: u64,
    /// How many may run, as the last who came was told.
    concurrent: u32,
}

/// As many run and wait as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// A place among those that run or wait; given back when dropped.
pub(crate) struct Turn {
    lanes: Arc<Lanes>,
    place: Place,
}

enum Place {
    Running,
    Waiting(u64, oneshot::Receiver<()>),
}

impl Lanes {
    /// Takes a place where `concurrent` may run and `queued` wait.
    pub(crate) fn enter(self: &Arc<Self>, concurrent: u32, queued: u32) -> Result<Turn, Full> {
        let mut state = lock(&self.0);
        state.concurrent = concurrent;
        state.admit();
        let place = if state.running < concurrent && state.waiting.is_empty() {
            state.running += 1;
            Place::Running
        } else if state.waiting.len() < usize::try_from(queued).unwrap_or(usize::MAX) {
            let (turn, wait) = oneshot::channel();
            state.next += 1;
            let ticket = state.next;
            state.waiting.push_back((ticket, turn));
            Place::Waiting(ticket, wait)
        } else {
            return Err(Full);
        };
        Ok(Turn { lanes: self.clone(), place })
    }
}

impl State {
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
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = lock(&self.lanes.0);
        let runs = match &mut self.place {
            Place::Running => true,
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

    proptest! {
        #[test]
        fn never_more_run_than_may_and_nobody_is_forgotten(
            moves in prop::collection::vec((any::<bool>(), 0_usize..8), 0..80)
        ) {
            let lanes = Arc::<Lanes>::default();
            let mut turns: Vec<Turn> = Vec::new();
            for (enter, which) in moves {
                if enter {
                    turns.extend(lanes.enter(3, 4).ok());
                } else if which < turns.len() {
                    turns.remove(which);
                }
                let running: Vec<_> = turns.iter_mut().map(runs).collect();
                let expected: Vec<_> = (0..turns.len()).map(|at| at < 3).collect();
                prop_assert_eq!(running, expected, "the oldest three run");
            }
            drop(turns);
            prop_assert_eq!(lock(&lanes.0).running, 0);
        }
    }
}
