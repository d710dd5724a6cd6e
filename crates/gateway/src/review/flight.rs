//! Reviews in flight, one for each key.

use super::{Outcome, ReviewError};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Most keys without a positive answer that are in flight. Those with one are as many as are kept.
const UNKNOWN_MAX: usize = 10_000;

/// A review in flight.
#[derive(Clone)]
pub(super) struct Flight<P> {
    /// Since when.
    pub began: Instant,
    /// What it comes to.
    pub outcome: Shared<BoxFuture<'static, Outcome<P>>>,
}

/// The reviews in flight; clones share them.
pub(super) struct Flights<K, P>(Arc<Mutex<HashMap<K, Flight<P>>>>);

impl<K, P> Default for Flights<K, P> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K, P> Flights<K, P>
where
    K: Hash + Eq + Clone + Send + 'static,
    P: Clone + Send + Sync + 'static,
{
    /// Whether there are none.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The flight of `key`, else one that `begin` begins. It lands by itself, whoever waits for it. None when there are too
    /// many and the key is not a known one.
    pub fn join<B, R>(&self, key: K, is_known: bool, begin: B) -> Option<Flight<P>>
    where
        B: FnOnce() -> R,
        R: Future<Output = Outcome<P>> + Send + 'static,
    {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flights.get(&key) {
            return Some(flight.clone());
        }
        if !is_known && flights.len() >= UNKNOWN_MAX {
            return None;
        }
        let review = begin();
        let landing = Landing { flights: self.0.clone(), key: key.clone() };
        let task = tokio::spawn(async move {
            let _landing = landing;
            review.await
        });
        let broken = || Err(Arc::new(ReviewError::Api("the review broke off".to_owned())));
        let outcome = task.map(move |outcome| outcome.unwrap_or_else(|_| broken())).boxed().shared();
        let flight = Flight { began: Instant::now(), outcome };
        flights.insert(key, flight.clone());
        Some(flight)
    }
}

/// Takes a flight off the list when dropped: on every path, a panic too.
struct Landing<K: Hash + Eq, P> {
    flights: Arc<Mutex<HashMap<K, Flight<P>>>>,
    key: K,
}

impl<K: Hash + Eq, P> Drop for Landing<K, P> {
    fn drop(&mut self) {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}
