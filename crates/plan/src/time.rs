//! Points in time as numbers, so that a test writes them down.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// `span` and up to a fifth more, by the UID of an object, so that many objects do not come all at once.
pub fn spread(span: Duration, uid: &str) -> Duration {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    let part = u32::try_from(hasher.finish() % 1000).unwrap_or(0);
    span + span / 5 * part / 1000
}

/// A point in time: milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub i64);

impl Moment {
    /// The moment `span` after this one.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
    }

    /// How long from here until `later`; zero when that has passed.
    pub fn until(self, later: Self) -> Duration {
        Duration::from_millis(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }

    /// The moment of a time stamp of the API.
    pub fn from_api(time: &Time) -> Self {
        Self(time.0.as_millisecond())
    }

    /// This moment as a time stamp of the API, which counts whole seconds.
    pub fn to_api(self) -> Time {
        Time(Timestamp::from_second(self.0.div_euclid(1000)).unwrap_or(Timestamp::UNIX_EPOCH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_that_has_passed_is_no_time_away() {
        assert_eq!(Moment(2_000).until(Moment(1_000)), Duration::ZERO);
        assert_eq!(Moment(1_000).until(Moment(2_500)), Duration::from_millis(1_500));
    }

    #[test]
    fn what_is_spread_comes_within_a_fifth_and_always_alike() {
        let span = Duration::from_mins(10);
        let all: Vec<Duration> = (0..100).map(|n| spread(span, &format!("uid-{n}"))).collect();
        assert!(all.iter().all(|spread| (span..span + span / 5).contains(spread)));
        assert!(all.iter().max() > all.iter().min());
        assert_eq!(all[7], spread(span, "uid-7"));
    }

    #[test]
    fn a_moment_survives_the_api_to_the_second() {
        assert_eq!(Moment::from_api(&Moment(1_700_000_000_999).to_api()), Moment(1_700_000_000_000));
    }
}
