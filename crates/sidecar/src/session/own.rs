//! The pauses of one session after attempts that failed for reasons of its own. Pure: time and jitter are parameters.

use super::gate::{FIRST, Moment, delay};
use crate::upstream::Trouble;
use berth_net::backoff::Doubling;
use berth_wire::Outcome;
use std::time::Duration;
use tokio::time::Instant;

/// The longest pause of ours.
const MOST: Duration = Duration::from_secs(30);

/// Until when the session makes no attempt, and why.
#[derive(Debug)]
pub(super) struct Own {
    pauses: Doubling,
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    until: Instant,
    /// The same in milliseconds since 1970, for people.
    until_unix_millis: u64,
    trouble: Trouble,
}

impl Own {
    pub(super) fn new() -> Self {
        Self { pauses: Doubling::new(FIRST, MOST), held: None }
    }

    /// An attempt failed; gives the pause.
    pub(super) fn failed(&mut self, trouble: &Trouble, at: Moment) -> Duration {
        let pause = delay(&mut self.pauses, trouble, at.random);
        let millis = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.held = Some(Held {
            until: at.now + pause,
            until_unix_millis: at.unix_millis.saturating_add(millis),
            trouble: trouble.clone(),
        });
        pause
    }

    /// Why no attempt is made now, and for how long. The upstream's own error was the answer to another request.
    pub(super) fn hold(&self, now: Instant) -> Option<Trouble> {
        let held = self.held.as_ref().filter(|held| now < held.until)?;
        let retry_after = Some(held.until - now);
        Some(Trouble { retry_after, rpc_error: None, leftover: Outcome::NotNeeded, ..held.trouble.clone() })
    }

    /// Before when no attempt is made, in milliseconds since 1970.
    pub(super) fn next_try(&self, now: Instant) -> Option<u64> {
        self.held.as_ref().filter(|held| now < held.until).map(|held| held.until_unix_millis)
    }

    /// An attempt succeeded, or will not be the same any more.
    pub(super) fn start_anew(&mut self) {
        self.held = None;
        self.pauses.start_anew();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{MOST_ASKED, Site, Step};
    use berth_wire::Failure;

    fn trouble(failure: Failure, asked: Option<u64>) -> Trouble {
        let trouble = Site { server: "s", step: Step::Initialize }.trouble(failure, "x");
        Trouble { rpc_error: Some("{}".into()), retry_after: asked.map(Duration::from_secs), ..trouble }
    }

    #[test]
    fn pauses_double_up_to_half_a_minute_and_begin_anew() {
        let (mut own, trouble) = (Own::new(), trouble(Failure::ProtocolError, None));
        let mut now = Instant::now();
        let mut fail = |own: &mut Own| {
            assert_eq!(own.hold(now), None);
            let pause = own.failed(&trouble, Moment { now, unix_millis: 1_000, random: u32::MAX });
            let told = own.hold(now).unwrap();
            assert_eq!((told.retry_after, told.rpc_error), (Some(pause), None));
            assert_eq!(own.next_try(now).map(u128::from), Some(1_000 + pause.as_millis()));
            now += pause;
            assert_eq!(own.next_try(now), None);
            pause.as_millis()
        };
        let pauses = [(); 8].map(|()| fail(&mut own));
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        own.start_anew();
        assert_eq!(fail(&mut own), 500);
    }

    #[test]
    fn a_limit_of_the_upstreams_is_kept_to_within_an_hour() {
        for (asked, seconds) in [(120, 120), (1_000_000, MOST_ASKED.as_secs())] {
            let mut own = Own::new();
            let at = Moment { now: Instant::now(), unix_millis: 0, random: 0 };
            assert_eq!(own.failed(&trouble(Failure::RateLimited, Some(asked)), at).as_secs(), seconds);
        }
    }
}
