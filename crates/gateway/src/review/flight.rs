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

/// The reviews in flight, and how many of them are of keys without a positive answer; clones share them.
pub(super) struct Flights<K, P>(Arc<Mutex<Books<K, P>>>);

struct Books<K, P> {
    flights: HashMap<K, Flight<P>>,
    unknown: usize,
}

impl<K, P> Default for Flights<K, P> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Books { flights: HashMap::new(), unknown: 0 })))
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flights.is_empty()
    }

    /// The flight of `key`, else one that `begin` begins. It lands by itself, whoever waits for it. None when there are too
    /// many and the key is not a known one.
    pub fn join<B, R>(&self, key: K, is_known: bool, begin: B) -> Option<Flight<P>>
    where
        B: FnOnce() -> R,
        R: Future<Output = Outcome<P>> + Send + 'static,
    {
        let mut books = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = books.flights.get(&key) {
            return Some(flight.clone());
        }
        if !is_known && books.unknown >= UNKNOWN_MAX {
            return None;
        }
        let review = begin();
        books.unknown += usize::from(!is_known);
        let landing = Landing { books: self.0.clone(), key: key.clone(), is_known };
        let task = tokio::spawn(async move {
            let _landing = landing;
            review.await
        });
        let broken = || Err(Arc::new(ReviewError::Api("the review broke off".to_owned())));
        let outcome = task.map(move |outcome| outcome.unwrap_or_else(|_| broken())).boxed().shared();
        let flight = Flight { began: Instant::now(), outcome };
        books.flights.insert(key, flight.clone());
        Some(flight)
    }
}

/// Takes a flight off the list when dropped: on every path, a panic too.
struct Landing<K: Hash + Eq, P> {
    books: Arc<Mutex<Books<K, P>>>,
    key: K,
    is_known: bool,
}

impl<K: Hash + Eq, P> Drop for Landing<K, P> {
    fn drop(&mut self) {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        books.flights.remove(&self.key);
        books.unknown -= usize::from(!self.is_known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::watch;

    #[tokio::test]
    async fn renewals_take_no_room_from_newcomers_and_room_comes_back() {
        let flights = Flights::<usize, ()>::default();
        let (land, landing) = watch::channel(());
        let join = |key, is_known| {
            let mut landing = landing.clone();
            let landed = async move {
                let _ = landing.changed().await;
                Ok(None)
            };
            flights.join(key, is_known, || landed)
        };
        let (newcomers, last) = (UNKNOWN_MAX..2 * UNKNOWN_MAX, 2 * UNKNOWN_MAX);
        assert!((0..UNKNOWN_MAX).all(|key| join(key, true).is_some()));
        assert!(newcomers.clone().all(|key| join(key, false).is_some()));
        assert!(join(last, false).is_none());
        assert!(join(newcomers.start, false).is_some(), "that one is in flight");
        assert!(join(last, true).is_some());
        land.send(()).unwrap();
        let (one, other) = (join(0, true).unwrap(), join(newcomers.start, false).unwrap());
        let _ = futures::join!(one.outcome, other.outcome);
        assert!(join(last + 1, false).is_some());
    }
}
