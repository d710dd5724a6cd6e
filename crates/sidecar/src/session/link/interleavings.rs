//! Every interleaving of threads that contend for sessions and the gate they share.

use super::super::gate::{Gate, Moment};
use super::*;
use crate::upstream::{Site, Step};
use berth_wire::Failure as Reason;
use loom::sync::{Arc, Mutex, MutexGuard};
use loom::thread;
use std::sync::{LazyLock, PoisonError};
use tokio::time::Instant;

impl<T> Lock for Mutex<T> {
    type Of = T;
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn hold(&self) -> Self::Guard<'_> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same for every run: what happens must depend on the interleaving alone.
static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn after(millis: u64) -> Moment {
    Moment { now: *BEGIN + Duration::from_millis(millis), unix_millis: millis, random: u32::MAX }
}

fn trouble() -> Trouble {
    Site { server: "s", step: Step::Connect }.trouble(Reason::UpstreamUnreachable, "down")
}

struct World {
    gate: Mutex<Gate>,
    sessions: [Mutex<Link>; 2],
    /// Attempts begun, and those that run.
    attempts: Mutex<(u32, u32)>,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            gate: Mutex::new(Gate::new()),
            sessions: [Mutex::new(Link::new()), Mutex::new(Link::new())],
            attempts: Mutex::new((0, 0)),
        })
    }

    /// A caller of session `which` who carries out what it is told; the attempt, if it is one, ends as `outcome` says.
    fn call(&self, which: usize, at: Moment, outcome: Option<&Trouble>) -> bool {
        let needed = lock(&self.sessions[which]).need(&self.gate, at.now);
        let Ok(Effect::StartAttempt(epoch)) = needed else { return false };
        let running = {
            let mut attempts = lock(&self.attempts);
            *attempts = (attempts.0 + 1, attempts.1 + 1);
            attempts.1
        };
        assert!(running <= 2, "more attempts than sessions");
        thread::yield_now();
        lock(&self.attempts).1 -= 1;
        let mut link = lock(&self.sessions[which]);
        match outcome {
            Some(trouble) => drop(link.failed(epoch, Failure::Server(trouble), &self.gate, at)),
            None => drop(link.established(epoch, &self.gate, at)),
        }
        true
    }
}

#[test]
fn of_many_callers_of_one_session_one_tries_and_after_its_failure_none() {
    loom::model(|| {
        let world = World::new();
        let callers: Vec<_> = (0..3)
            .map(|_| {
                let world = world.clone();
                thread::spawn(move || world.call(0, after(0), Some(&trouble())))
            })
            .collect();
        let tried =
            callers.into_iter().filter_map(|caller| caller.join().ok()).filter(|tried| *tried).count();
        assert_eq!((tried, lock(&world.attempts).0), (1, 1), "the gate was seen closed by who came after");
    });
}

#[test]
fn when_the_delay_is_over_one_session_tries_whoever_comes_first() {
    loom::model(|| {
        let world = World::new();
        assert!(world.call(0, after(0), Some(&trouble())));
        // Nobody's attempt ends before both have asked.
        let callers: Vec<_> = (0..2)
            .map(|which| {
                let world = world.clone();
                thread::spawn(move || lock(&world.sessions[which]).need(&world.gate, after(500).now).is_ok())
            })
            .collect();
        let tries =
            callers.into_iter().filter_map(|caller| caller.join().ok()).filter(|tries| *tries).count();
        assert_eq!(tries, 1);
    });
}

#[test]
fn an_end_meets_an_attempt_at_any_moment_and_the_gate_gets_its_pass_back() {
    loom::model(|| {
        let world = World::new();
        assert!(world.call(0, after(0), Some(&trouble())));
        let caller = {
            let world = world.clone();
            thread::spawn(move || world.call(0, after(500), None))
        };
        let end = {
            let world = world.clone();
            thread::spawn(move || lock(&world.sessions[0]).end_asked())
        };
        let (tried, end) = (caller.join().unwrap(), end.join().unwrap());
        assert_eq!(end, Effect::BeginEnd);
        assert!(!lock(&world.sessions[0]).takes_work());
        // It opened the gate, or never went through it: the other session may try.
        assert!(world.call(1, after(500), None), "tried: {tried}");
    });
}
