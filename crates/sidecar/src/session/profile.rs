//! What a client said of itself in `initialize`. Pure.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Parameters up to this size, in bytes, are kept as they are; of larger ones only what matters is.
const WHOLE_LIMIT: usize = 2 * 1024;
/// Longest text of a reduced one, in bytes.
const TEXT_LIMIT: usize = 128;

/// Capabilities of a client that servers make use of by requests, each with the prefix of their methods.
const CAPABILITIES: [(&str, &str); 3] =
    [("sampling", "sampling/"), ("elicitation", "elicitation/"), ("roots", "roots/")];

/// One client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    /// Raw JSON of its `initialize` parameters, reduced if they are large.
    pub params: Arc<str>,
    /// Which of [`CAPABILITIES`] it declared.
    declared: [bool; CAPABILITIES.len()],
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Read<'a> {
    #[serde(borrow)]
    protocol_version: Option<&'a RawValue>,
    #[serde(borrow)]
    capabilities: Option<&'a RawValue>,
    #[serde(borrow)]
    client_info: Option<&'a RawValue>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Info {
    name: String,
    version: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Reduced<'a> {
    protocol_version: &'a RawValue,
    capabilities: &'a RawValue,
    client_info: Info,
}

impl Profile {
    /// Reads raw `initialize` parameters.
    pub(crate) fn read(params: &str) -> Self {
        let read: Read<'_> = serde_json::from_str(params).unwrap_or_default();
        let capabilities: BTreeMap<String, &RawValue> =
            read.capabilities.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        let is_declared = |name| capabilities.get(name).is_some_and(|raw| raw.get().starts_with('{'));
        let declared = CAPABILITIES.map(|(name, _)| is_declared(name));
        let params = if params.len() <= WHOLE_LIMIT { params.into() } else { reduce(&read, declared).into() };
        Self { params, declared }
    }

    /// Whether a server may send the client a request of `method`; else the capability that it has not declared. What no
    /// capability is known for may be sent: it is for the client to refuse.
    pub(crate) fn takes(&self, method: &str) -> Result<(), &'static str> {
        let needed =
            CAPABILITIES.iter().zip(self.declared).find(|((_, prefix), _)| method.starts_with(prefix));
        match needed {
            Some(((name, _), false)) => Err(name),
            Some((_, true)) | None => Ok(()),
        }
    }
}

/// What has to be declared again when the session connects anew.
fn reduce(read: &Read<'_>, declared: [bool; CAPABILITIES.len()]) -> String {
    let mut info: Info =
        read.client_info.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
    for text in [&mut info.name, &mut info.version] {
        text.truncate(text.floor_char_boundary(TEXT_LIMIT));
    }
    let names = CAPABILITIES.iter().zip(declared).filter(|(_, declared)| *declared);
    let known: Vec<_> = names.map(|((name, _), _)| format!("{name:?}:{{}}")).collect();
    let known = RawValue::from_string(format!("{{{}}}", known.join(","))).ok();
    let fits = |raw: &&RawValue| raw.get().len() <= WHOLE_LIMIT / 2;
    let capabilities = read.capabilities.filter(fits).or(known.as_deref()).unwrap_or(RawValue::NULL);
    let version = read.protocol_version.filter(|raw| raw.get().len() <= TEXT_LIMIT);
    let protocol_version = version.unwrap_or(RawValue::NULL);
    serde_json::to_string(&Reduced { protocol_version, capabilities, client_info: info }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn small_parameters_are_kept_as_they_are_spelled() {
        let params = r#"{ "capabilities":{"roots":{}, "x":1.0},"protocolVersion":"2025-11-25"}"#;
        assert_eq!(&*Profile::read(params).params, params);
    }

    #[test]
    fn large_parameters_are_reduced_to_what_matters() {
        let mut params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {"sampling": {"tools": {}}, "experimental": {}},
            "clientInfo": {"name": "é".repeat(1_000), "version": "1", "icons": ["x".repeat(3_000)]}, "x": 1,
        });
        let profile = Profile::read(&params.to_string());
        let reduced: Value = serde_json::from_str(&profile.params).unwrap();
        assert_eq!(reduced["capabilities"], params["capabilities"]);
        assert_eq!(reduced["protocolVersion"], "2025-11-25");
        assert_eq!(reduced["clientInfo"], json!({"name": "é".repeat(64), "version": "1"}));
        params["capabilities"]["experimental"] = json!({"x": "y".repeat(5_000)});
        let profile = Profile::read(&params.to_string());
        let reduced: Value = serde_json::from_str(&profile.params).unwrap();
        assert_eq!(reduced["capabilities"], json!({"sampling": {}}));
        assert!(profile.params.len() <= WHOLE_LIMIT && profile.takes("sampling/createMessage").is_ok());
    }

    #[test]
    fn only_what_was_declared_may_be_asked_for() {
        let profile = Profile::read(r#"{"capabilities":{"elicitation":{},"roots":null}}"#);
        assert_eq!(profile.takes("elicitation/create"), Ok(()));
        assert_eq!(profile.takes("sampling/createMessage"), Err("sampling"));
        assert_eq!(profile.takes("roots/list"), Err("roots"));
        assert_eq!(profile.takes("vendor/ask"), Ok(()));
        for rubbish in ["", "[]", "{", r#"{"capabilities":[]}"#, r#"{"capabilities":1}"#] {
            assert_eq!(Profile::read(rubbish).takes("roots/list"), Err("roots"), "{rubbish}");
        }
    }
}
