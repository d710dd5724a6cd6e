//! `Retry-After`: how long an upstream asks not to be asked again.

use super::Trouble;
use http::HeaderMap;
use http::header::{DATE, HeaderName, RETRY_AFTER};
use std::time::{Duration, SystemTime};

/// The longest time that an upstream may ask for.
pub(crate) const MOST_ASKED: Duration = Duration::from_hours(1);

/// Adds to `trouble` what the `headers` of the answer ask to wait for.
pub(crate) fn asked_to_wait(trouble: Trouble, headers: &HeaderMap) -> Trouble {
    Trouble { retry_after: retry_after(headers, SystemTime::now()), ..trouble }
}

/// What `headers` ask for, in seconds or until a date, at most [`MOST_ASKED`]; none if there is nothing that can be read. A date
/// is taken by the upstream's own clock if it tells it, else by ours, which shows `now`.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    read(headers, now).map(|asked| asked.min(MOST_ASKED))
}

fn read(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // Digits that do not fit are a long time all the same.
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(value).ok()?;
    Some(until.duration_since(date(headers, DATE).unwrap_or(now)).unwrap_or_default())
}

fn date(headers: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn asked(value: &str, date: Option<&str>) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_str(value).unwrap());
        if let Some(date) = date {
            headers.insert(DATE, HeaderValue::from_str(date).unwrap());
        }
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        retry_after(&headers, now).map(|asked| asked.as_secs())
    }

    #[test]
    fn seconds_and_dates_are_read_and_rubbish_is_not() {
        assert_eq!(asked("120", None), Some(120));
        assert_eq!(asked(" 0 ", None), Some(0));
        assert_eq!(asked("99999999999999999999999", None), Some(MOST_ASKED.as_secs()));
        assert_eq!(asked("Tue, 08 Nov 1994 08:49:37 GMT", None), Some(MOST_ASKED.as_secs()));
        assert_eq!(asked("Sun, 06 Nov 1994 08:51:37 GMT", None), Some(120));
        assert_eq!(asked("Sun, 06 Nov 1994 08:00:00 GMT", None), Some(0), "a date that is past");
        // The upstream's clock is an hour ahead of ours.
        let date = Some("Sun, 06 Nov 1994 09:49:37 GMT");
        assert_eq!(asked("Sun, 06 Nov 1994 09:50:07 GMT", date), Some(30));
        for rubbish in ["", "soon", "-5", "1.5", "12 s", "Sun, 99 Nov 1994 08:49:37 GMT"] {
            assert_eq!(asked(rubbish, None), None, "{rubbish:?}");
        }
    }

    proptest! {
        #[test]
        fn no_value_makes_it_panic(value in "[ -~]{0,40}", date in prop::option::of("[ -~]{0,40}")) {
            let _ = asked(&value, date.as_deref());
        }
    }
}
