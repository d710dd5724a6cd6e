//! A number of bytes that keeps the form its author wrote.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A number of bytes, as in Kubernetes quantities: `4Mi`, `512Ki`, `1M`, or a plain number.
///
/// The CRD bounds pattern and length; a value that came past it anyway reads as `None`, never as a failed list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ByteSize {
    /// A plain number.
    Number(i64),
    /// Digits and a unit.
    Text(String),
}

/// Pattern of the text form, as the CRD states it.
const PATTERN: &str = r"^[0-9]+(k|M|G|Ki|Mi|Gi)?$";
/// Longest text form in characters.
const MAX_LENGTH: usize = 16;

impl ByteSize {
    /// A size from text that is already known to be well formed, such as a default.
    pub fn from_text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    /// The number of bytes, or `None` when it is not of the form or does not fit.
    pub fn bytes(&self) -> Option<u64> {
        let text = match self {
            Self::Number(number) => return u64::try_from(*number).ok(),
            Self::Text(text) => text.as_str(),
        };
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        number.parse::<u64>().ok()?.checked_mul(unit_bytes(unit)?)
    }
}

fn unit_bytes(unit: &str) -> Option<u64> {
    match unit {
        "" => Some(1),
        "k" => Some(1_000),
        "M" => Some(1_000_000),
        "G" => Some(1_000_000_000),
        "Ki" => Some(1 << 10),
        "Mi" => Some(1 << 20),
        "Gi" => Some(1 << 30),
        _ => None,
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // Without a type null would be allowed, and kept in place of the default.
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "nullable": false,
            "pattern": PATTERN,
            "maxLength": MAX_LENGTH,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_unit_and_plain_numbers() {
        let bytes = |json: &str| serde_json::from_str::<ByteSize>(json).unwrap().bytes();
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("\"4096\""), Some(4096));
        assert_eq!(bytes("\"4Mi\""), Some(4 * 1024 * 1024));
        assert_eq!(bytes("\"1Ki\""), Some(1024));
        assert_eq!(bytes("\"1Gi\""), Some(1 << 30));
        assert_eq!(
            (bytes("\"2k\""), bytes("\"2M\""), bytes("\"2G\"")),
            (Some(2_000), Some(2_000_000), Some(2_000_000_000))
        );
    }

    #[test]
    fn refuses_what_the_pattern_refuses() {
        for text in ["", "Mi", "4MB", "4 Mi", "-1", "1.5Mi", "4mi", "99999999999Gi"] {
            assert_eq!(ByteSize::from_text(text).bytes(), None, "{text:?}");
        }
        assert_eq!(ByteSize::Number(-1).bytes(), None);
    }

    #[test]
    fn it_is_written_as_it_was_read() {
        for json in ["4096", "\"4Mi\""] {
            let size: ByteSize = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&size).unwrap(), json);
        }
    }
}
