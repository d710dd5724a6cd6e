//! A fault that a request brings along, in `params._meta`: it survives a relay that passes messages as they are, and needs no
//! admin call.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Fault;

/// The key in `_meta`.
const KEY: &str = "probe.test/fault";

#[derive(Deserialize)]
struct Params {
    #[serde(rename = "_meta", default)]
    meta: Option<BTreeMap<String, Box<RawValue>>>,
}

/// The fault that these parameters ask for; an error if it is no fault.
pub fn named(params: Option<&RawValue>) -> Result<Option<Fault>, String> {
    // Most messages have none, and some are large.
    let Some(raw) = params.map(RawValue::get).filter(|raw| raw.contains(KEY)) else { return Ok(None) };
    let Ok(Params { meta: Some(meta) }) = serde_json::from_str(raw) else { return Ok(None) };
    let Some(raw) = meta.get(KEY) else { return Ok(None) };
    let fault: Fault = serde_json::from_str(raw.get()).map_err(|error| format!("{KEY}: {error}"))?;
    let limits = fault.times.is_some() || fault.for_ms.is_some() || fault.path.is_some();
    if limits || !fault.unless_host.is_empty() {
        return Err(format!("{KEY}: times, forMs, path and unlessHost make no sense for one request"));
    }
    fault.check("").map_err(|error| format!("{KEY}: {error}"))?;
    Ok(Some(fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Option<Fault>, String> {
        named(Some(&RawValue::from_string(text.to_owned()).unwrap()))
    }

    #[test]
    fn a_request_names_its_fault() {
        let fault = of(r#"{"x": 1, "_meta": {"probe.test/fault": {"close": true, "after": true}}}"#);
        assert_eq!(fault.unwrap().unwrap().name(), "close after");
        for none in [r#"{"_meta": {"other": {}}}"#, r#"{"a": "probe.test/fault"}"#, "[]", "{}"] {
            assert_eq!(of(none), Ok(None), "{none}");
        }
        assert_eq!(named(None), Ok(None));
    }

    #[test]
    fn nonsense_is_an_error() {
        for bad in [r#"{"hnag": true}"#, "1", r#"{"status": 99}"#, r#"{"times": 1}"#, r#"{"dripMs": 1}"#] {
            assert!(of(&format!(r#"{{"_meta": {{"probe.test/fault": {bad}}}}}"#)).is_err(), "{bad}");
        }
    }
}
