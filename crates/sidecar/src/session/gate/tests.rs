use super::*;
use crate::upstream::{Site, Step};
use proptest::prelude::*;

fn trouble(failure: Failure, retry_after: Option<Duration>) -> Trouble {
    Trouble { retry_after, ..Site { server: "s", step: Step::Connect }.trouble(failure, "x") }
}

fn ill() -> Trouble {
    trouble(Failure::UpstreamUnreachable, None)
}

fn limited(seconds: u64) -> Trouble {
    trouble(Failure::RateLimited, Some(Duration::from_secs(seconds)))
}

/// A gate with a clock of its own.
struct Stand {
    gate: Gate,
    now: Instant,
    random: u32,
}

impl Stand {
    fn new(random: u32) -> Self {
        Self { gate: Gate::new(), now: Instant::now(), random }
    }

    fn enter(&mut self) -> Result<Pass, Trouble> {
        self.gate.enter(self.now)
    }

    fn settle(&mut self, pass: &Pass, verdict: Verdict<'_>) -> Option<Duration> {
        self.gate.settle(pass, verdict, Moment { now: self.now, unix_millis: 1_000_000, random: self.random })
    }

    fn fail(&mut self) -> Duration {
        let pass = self.enter().expect("the gate lets one in");
        self.settle(&pass, Verdict::Ill(&ill())).expect("it closes")
    }
}

#[test]
fn delays_double_up_to_two_minutes_between_their_half_and_their_whole() {
    for (random, part) in [(0, 2), (u32::MAX, 1)] {
        let mut stand = Stand::new(random);
        let mut millis = Vec::new();
        for _ in 0..11 {
            let delay = stand.fail();
            millis.push(u64::try_from(delay.as_millis()).unwrap() * part);
            stand.now += delay;
        }
        assert_eq!(
            millis,
            [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 120_000, 120_000, 120_000]
        );
    }
}

#[test]
fn while_it_is_closed_nobody_enters_and_the_last_trouble_is_told_with_the_wait() {
    let mut stand = Stand::new(u32::MAX);
    assert_eq!(stand.fail(), FIRST);
    assert_eq!(stand.gate.next_try(stand.now), Some(1_000_500));
    stand.now += Duration::from_millis(200);
    let told = stand.enter().unwrap_err();
    assert_eq!(
        (told.failure, told.retry_after),
        (Failure::UpstreamUnreachable, Some(Duration::from_millis(300)))
    );
    stand.now += Duration::from_millis(300);
    assert_eq!(stand.gate.next_try(stand.now), None);
    stand.enter().expect("the delay is over");
}

#[test]
fn one_tries_when_the_delay_is_over_and_its_success_opens_for_all() {
    let mut stand = Stand::new(0);
    let delay = stand.fail();
    stand.now += delay;
    let probe = stand.enter().unwrap();
    assert_eq!(stand.enter().unwrap_err().retry_after, Some(FIRST));
    stand.settle(&probe, Verdict::Well);
    stand.enter().unwrap();
    stand.enter().unwrap();
    assert_eq!(stand.fail(), FIRST / 2, "and the delays begin anew");
}

#[test]
fn a_try_that_says_nothing_makes_room_for_the_next() {
    let mut stand = Stand::new(0);
    let delay = stand.fail();
    stand.now += delay;
    let probe = stand.enter().unwrap();
    assert_eq!(stand.settle(&probe, Verdict::Unknown), None);
    stand.enter().expect("the next one tries");
    stand.enter().expect_err("one at a time");
}

#[test]
fn attempts_that_fail_together_are_one_failure() {
    let mut stand = Stand::new(u32::MAX);
    let passes: Vec<_> = (0..50).map(|_| stand.enter().unwrap()).collect();
    for pass in &passes {
        stand.settle(pass, Verdict::Ill(&ill()));
    }
    stand.now += FIRST;
    assert_eq!(stand.fail(), FIRST * 2);
}

#[test]
fn what_the_upstream_asks_for_is_kept_to_within_an_hour() {
    let closes = |trouble: Trouble| {
        let mut stand = Stand::new(u32::MAX);
        let pass = stand.enter().unwrap();
        stand.settle(&pass, Verdict::Ill(&trouble)).unwrap()
    };
    assert_eq!(closes(limited(120)), Duration::from_mins(2));
    assert_eq!(closes(limited(0)), FIRST);
    assert_eq!(closes(limited(1_000_000)), MOST_ASKED);
    assert_eq!(closes(trouble(Failure::RateLimited, None)), FIRST, "rubbish is as any failure");
    assert_eq!(closes(trouble(Failure::UpstreamUnreachable, Some(Duration::from_secs(9)))).as_secs(), 9);
}

#[test]
fn an_answer_that_was_under_way_does_not_undo_what_the_upstream_asks_for() {
    let mut stand = Stand::new(0);
    let (early, other) = (stand.enter().unwrap(), stand.enter().unwrap());
    let pass = stand.enter().unwrap();
    stand.settle(&pass, Verdict::Ill(&limited(120)));
    stand.settle(&early, Verdict::Well);
    assert_eq!(stand.enter().unwrap_err().failure, Failure::RateLimited);
    assert_eq!(stand.settle(&other, Verdict::Ill(&limited(300))), Some(Duration::from_mins(5)));
    // A plain failure is undone: the server answers again.
    let mut stand = Stand::new(0);
    let (early, pass) = (stand.enter().unwrap(), stand.enter().unwrap());
    stand.settle(&pass, Verdict::Ill(&ill()));
    stand.settle(&early, Verdict::Well);
    stand.enter().unwrap();
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Enter,
    Settle { which: usize, how: u8, asks: Option<u64> },
    Wait(u64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => Just(Move::Enter),
        4 => (any::<usize>(), 0_u8..4, prop::option::of(0_u64..5_000)).prop_map(|(which, how, asks)| Move::Settle { which, how, asks }),
        3 => (0_u64..200_000).prop_map(Move::Wait),
    ];
    prop::collection::vec(one, 0..80)
}

proptest! {
    #[test]
    fn between_a_failure_and_the_next_success_one_tries_at_a_time_and_never_before_the_delay_is_over(
        moves in moves(), random in any::<u32>(),
    ) {
        let mut stand = Stand::new(random);
        // Passes that are out, with whether they were given while the gate was closed.
        let mut out: Vec<(Pass, bool)> = Vec::new();
        let mut not_before: Option<Instant> = None;
        for one in moves {
            match one {
                Move::Wait(millis) => stand.now += Duration::from_millis(millis),
                Move::Enter => match stand.enter() {
                    Ok(pass) => {
                        prop_assert!(not_before.is_none_or(|until| stand.now >= until));
                        let round = stand.gate.round;
                        let probing = out.iter().filter(|(pass, probe)| *probe && pass.round == round).count();
                        prop_assert!(not_before.is_none() || probing == 0, "two try at once");
                        out.push((pass, not_before.is_some()));
                    }
                    Err(told) => {
                        prop_assert!(not_before.is_some());
                        prop_assert!(told.retry_after.is_some_and(|wait| !wait.is_zero() && wait <= MOST_ASKED));
                    }
                },
                Move::Settle { which, how, asks } => {
                    if out.is_empty() {
                        continue;
                    }
                    let (pass, _) = out.remove(which % out.len());
                    let asks = asks.map(Duration::from_secs);
                    let failure = if how == 1 { Failure::RateLimited } else { Failure::UpstreamUnreachable };
                    let trouble = trouble(failure, asks);
                    let verdict = match how {
                        0 => Verdict::Well,
                        1 | 2 => Verdict::Ill(&trouble),
                        _ => Verdict::Unknown,
                    };
                    if let Some(delay) = stand.settle(&pass, verdict) {
                        prop_assert!(delay >= FIRST / 2 && delay <= MOST_ASKED);
                        not_before = Some(stand.now + delay);
                    } else if stand.gate.closed.is_none() {
                        not_before = None;
                    }
                }
            }
        }
        // Whatever happened, it does not stay closed for ever once those who try are done.
        for (pass, _) in out.drain(..) {
            stand.settle(&pass, Verdict::Unknown);
        }
        stand.now += MOST_ASKED;
        prop_assert!(stand.enter().is_ok());
    }
}

#[test]
fn other_authorities_open_it_only_where_a_certificate_was_not_trusted() {
    let mut stand = Stand::new(u32::MAX);
    let pass = stand.enter().unwrap();
    stand.settle(&pass, Verdict::Ill(&trouble(Failure::TLSUntrusted, None)));
    assert!(stand.enter().is_err());
    stand.gate.trust_changed();
    assert!(stand.gate.next_try(stand.now).is_none());
    assert_eq!(stand.fail(), FIRST, "the delays begin anew");
    stand.gate.trust_changed();
    assert!(stand.enter().is_err(), "an upstream that is away is not nearer now");
}
