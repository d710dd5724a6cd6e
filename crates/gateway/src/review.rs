//! What the API server said about a token or an access, kept for a while.
//!
//! | answer | used without asking | used while the API server is away |
//! |---|---|---|
//! | token accepted | 60 s, but not beyond its `exp` | 5 min, but not beyond its `exp` |
//! | token refused | 5 s | never |
//! | access allowed | 30 s | 5 min |
//! | access refused | 30 s | never |
//!
//! All times count from the moment at which the API server was asked. So a token that is revoked is refused after 60 s at the
//! latest while the API server answers. It is away when it gives no answer within 5 s, or an error, whatever its status: a
//! clean answer that refuses is always taken.
//!
//! Reviews of one key at the same time are one review, which goes on when its callers leave. A positive answer is asked
//! for again a little before it is no longer fresh, beside the calls that use it. Later than that a call waits for the
//! new answer; when the last reviews had none, it waits for half a second only and then uses what is held.

mod flight;
mod known;

use crate::metrics::{CacheUse, Metrics, ReviewKind, ReviewResult};
use flight::{Flight, Flights};
use known::{Known, Stand};
use moka::Expiry;
use moka::future::Cache;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Most answers kept of each kind, positive and negative apart.
const ENTRIES: u64 = 10_000;
/// Most reviews in flight of each kind, of keys with a positive answer and of others apart: who is known does not wait behind
/// who is not. More wait, within the time that a review may take.
const IN_FLIGHT: usize = 64;

/// Why a review gave no answer. Says nothing about the caller.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReviewError {
    /// The API server refused the review or could not be reached.
    #[error("cannot review at the API server: {0}")]
    Api(String),
    /// No answer came in time.
    #[error("the API server did not answer a review within {0:?}")]
    TimedOut(Duration),
    /// Too much is asked at once.
    #[error("more reviews wait than are taken at once")]
    Crowded,
}

/// An answer and how long it may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<P> {
    /// What was answered; nothing is a refusal.
    pub value: Option<P>,
    /// How long it is used without asking again.
    pub fresh: Duration,
    /// How long it is used when the API server cannot be asked; counts for a positive answer only.
    pub held: Duration,
}

/// What a review came to; callers share it.
pub type Outcome<P> = Result<Option<P>, Arc<ReviewError>>;

/// How reviews are bounded in time.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// A review, its wait for a place included.
    timeout: Duration,
    /// How long before an answer is no longer fresh it is asked for again, beside the calls that use it.
    ahead: Duration,
    /// Between two reviews of one key that are made beside calls.
    apart: Duration,
    /// A call that has a held answer, once reviews fail.
    patience: Duration,
}

const BOUNDS: Bounds = Bounds {
    timeout: Duration::from_secs(5),
    // An answer that is asked for ahead is there when it is needed, or known to be missing.
    ahead: Duration::from_secs(5),
    apart: Duration::from_secs(5),
    patience: Duration::from_millis(500),
};

/// Answers of one kind of review.
pub struct ReviewCache<K, P> {
    shared: Arc<Shared<K, P>>,
}

struct Shared<K, P> {
    positive: Cache<K, Known<P>>,
    /// Refusals, and until when each is used.
    negative: Cache<K, Instant>,
    flights: Flights<K, P>,
    places_known: Semaphore,
    places: Semaphore,
    /// The last review of any key to be over had no answer, or no place in time to be sent.
    failing: AtomicBool,
    bounds: Bounds,
    kind: ReviewKind,
    metrics: Metrics,
}

impl<K, P> ReviewCache<K, P>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    P: Clone + Send + Sync + 'static,
{
    /// An empty cache for reviews of `kind`.
    pub fn new(kind: ReviewKind, metrics: Metrics) -> Self {
        Self::with(kind, metrics, BOUNDS, ENTRIES)
    }

    fn with(kind: ReviewKind, metrics: Metrics, bounds: Bounds, entries: u64) -> Self {
        let shared = Shared {
            positive: Cache::builder().max_capacity(entries).expire_after(ToItsEnd).build(),
            negative: Cache::builder().max_capacity(entries).expire_after(ToItsEnd).build(),
            flights: Flights::default(),
            places_known: Semaphore::new(IN_FLIGHT),
            places: Semaphore::new(IN_FLIGHT),
            failing: AtomicBool::new(false),
            bounds,
            kind,
            metrics,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The answer for `key`: one that may be used, else that of `review`, which is made only if it is needed.
    ///
    /// # Errors
    /// [`ReviewError`] when the API server gave no answer and no positive one is held.
    pub async fn get<F, R>(&self, key: K, review: F) -> Outcome<P>
    where
        F: FnOnce() -> R,
        R: Future<Output = Result<Answer<P>, ReviewError>> + Send + 'static,
    {
        let shared = &self.shared;
        let Some(known) = shared.positive.get(&key).await else {
            if shared.negative.contains_key(&key) {
                shared.count(ReviewResult::Denied, CacheUse::Hit);
                return Ok(None);
            }
            return shared.fly(&key, false, review)?.outcome.await;
        };
        match known.stand(Instant::now(), shared.bounds.ahead) {
            Stand::Fresh => {}
            Stand::Ageing => drop(shared.fly(&key, true, review)?),
            Stand::Stale => return shared.renew(&key, known, review).await,
            Stand::Failing => return Ok(Some(shared.held(known))),
            Stand::Over => return shared.fly(&key, false, review)?.outcome.await,
        }
        shared.count(ReviewResult::Allowed, CacheUse::Hit);
        Ok(Some(known.value))
    }
}

impl<K, P> Shared<K, P>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    P: Clone + Send + Sync + 'static,
{
    /// The new answer for a key whose positive one is stale, or that one when no new one is to be had.
    async fn renew<F, R>(self: &Arc<Self>, key: &K, known: Known<P>, review: F) -> Outcome<P>
    where
        F: FnOnce() -> R,
        R: Future<Output = Result<Answer<P>, ReviewError>> + Send + 'static,
    {
        let Flight { began, outcome } = self.fly(key, true, review)?;
        let renewed = if self.failing.load(Ordering::Relaxed) {
            let patience = self.bounds.patience.saturating_sub(began.elapsed());
            tokio::time::timeout(patience, outcome).await.ok()
        } else {
            Some(outcome.await)
        };
        match renewed {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) if known.held <= Instant::now() => Err(error),
            Some(Err(_)) | None => Ok(Some(self.held(known))),
        }
    }

    fn held(&self, known: Known<P>) -> P {
        self.count(ReviewResult::Allowed, CacheUse::Held);
        known.value
    }

    /// The review of `key` that is in flight, begun now if there is none.
    fn fly<F, R>(self: &Arc<Self>, key: &K, is_known: bool, review: F) -> Result<Flight<P>, Arc<ReviewError>>
    where
        F: FnOnce() -> R,
        R: Future<Output = Result<Answer<P>, ReviewError>> + Send + 'static,
    {
        let begin = || {
            let (shared, key, review) = (self.clone(), key.clone(), review());
            async move { shared.ask(key, is_known, review).await }
        };
        self.flights.join(key.clone(), is_known, begin).ok_or_else(|| Arc::new(ReviewError::Crowded))
    }

    async fn ask<R>(&self, key: K, is_known: bool, review: R) -> Outcome<P>
    where
        R: Future<Output = Result<Answer<P>, ReviewError>>,
    {
        let places = if is_known { &self.places_known } else { &self.places };
        let asked = async {
            let _place = places.acquire().await;
            (Instant::now(), review.await)
        };
        let timeout = self.bounds.timeout;
        let answered = match tokio::time::timeout(timeout, asked).await {
            Ok((asked, answer)) => answer.map(|answer| (asked, answer)),
            Err(_) => Err(ReviewError::TimedOut(timeout)),
        };
        self.failing.store(answered.is_err(), Ordering::Relaxed);
        match answered {
            Ok((asked, answer)) => {
                self.keep(key, asked, &answer).await;
                Ok(answer.value)
            }
            Err(error) => {
                tracing::warn!(kind = self.kind.as_str(), %error, "review without an answer");
                self.count(ReviewResult::Unavailable, CacheUse::Miss);
                self.note_failure(key).await;
                Err(Arc::new(error))
            }
        }
    }

    /// Keeps an answer to what was asked at `asked`.
    async fn keep(&self, key: K, asked: Instant, answer: &Answer<P>) {
        let Some(value) = answer.value.clone() else {
            self.count(ReviewResult::Denied, CacheUse::Miss);
            self.positive.invalidate(&key).await;
            return self.negative.insert(key, asked + answer.fresh).await;
        };
        self.count(ReviewResult::Allowed, CacheUse::Miss);
        self.negative.invalidate(&key).await;
        let (fresh, held) = (asked + answer.fresh, asked + answer.held.max(answer.fresh));
        let next = asked + self.bounds.apart;
        self.positive.insert(key, Known { value, fresh, held, next, failed: false }).await;
    }

    /// Notes that a review of `key` had no answer.
    async fn note_failure(&self, key: K) {
        if let Some(known) = self.positive.get(&key).await {
            let next = Instant::now() + self.bounds.apart;
            self.positive.insert(key, Known { next, failed: true, ..known }).await;
        }
    }

    fn count(&self, result: ReviewResult, cache: CacheUse) {
        self.metrics.reviewed(self.kind, result, cache);
    }
}

/// Drops an answer when it is of no use any more.
struct ToItsEnd;

/// An answer that ends.
trait Ends {
    fn end(&self) -> Instant;
}

impl<P> Ends for Known<P> {
    fn end(&self) -> Instant {
        self.held
    }
}

impl Ends for Instant {
    fn end(&self) -> Instant {
        *self
    }
}

impl<K, A: Ends> Expiry<K, A> for ToItsEnd {
    fn expire_after_create(&self, _: &K, answer: &A, now: Instant) -> Option<Duration> {
        Some(answer.end().saturating_duration_since(now))
    }

    fn expire_after_update(&self, _: &K, answer: &A, now: Instant, _: Option<Duration>) -> Option<Duration> {
        Some(answer.end().saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests;
