//! A span of time that keeps the text its author wrote.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The text form of a duration: one or more `<decimal><unit>`, unit one of `ms`, `s`, `m`, `h`, as in `1h30m` or `1.5s`.
///
/// The text is kept as written so that `kubectl apply` sees no difference between what was sent and what is stored.
/// The CRD bounds pattern and length; a value that came past it anyway reads as `None`, never as a failed list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Duration(String);

/// Pattern of the text form, as the CRD states it.
const PATTERN: &str = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$";
/// Longest text form in characters; bounds the cost of CEL rules on durations.
const MAX_LENGTH: usize = 32;

impl Duration {
    /// A duration from text that is already known to be well formed, such as a default.
    pub fn from_text(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The value of a flag that takes this form.
    ///
    /// # Errors
    /// What is wrong with `text`, for whoever wrote it.
    pub fn read(text: &str) -> Result<std::time::Duration, String> {
        let value = Self::from_text(text).to_std();
        value.ok_or_else(|| format!("{text:?} is not a duration; write it like 30s or 1m30s"))
    }

    /// The text as its author wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value, or `None` when the text is not of the form or does not fit.
    pub fn to_std(&self) -> Option<std::time::Duration> {
        let mut rest = self.0.as_str();
        let mut total = std::time::Duration::ZERO;
        if rest.is_empty() || rest.len() > MAX_LENGTH {
            return None;
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let (number, tail) = rest.split_at(digits);
            let unit_len = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_len);
            let seconds = decimal(number)? * unit_seconds(unit)?;
            total = total.checked_add(std::time::Duration::try_from_secs_f64(seconds).ok()?)?;
            rest = tail;
        }
        Some(total)
    }
}

/// A decimal as the pattern allows it: digits, and at most one point with digits on both sides.
fn decimal(text: &str) -> Option<f64> {
    let well_formed = !text.starts_with('.') && !text.ends_with('.') && text.matches('.').count() <= 1;
    if well_formed { text.parse().ok() } else { None }
}

fn unit_seconds(unit: &str) -> Option<f64> {
    match unit {
        "ms" => Some(0.001),
        "s" => Some(1.0),
        "m" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    }
}

impl std::fmt::Display for Duration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": PATTERN, "minLength": 2, "maxLength": MAX_LENGTH })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(text: &str) -> Option<u128> {
        Duration::from_text(text).to_std().map(|d| d.as_millis())
    }

    #[test]
    fn reads_every_unit_and_their_sums() {
        assert_eq!(millis("250ms"), Some(250));
        assert_eq!(millis("30s"), Some(30_000));
        assert_eq!(millis("1h30m"), Some(5_400_000));
        assert_eq!(millis("1.5s"), Some(1_500));
        assert_eq!(millis("1m1s1ms"), Some(61_001));
    }

    #[test]
    fn a_flag_that_is_no_duration_is_told_the_form() {
        assert_eq!(Duration::read("1m30s"), Ok(std::time::Duration::from_secs(90)));
        let refused = Duration::read("5").unwrap_err();
        assert!(refused.contains("\"5\"") && refused.contains("1m30s"), "{refused}");
    }

    #[test]
    fn refuses_what_the_pattern_refuses() {
        for text in
            ["", "abc", "5", "s", "-1s", "1.s", ".5s", "1..5s", "1d", "1 s", "999999999999999999999999999h"]
        {
            assert_eq!(millis(text), None, "{text:?}");
        }
    }
}
