//! Points in time as numbers, so that a test writes them down.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

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
    fn a_moment_survives_the_api_to_the_second() {
        assert_eq!(Moment::from_api(&Moment(1_700_000_000_999).to_api()), Moment(1_700_000_000_000));
    }
}
