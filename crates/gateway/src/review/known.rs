//! A positive answer as time goes by. No effects, no clock.

use std::time::{Duration, Instant};

/// A positive answer and how long it may be used.
#[derive(Clone, Debug)]
pub struct Known<P> {
    /// What was answered.
    pub value: P,
    /// Until then it is used without asking.
    pub fresh: Instant,
    /// Until then it is used when the API server cannot be asked.
    pub held: Instant,
    /// Not asked for again beside a call before then.
    pub next: Instant,
    /// Whether the last review had no answer.
    pub failed: bool,
}

/// What may be done with a known answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// It is used.
    Fresh,
    /// It is used, and asked for again beside that.
    Ageing,
    /// It is used only if a new one is not to be had.
    Stale,
    /// The same, and a new one was not to be had a moment ago.
    Failing,
    /// It counts for nothing.
    Over,
}

impl<P> Known<P> {
    /// How it stands at `now`, when it is asked for again `ahead` of the time at which it is no longer fresh.
    pub fn stand(&self, now: Instant, ahead: Duration) -> Stand {
        match () {
            () if now >= self.held => Stand::Over,
            () if now >= self.fresh && self.failed && now < self.next => Stand::Failing,
            () if now >= self.fresh => Stand::Stale,
            () if now + ahead >= self.fresh && now >= self.next => Stand::Ageing,
            () => Stand::Fresh,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ages_as_its_times_say() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let known = |next: u64, failed: bool| {
            let (fresh, held, next) = (at(60), at(300), at(next));
            Known { value: (), fresh, held, next, failed }
        };
        let table = [
            (known(5, false), 0, Stand::Fresh),
            (known(5, false), 54, Stand::Fresh),
            (known(5, false), 55, Stand::Ageing),
            (known(5, false), 59, Stand::Ageing),
            (known(5, false), 60, Stand::Stale),
            (known(5, false), 299, Stand::Stale),
            (known(5, false), 300, Stand::Over),
            // Its token ends at 60, so a review at 56 did not make it fresh for longer.
            (known(61, false), 57, Stand::Fresh),
            (known(61, false), 60, Stand::Stale),
            (known(62, true), 57, Stand::Fresh),
            (known(62, true), 60, Stand::Failing),
            (known(62, true), 61, Stand::Failing),
            (known(62, true), 62, Stand::Stale),
            (known(302, true), 299, Stand::Failing),
            (known(302, true), 300, Stand::Over),
        ];
        for (known, now, stand) in table {
            assert_eq!(known.stand(at(now), Duration::from_secs(5)), stand, "{known:?} {now}");
        }
    }
}
