//! Client scopes: the state of each downstream client of a session.

use crate::sync::lock;
use berth_mcp::frame::TokenKey;
use berth_net::metrics::Held;
use prometheus_client::metrics::gauge::Gauge;
use rustls::crypto::SecureRandom;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// Scopes that a session holds at once. Most clients leave without a DELETE, so the one unused longest gives way; its
/// client, should it come back, is told to begin anew.
const MAX_SCOPES: usize = 256;

/// The state of one downstream client.
pub(crate) struct Scope {
    /// Its running requests, by the client's ids.
    running: Mutex<HashMap<TokenKey, Running>>,
    _held: Held,
}

/// A running request.
#[derive(Clone)]
pub(crate) struct Running {
    /// Its id upstream.
    pub upstream_id: u64,
    /// Told when the client has cancelled it.
    pub cancelled: Arc<Notify>,
}

impl Scope {
    /// Notes that the client's request `id` runs. If a client uses an id twice, the later one counts.
    pub(crate) fn begin(&self, id: TokenKey, running: Running) {
        lock(&self.running).insert(id, running);
    }

    /// Forgets a request.
    pub(crate) fn finish(&self, id: &TokenKey, upstream_id: u64) {
        let mut running = lock(&self.running);
        if running.get(id).is_some_and(|running| running.upstream_id == upstream_id) {
            running.remove(id);
        }
        if running.is_empty() {
            // Idle clients must not keep the room of their busiest moment.
            *running = HashMap::new();
        }
    }

    /// The client's running request `id`.
    pub(crate) fn running(&self, id: &TokenKey) -> Option<Running> {
        lock(&self.running).get(id).cloned()
    }

    fn is_idle(&self) -> bool {
        lock(&self.running).is_empty()
    }
}

/// The scopes of a session, by their ids.
#[derive(Default)]
pub(crate) struct Scopes {
    by_id: HashMap<String, Entry>,
    clock: u64,
}

struct Entry {
    scope: Arc<Scope>,
    /// Value of `clock` at its last use.
    used: u64,
}

impl Scopes {
    /// Adds a scope under `id`.
    pub(crate) fn add(&mut self, id: String, gauge: &Gauge) {
        if self.by_id.len() >= MAX_SCOPES {
            let idle = self.by_id.iter().filter(|(_, entry)| entry.scope.is_idle());
            if let Some(oldest) = idle.min_by_key(|(_, entry)| entry.used).map(|(id, _)| id.clone()) {
                self.by_id.remove(&oldest);
            }
        }
        self.clock += 1;
        let scope = Arc::new(Scope { running: Mutex::default(), _held: Held::new(gauge) });
        self.by_id.insert(id, Entry { scope, used: self.clock });
    }

    /// The scope `id`, which counts as used.
    pub(crate) fn get(&mut self, id: &str) -> Option<Arc<Scope>> {
        self.clock += 1;
        let entry = self.by_id.get_mut(id)?;
        entry.used = self.clock;
        Some(entry.scope.clone())
    }

    /// Ends the scope `id`; false if there is none.
    pub(crate) fn remove(&mut self, id: &str) -> bool {
        self.by_id.remove(id).is_some()
    }

    /// Ends all.
    pub(crate) fn clear(&mut self) {
        self.by_id = HashMap::new();
    }
}

/// A new id of 128 random bits, in hexadecimal; none if the system has no randomness. Whoever holds it acts as the client.
pub(crate) fn fresh_id(random: &dyn SecureRandom) -> Option<String> {
    let mut bytes = [0_u8; 16];
    random.fill(&mut bytes).ok()?;
    let mut id = String::with_capacity(32);
    for byte in bytes {
        let _ = write!(id, "{byte:02x}");
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> TokenKey {
        TokenKey::Text(text.into())
    }

    fn running(upstream_id: u64) -> Running {
        Running { upstream_id, cancelled: Arc::default() }
    }

    #[test]
    fn a_running_request_is_found_until_it_is_finished() {
        let (gauge, mut scopes) = (Gauge::default(), Scopes::default());
        scopes.add("a".into(), &gauge);
        let scope = scopes.get("a").unwrap();
        scope.begin(key("1"), running(10));
        scope.begin(key("1"), running(11));
        scope.finish(&key("1"), 10);
        assert_eq!(scope.running(&key("1")).map(|running| running.upstream_id), Some(11));
        scope.finish(&key("1"), 11);
        assert!(scope.running(&key("1")).is_none());
    }

    #[test]
    fn the_idle_scope_unused_longest_gives_way() {
        let (gauge, mut scopes) = (Gauge::default(), Scopes::default());
        for number in 0..MAX_SCOPES {
            scopes.add(number.to_string(), &gauge);
        }
        scopes.get("0").unwrap().begin(key("call"), running(1));
        scopes.get("1");
        for number in 2..MAX_SCOPES {
            scopes.get(&number.to_string());
        }
        scopes.add("new".into(), &gauge);
        assert!(scopes.get("0").is_some(), "a scope with a running request stays");
        assert!(scopes.get("1").is_none() && scopes.get("2").is_some() && scopes.get("new").is_some());
        assert_eq!(usize::try_from(gauge.get()).unwrap(), MAX_SCOPES);
        scopes.clear();
        assert_eq!(gauge.get(), 0);
    }

    #[test]
    fn ids_are_long_and_never_the_same() {
        let random = rustls::crypto::ring::default_provider().secure_random;
        let (one, other) = (fresh_id(random).unwrap(), fresh_id(random).unwrap());
        assert!(one.len() == 32 && one != other);
    }
}
