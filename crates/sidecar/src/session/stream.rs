//! When the upstream's own stream, the answer to a GET, is opened, kept and opened again. Pure: time and chance are given.

use berth_net::backoff::Doubling;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// How long the stream is kept after the last client stopped to listen.
const LINGER: Duration = Duration::from_secs(30);
/// Pause after a stream that ended; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause of our own.
const MAX_PAUSE: Duration = Duration::from_mins(1);
/// Longest pause that an upstream may ask for.
const MAX_ASKED: Duration = Duration::from_mins(10);
/// A stream that lived so long begins the pauses anew.
const LIVED: Duration = Duration::from_mins(1);
/// GETs of a session within [`WINDOW`], whatever clients and upstreams do.
const MAX_OPENS: usize = 20;
const WINDOW: Duration = Duration::from_mins(10);

/// What is known of the streams of one session.
#[derive(Debug)]
pub(crate) struct Policy {
    /// Number of the connection that the next four speak of.
    epoch: u64,
    offer: Offer,
    pauses: Doubling,
    not_before: Option<Instant>,
    opened_at: Option<Instant>,
    /// When a stream was asked for lately, oldest first, over all connections.
    opens: VecDeque<Instant>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            epoch: 0,
            offer: Offer::default(),
            pauses: Doubling::new(FIRST_PAUSE, MAX_PAUSE),
            not_before: None,
            opened_at: None,
            opens: VecDeque::new(),
        }
    }
}

/// Whether a connection's upstream has a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Offer {
    /// It has not said so yet.
    #[default]
    Unknown,
    /// It has opened one.
    Made,
    /// It has none; it is not asked again on this connection.
    Declined,
}

/// What there is at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub now: Instant,
    /// Number of the connection, if there is one that may be used for a stream.
    pub connection: Option<u64>,
    /// Streams of clients.
    pub listeners: usize,
    /// When the last of them went.
    pub left: Option<Instant>,
}

/// What to do while no stream is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamStep {
    /// Open one.
    Open,
    /// Look again at this time, or when something changed.
    Wait(Instant),
    /// Look again when something changed.
    Rest,
    /// Nobody listens.
    Stop,
}

/// What to do with a stream that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Read on.
    Open,
    /// Read on until then.
    Until(Instant),
    /// Close it.
    Close,
}

impl Policy {
    /// What to do while no stream is open. [`StreamStep::Open`] counts as opened.
    pub(crate) fn step(&mut self, seen: Seen) -> StreamStep {
        if seen.listeners == 0 {
            return StreamStep::Stop;
        }
        let Some(epoch) = seen.connection else { return StreamStep::Rest };
        self.follow(epoch);
        if self.offer == Offer::Declined {
            return StreamStep::Rest;
        }
        while self.opens.front().is_some_and(|opened| *opened + WINDOW <= seen.now) {
            self.opens.pop_front();
        }
        let is_full = self.opens.len() >= MAX_OPENS;
        let budget = self.opens.front().filter(|_| is_full).map(|oldest| *oldest + WINDOW);
        match self.not_before.max(budget) {
            Some(until) if until > seen.now => StreamStep::Wait(until),
            _ => {
                self.opens.push_back(seen.now);
                self.opened_at = Some(seen.now);
                StreamStep::Open
            }
        }
    }

    /// What to do with the open stream of connection `epoch`.
    pub(crate) fn keep(seen: Seen, epoch: u64) -> Keep {
        if seen.connection != Some(epoch) {
            return Keep::Close;
        }
        match (seen.listeners, seen.left) {
            (0, Some(left)) if left + LINGER > seen.now => Keep::Until(left + LINGER),
            (0, _) => Keep::Close,
            _ => Keep::Open,
        }
    }

    /// The upstream said whether it has a stream on connection `epoch`.
    pub(crate) fn answered(&mut self, epoch: u64, offer: Offer) {
        if epoch == self.epoch {
            self.offer = offer;
        }
    }

    /// A stream, or the attempt to open one, ended. `asked` is the pause that the upstream asked for; `random` is any number.
    pub(crate) fn ended(&mut self, now: Instant, asked: Option<Duration>, random: u32) {
        if self.opened_at.is_some_and(|opened| now >= opened + LIVED) {
            self.pauses.start_anew();
        }
        let pause = self.pauses.pause_within(random);
        self.not_before = Some(now + pause.max(asked.unwrap_or_default().min(MAX_ASKED)));
        self.opened_at = None;
    }

    /// Whether the upstream of connection `epoch` has a stream.
    pub(crate) fn offer(&self, epoch: u64) -> Offer {
        if epoch == self.epoch { self.offer } else { Offer::Unknown }
    }

    /// A new connection knows nothing of the old one's streams; how often it may ask stays counted.
    fn follow(&mut self, epoch: u64) {
        if epoch != self.epoch {
            *self = Self { epoch, opens: std::mem::take(&mut self.opens), ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen(now: Instant) -> Seen {
        Seen { now, connection: Some(1), listeners: 1, left: None }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn nothing_is_opened_without_a_listener_or_a_connection() {
        let (now, mut policy) = (Instant::now(), Policy::default());
        assert_eq!(policy.step(Seen { listeners: 0, ..seen(now) }), StreamStep::Stop);
        assert_eq!(policy.step(Seen { connection: None, ..seen(now) }), StreamStep::Rest);
        assert_eq!(policy.step(seen(now)), StreamStep::Open);
    }

    #[test]
    fn an_upstream_without_a_stream_is_asked_once_for_each_connection() {
        let (now, mut policy) = (Instant::now(), Policy::default());
        assert_eq!(policy.step(seen(now)), StreamStep::Open);
        policy.answered(1, Offer::Declined);
        assert_eq!(
            (policy.step(seen(now + seconds(999))), policy.offer(1)),
            (StreamStep::Rest, Offer::Declined)
        );
        let next = Seen { connection: Some(2), ..seen(now) };
        assert_eq!((policy.step(next), policy.offer(2)), (StreamStep::Open, Offer::Unknown));
        policy.answered(1, Offer::Declined);
        assert_eq!(policy.offer(2), Offer::Unknown, "old news");
    }

    #[test]
    fn pauses_double_and_begin_anew_after_a_stream_that_lived() {
        let (mut now, mut policy) = (Instant::now(), Policy::default());
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(policy.step(seen(now)), StreamStep::Open);
            policy.ended(now, None, u32::MAX);
            let StreamStep::Wait(until) = policy.step(seen(now)) else { panic!() };
            pauses.push((until - now).as_secs());
            now = until;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(policy.step(seen(now)), StreamStep::Open);
        policy.ended(now + seconds(60), None, 0);
        assert_eq!(
            policy.step(seen(now + seconds(60))),
            StreamStep::Wait(now + seconds(60) + FIRST_PAUSE / 2)
        );
    }

    #[test]
    fn a_pause_that_the_upstream_asks_for_is_kept_up_to_a_bound() {
        let (now, mut policy) = (Instant::now(), Policy::default());
        policy.step(seen(now));
        policy.ended(now, Some(seconds(7)), u32::MAX);
        assert_eq!(policy.step(seen(now)), StreamStep::Wait(now + seconds(7)));
        policy.ended(now, Some(Duration::MAX), u32::MAX);
        assert_eq!(policy.step(seen(now)), StreamStep::Wait(now + MAX_ASKED));
    }

    #[test]
    fn an_open_stream_lingers_and_goes_with_its_connection() {
        let now = Instant::now();
        assert_eq!(Policy::keep(seen(now), 1), Keep::Open);
        assert_eq!(Policy::keep(seen(now), 2), Keep::Close);
        assert_eq!(Policy::keep(Seen { connection: None, ..seen(now) }, 1), Keep::Close);
        let alone = Seen { listeners: 0, left: Some(now), ..seen(now) };
        assert_eq!(Policy::keep(alone, 1), Keep::Until(now + LINGER));
        assert_eq!(Policy::keep(Seen { now: now + LINGER, ..alone }, 1), Keep::Close);
    }

    proptest! {
        /// Whatever happens, an upstream is not asked more often than the bound.
        #[test]
        fn the_number_of_gets_is_bounded(
            moves in prop::collection::vec((0_u64..40, 0_u64..3, 0_u64..120, any::<u32>(), any::<bool>()), 0..400)
        ) {
            let (mut now, mut policy, mut opens) = (Instant::now(), Policy::default(), Vec::new());
            for (wait, connection, life, random, listens) in moves {
                now += seconds(wait);
                let (connection, listeners) = (connection.checked_sub(1), usize::from(listens));
                match policy.step(Seen { now, connection, listeners, left: None }) {
                    StreamStep::Open => {
                        prop_assert!(listens && connection.is_some());
                        opens.push(now);
                        now += seconds(life);
                        policy.ended(now, None, random);
                    }
                    StreamStep::Wait(until) => prop_assert!(until > now && until <= now + WINDOW),
                    StreamStep::Rest => prop_assert_eq!(connection, None),
                    StreamStep::Stop => prop_assert!(!listens),
                }
            }
            for (at, first) in opens.iter().enumerate() {
                let within = opens[at..].iter().filter(|open| **open < *first + WINDOW).count();
                prop_assert!(within <= MAX_OPENS);
            }
        }
    }
}
