//! Faults: what is to go wrong, and how it does.

use std::{collections::BTreeMap, future::pending, str::FromStr as _, sync::Mutex, time::Duration};

use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::time;

use crate::{accept::Abort, lock};

/// Keys with a meaning of their own; any other key is the JSON-RPC method it is for.
const CALL: &str = "call";
const ANY: &str = "any";

/// One fault. Its parts add up: first the delay, then the first of hang, close and status. A mere
/// delay lets the request go on.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Fault {
    /// Never answer.
    #[serde(skip_serializing_if = "is_false")]
    pub hang: bool,
    /// Wait first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Answer with this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Headers that go with `status`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Body that goes with `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Drop the connection without an answer.
    #[serde(skip_serializing_if = "is_false")]
    pub close: bool,
    /// Do the work first and only then go wrong, so that the caller cannot know.
    #[serde(skip_serializing_if = "is_false")]
    pub after: bool,
    /// How many requests this is for; without it, all until it is taken away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// The faults that are set.
#[derive(Debug, Default)]
pub struct Faults {
    set: Mutex<BTreeMap<String, Fault>>,
}

impl Faults {
    /// Applies a change: `null` takes a fault away, keys not named stay. All or nothing.
    pub fn change(&self, change: BTreeMap<String, Option<Fault>>) -> Result<(), String> {
        for (key, fault) in &change {
            fault.as_ref().map_or(Ok(()), Fault::check).map_err(|error| format!("{key}: {error}"))?;
        }
        let mut set = lock(&self.set);
        for (key, fault) in change {
            match fault.filter(|fault| fault.times != Some(0)) {
                Some(fault) => set.insert(key, fault),
                None => set.remove(&key),
            };
        }
        Ok(())
    }

    /// Takes all faults away. A request that already hangs goes on hanging.
    pub fn clear(&self) {
        lock(&self.set).clear();
    }

    /// What is set now, with what is left of `times`.
    pub fn all(&self) -> BTreeMap<String, Fault> {
        lock(&self.set).clone()
    }

    /// The fault for one request to `/mcp`, used up by one if it has a limit. The more specific
    /// key wins. (A fault named by the request itself would be looked for here, before the rest.)
    pub fn take(&self, method: &str) -> Option<Fault> {
        let specific = match method {
            "tools/call" => CALL,
            "DELETE" => "delete",
            "GET" => "get",
            other => other,
        };
        let mut set = lock(&self.set);
        let key = [specific, method, ANY].into_iter().find(|key| set.contains_key(*key))?;
        let fault = set.get_mut(key)?;
        let taken = fault.clone();
        if let Some(times) = fault.times.as_mut() {
            *times -= 1;
            if *times == 0 {
                set.remove(key);
            }
        }
        Some(taken)
    }
}

impl Fault {
    fn check(&self) -> Result<(), String> {
        if let Some(status) = self.status
            && !(200..=599).contains(&status)
        {
            return Err(format!("status {status} is not a final one"));
        }
        self.header_map().map(drop)
    }

    fn header_map(&self) -> Result<HeaderMap, String> {
        self.headers
            .iter()
            .map(|(name, value)| {
                let bad = |_| format!("header {name} has an illegal value");
                let name = HeaderName::from_str(name).map_err(|_| format!("illegal header name {name}"))?;
                Ok((name, HeaderValue::from_str(value).map_err(bad)?))
            })
            .collect()
    }

    /// A word for the journal.
    pub fn name(&self) -> String {
        let kind = match self {
            Self { hang: true, .. } => "hang".to_owned(),
            Self { close: true, .. } => "close".to_owned(),
            Self { status: Some(status), .. } => format!("status {status}"),
            _ => "delay".to_owned(),
        };
        if self.after { format!("{kind} after") } else { kind }
    }

    /// Goes wrong: the answer to give, or `None` if the request is to go on. May never return.
    pub async fn strike(&self) -> Option<Response> {
        if let Some(delay) = self.delay_ms {
            time::sleep(Duration::from_millis(delay)).await;
        }
        if self.hang {
            return pending().await;
        }
        if self.close {
            let mut response = Response::new(Body::empty());
            response.extensions_mut().insert(Abort);
            return Some(response);
        }
        let status = StatusCode::from_u16(self.status?).ok()?;
        let mut response = Response::new(Body::from(self.body.clone().unwrap_or_default()));
        *response.status_mut() = status;
        *response.headers_mut() = self.header_map().unwrap_or_default();
        Some(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(faults: &Faults, text: &str) -> Result<(), String> {
        faults.change(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn specific_wins_and_times_run_out() {
        let faults = Faults::default();
        set(&faults, r#"{"call": {"close": true, "times": 2}, "any": {"status": 503}}"#).unwrap();
        assert!(faults.take("tools/call").unwrap().close);
        assert_eq!(faults.all()["call"].times, Some(1));
        assert!(faults.take("tools/call").unwrap().close);
        assert_eq!(faults.take("tools/call").unwrap().status, Some(503));
        assert_eq!(faults.take("DELETE").unwrap().status, Some(503));
        faults.clear();
        assert_eq!(faults.take("DELETE"), None);
    }

    #[test]
    fn null_takes_away_and_other_keys_stay() {
        let faults = Faults::default();
        set(&faults, r#"{"delete": {"hang": true}, "get": {"hang": true}, "ping": {"hang": true}}"#).unwrap();
        set(&faults, r#"{"delete": null}"#).unwrap();
        assert_eq!(faults.take("DELETE"), None);
        assert!(faults.take("GET").unwrap().hang);
        assert!(faults.take("ping").unwrap().hang);
    }

    #[test]
    fn nonsense_is_refused_as_a_whole() {
        let faults = Faults::default();
        let bad_status = set(&faults, r#"{"get": {"hang": true}, "any": {"status": 99}}"#);
        assert_eq!(bad_status, Err("any: status 99 is not a final one".to_owned()));
        assert!(set(&faults, r#"{"any": {"status": 200, "headers": {"a b": "c"}}}"#).is_err());
        assert!(set(&faults, r#"{"any": {"status": 200, "headers": {"a": "b\r\nc"}}}"#).is_err());
        assert!(faults.all().is_empty());
        assert!(serde_json::from_str::<Fault>(r#"{"hnag": true}"#).is_err());
    }
}
