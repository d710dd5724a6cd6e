//! How long a call may take. Pure: time is a parameter.

use std::time::Duration;
use tokio::time::Instant;

/// The deadlines of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    began: Instant,
    /// When it ends without progress.
    silent_end: Instant,
    /// When it ends whatever happens.
    hard_end: Instant,
    silence: Duration,
}

impl Clock {
    /// A call that begins `now` and may take `silence` without progress, `whole` altogether.
    pub(super) fn start(now: Instant, silence: Duration, whole: Duration) -> Self {
        Self { began: now, silent_end: now + silence, hard_end: now + whole, silence }
    }

    /// There was progress.
    pub(super) fn progress(&mut self, now: Instant) {
        self.silent_end = now + self.silence;
    }

    /// When the call has to end, as things stand.
    pub(super) fn deadline(&self) -> Instant {
        self.silent_end.min(self.hard_end)
    }

    /// When it has to end whatever happens.
    pub(super) fn hard_end(&self) -> Instant {
        self.hard_end
    }

    /// What the call has taken by `deadline`, in milliseconds.
    pub(super) fn millis_until(&self, deadline: Instant) -> u64 {
        u64::try_from((deadline - self.began).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_extends_a_call_up_to_its_hard_end() {
        let now = Instant::now();
        let seconds = Duration::from_secs;
        let mut clock = Clock::start(now, seconds(5), seconds(12));
        assert_eq!(clock.deadline(), now + seconds(5));
        clock.progress(now + seconds(4));
        assert_eq!(clock.deadline(), now + seconds(9));
        clock.progress(now + seconds(8));
        assert_eq!((clock.deadline(), clock.hard_end()), (now + seconds(12), now + seconds(12)));
        assert_eq!(clock.millis_until(clock.deadline()), 12_000);
    }
}
