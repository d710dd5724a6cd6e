//! The client scopes that a session holds.

use super::scope::Scope;
use super::seal::ClientId;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Scopes that a session holds at once. Most clients leave without a DELETE, so the one unused longest gives way; its
/// client, should it come back, has it rebuilt.
pub(crate) const MAX_SCOPES: usize = 256;
/// Scopes whose end by DELETE is remembered, so that they are not rebuilt.
const MAX_CLOSED: usize = 1024;
/// Scopes that gave way whose clients' knowledge is remembered; the others count as those of an older sidecar.
const MAX_AWAY: usize = 4096;

/// The scopes of a session, by their clients.
#[derive(Default)]
pub(crate) struct Scopes {
    by_client: HashMap<ClientId, Entry>,
    /// Those that their clients ended, oldest first.
    closed: VecDeque<ClientId>,
    /// Those that gave way, oldest first, with the state of the upstream's that their clients know of.
    away: VecDeque<(ClientId, u64)>,
    clock: u64,
}

struct Entry {
    scope: Arc<Scope>,
    /// Value of `clock` at its last use.
    used: u64,
}

impl Scopes {
    /// Adds a scope; false if there are too many that are in use.
    pub(crate) fn add(&mut self, scope: Arc<Scope>) -> bool {
        if self.by_client.len() >= MAX_SCOPES {
            let idle = self.by_client.iter().filter(|(_, entry)| entry.scope.is_idle());
            let Some(oldest) = idle.min_by_key(|(_, entry)| entry.used).map(|(client, _)| *client) else {
                return false;
            };
            if let Some(Entry { scope, .. }) = self.by_client.remove(&oldest) {
                if self.away.len() >= MAX_AWAY {
                    self.away.pop_front();
                }
                self.away.push_back((oldest, scope.known.state()));
            }
        }
        self.away.retain(|(away, _)| *away != scope.client);
        self.clock += 1;
        self.by_client.insert(scope.client, Entry { scope, used: self.clock });
        true
    }

    /// The scope of `client`, which counts as used.
    pub(crate) fn get(&mut self, client: &ClientId) -> Option<Arc<Scope>> {
        self.clock += 1;
        let entry = self.by_client.get_mut(client)?;
        entry.used = self.clock;
        Some(entry.scope.clone())
    }

    /// The state of the upstream's that `client` knows of, whose scope gave way.
    pub(crate) fn known_of(&self, client: &ClientId) -> Option<u64> {
        self.away.iter().find(|(away, _)| away == client).map(|(_, state)| *state)
    }

    /// All, the one used last first.
    pub(crate) fn latest_first(&self) -> Vec<Arc<Scope>> {
        let mut entries: Vec<_> = self.by_client.values().collect();
        entries.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.used));
        entries.into_iter().map(|entry| entry.scope.clone()).collect()
    }

    /// Whether `client` ended its scope.
    pub(crate) fn is_closed(&self, client: &ClientId) -> bool {
        self.closed.contains(client)
    }

    /// Ends the scope of `client`, which is not to be rebuilt; gives it if there was one.
    pub(crate) fn close(&mut self, client: ClientId) -> Option<Arc<Scope>> {
        if self.closed.len() >= MAX_CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back(client);
        self.away.retain(|(away, _)| *away != client);
        self.by_client.remove(&client).map(|entry| entry.scope)
    }

    /// Ends all.
    pub(crate) fn clear(&mut self) {
        for entry in self.by_client.values() {
            entry.scope.close_streams();
        }
        self.by_client = HashMap::new();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::session::profile::Profile;
    use crate::session::recover::Known;
    use crate::session::scope::tests::{key, running};
    use prometheus_client::metrics::gauge::Gauge;

    pub(in crate::session) fn scope(number: usize, gauge: &Gauge) -> Arc<Scope> {
        Scope::new(client(number), Profile::read("{}"), Known::none(), gauge)
    }

    fn client(number: usize) -> ClientId {
        let mut client = [0; 16];
        client[..8].copy_from_slice(&number.to_be_bytes());
        client
    }

    #[test]
    fn the_idle_scope_unused_longest_gives_way() {
        let (gauge, mut scopes) = (Gauge::default(), Scopes::default());
        for number in 0..MAX_SCOPES {
            assert!(scopes.add(scope(number, &gauge)));
        }
        scopes.get(&client(0)).unwrap().begin(key("call"), running(1));
        scopes.get(&client(1));
        for number in 2..MAX_SCOPES {
            scopes.get(&client(number));
        }
        assert!(scopes.add(scope(MAX_SCOPES, &gauge)));
        assert!(scopes.get(&client(0)).is_some(), "a scope with a running request stays");
        assert!(scopes.get(&client(1)).is_none() && scopes.get(&client(2)).is_some());
        assert_eq!(scopes.latest_first()[0].client, client(2));
        assert_eq!(usize::try_from(gauge.get()).unwrap(), MAX_SCOPES);
        let all = scopes.latest_first();
        for scope in &all {
            scope.subscribe("a").unwrap();
        }
        assert!(!scopes.add(scope(MAX_SCOPES + 1, &gauge)), "none gives way while in use");
        drop(all);
        scopes.clear();
        assert_eq!(gauge.get(), 0);
    }

    #[test]
    fn what_the_client_of_a_scope_that_gave_way_knows_is_remembered_up_to_a_bound() {
        let (gauge, mut scopes) = (Gauge::default(), Scopes::default());
        for number in 0..MAX_SCOPES + MAX_AWAY {
            let known = Known::of_state(number as u64);
            assert!(scopes.add(Scope::new(client(number), Profile::read("{}"), known, &gauge)));
        }
        assert_eq!((scopes.known_of(&client(0)), scopes.known_of(&client(1))), (Some(0), Some(1)));
        assert!(scopes.add(scope(MAX_SCOPES + MAX_AWAY, &gauge)));
        assert_eq!(scopes.known_of(&client(0)), None, "the oldest is forgotten");
        assert!(scopes.add(Scope::new(client(7), Profile::read("{}"), Known::of_state(7), &gauge)));
        assert_eq!(scopes.known_of(&client(7)), None, "it is back");
        scopes.close(client(8));
        assert_eq!(scopes.known_of(&client(8)), None, "it does not come back");
        assert!(scopes.away.len() <= MAX_AWAY);
    }

    #[test]
    fn an_end_by_delete_is_remembered_up_to_a_bound() {
        let (gauge, mut scopes) = (Gauge::default(), Scopes::default());
        scopes.add(scope(0, &gauge));
        assert!(scopes.close(client(0)).is_some() && scopes.close(client(1)).is_none());
        assert!(scopes.is_closed(&client(0)) && scopes.get(&client(0)).is_none());
        for number in 2..=MAX_CLOSED {
            scopes.close(client(number));
        }
        assert!(!scopes.is_closed(&client(0)) && scopes.is_closed(&client(1)));
        assert_eq!((scopes.closed.len(), gauge.get()), (MAX_CLOSED, 0));
    }
}
