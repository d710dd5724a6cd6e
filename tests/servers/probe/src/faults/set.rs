//! The faults that are set by admin calls.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use super::{ACCEPT, Fault, READ};
use crate::{arrival::Place, lock, ports::Port};

/// Keys with a meaning of their own; any other key is the JSON-RPC method it is for.
const CALL: &str = "call";
const ANY: &str = "any";

/// The faults that are set.
#[derive(Debug, Default)]
pub struct Faults {
    set: Mutex<BTreeMap<String, Armed>>,
}

#[derive(Debug)]
struct Armed {
    fault: Fault,
    until: Option<Instant>,
}

impl Faults {
    /// Applies a change: `null` takes a fault away, keys not named stay. All or nothing.
    pub fn change(&self, change: BTreeMap<String, Option<Fault>>) -> Result<(), String> {
        for (key, fault) in &change {
            let checked = fault.as_ref().map_or(Ok(()), |fault| fault.check(key));
            checked.map_err(|error| format!("{key}: {error}"))?;
        }
        let mut set = lock(&self.set);
        for (key, fault) in change {
            match fault.filter(|fault| fault.times != Some(0)) {
                Some(fault) => {
                    let until = fault.for_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
                    set.insert(key, Armed { fault, until })
                }
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
        let mut set = lock(&self.set);
        forget_old(&mut set);
        set.iter().map(|(key, armed)| (key.clone(), armed.fault.clone())).collect()
    }

    /// The fault for one request to `/mcp`, used up by one if it has a limit. The more specific
    /// key wins.
    pub fn take(&self, method: &str, place: &Place) -> Option<Fault> {
        let specific = match method {
            "tools/call" => CALL,
            "DELETE" => "delete",
            "GET" => "get",
            other => other,
        };
        self.take_first(&[specific, method, ANY], Some(place))
    }

    /// The fault for one connection; there is none on the main port.
    pub fn take_accept(&self, port: Port) -> Option<Fault> {
        if port == Port::Main {
            return None;
        }
        self.take_first(&[&format!("{ACCEPT}:{port}"), ACCEPT], None)
    }

    /// The fault for the reading of one body.
    pub fn take_read(&self, place: &Place) -> Option<Fault> {
        self.take_first(&[READ], Some(place))
    }

    fn take_first(&self, keys: &[&str], place: Option<&Place>) -> Option<Fault> {
        let mut set = lock(&self.set);
        forget_old(&mut set);
        let fits = |armed: &Armed| place.is_none_or(|place| armed.fault.is_for(&place.path, &place.host));
        let key = keys.iter().copied().find(|key| set.get(*key).is_some_and(fits))?;
        let fault = &mut set.get_mut(key)?.fault;
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

fn forget_old(set: &mut BTreeMap<String, Armed>) {
    let now = Instant::now();
    set.retain(|_, armed| armed.until.is_none_or(|until| now < until));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(faults: &Faults, text: &str) -> Result<(), String> {
        faults.change(serde_json::from_str(text).unwrap())
    }

    fn take(faults: &Faults, method: &str) -> Option<Fault> {
        faults.take(method, &place("/mcp", "probe.test"))
    }

    fn place(path: &str, host: &str) -> Place {
        Place { port: Port::Main, path: path.to_owned(), host: host.to_owned() }
    }

    #[test]
    fn specific_wins_and_times_run_out() {
        let faults = Faults::default();
        set(&faults, r#"{"call": {"close": true, "times": 2}, "any": {"status": 503}}"#).unwrap();
        assert!(take(&faults, "tools/call").unwrap().close);
        assert_eq!(faults.all()["call"].times, Some(1));
        assert!(take(&faults, "tools/call").unwrap().close);
        assert_eq!(take(&faults, "tools/call").unwrap().status, Some(503));
        assert_eq!(take(&faults, "DELETE").unwrap().status, Some(503));
        faults.clear();
        assert_eq!(take(&faults, "DELETE"), None);
    }

    #[test]
    fn null_takes_away_and_other_keys_stay() {
        let faults = Faults::default();
        set(&faults, r#"{"delete": {"hang": true}, "get": {"hang": true}, "ping": {"hang": true}}"#).unwrap();
        set(&faults, r#"{"delete": null}"#).unwrap();
        assert_eq!(take(&faults, "DELETE"), None);
        assert!(take(&faults, "GET").unwrap().hang);
        assert!(take(&faults, "ping").unwrap().hang);
    }

    #[test]
    fn a_path_and_a_port_limit_a_fault() {
        let faults = Faults::default();
        set(&faults, r#"{"any": {"status": 307, "path": "/mcp"}, "accept:good": {"close": true}}"#).unwrap();
        assert_eq!(faults.take("ping", &place("/mcp/moved", "")), None);
        assert_eq!(faults.take("ping", &place("/mcp", "")).unwrap().status, Some(307));
        assert!(faults.take_accept(Port::Good).unwrap().close);
        assert_eq!(faults.take_accept(Port::Plain), None);
        set(&faults, r#"{"accept": {"hang": true}}"#).unwrap();
        assert!(faults.take_accept(Port::Plain).unwrap().hang);
        assert!(faults.take_accept(Port::Good).unwrap().close);
        assert_eq!(faults.take_accept(Port::Main), None);
    }

    #[test]
    fn hosts_may_be_spared() {
        let faults = Faults::default();
        set(&faults, r#"{"any": {"status": 421, "unlessHost": ["localhost:*", "probe:8080"]}}"#).unwrap();
        let struck = |host| faults.take("ping", &place("/mcp", host)).is_some();
        for (host, expected) in [
            ("localhost", false),
            ("localhost:1", false),
            ("probe:8080", false),
            ("probe:8081", true),
            ("probe", true),
            ("localhost.example.com:1", true),
            ("", true),
        ] {
            assert_eq!(struck(host), expected, "{host}");
        }
    }

    #[test]
    fn time_runs_out() {
        let faults = Faults::default();
        set(&faults, r#"{"any": {"status": 503, "forMs": 0}, "get": {"status": 503, "forMs": 60000}}"#)
            .unwrap();
        assert_eq!(take(&faults, "ping"), None);
        assert_eq!(take(&faults, "GET").unwrap().status, Some(503));
    }

    #[test]
    fn nonsense_is_refused_as_a_whole() {
        let faults = Faults::default();
        let bad_status = set(&faults, r#"{"get": {"hang": true}, "any": {"status": 99}}"#);
        assert_eq!(bad_status, Err("any: status 99 is not a final one".to_owned()));
        for bad in [
            r#"{"any": {"status": 200, "headers": {"a b": "c"}}}"#,
            r#"{"any": {"status": 200, "headers": {"a": "b\r\nc"}}}"#,
            r#"{"accept": {"status": 503}}"#,
            r#"{"accept:good": {"answer": {"stall": true}}}"#,
            r#"{"read": {"hang": true, "after": true}}"#,
            r#"{"any": {"dripMs": 1}}"#,
        ] {
            assert!(set(&faults, bad).is_err(), "{bad}");
        }
        assert!(faults.all().is_empty());
        assert!(serde_json::from_str::<Fault>(r#"{"hnag": true}"#).is_err());
    }
}
