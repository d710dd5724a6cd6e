//! What the API server said about a token or an access, kept for a while.
//!
//! Reviews of one key at the same time are one review. An answer is used while it is fresh; a positive one outlives the
//! API server's absence for a bounded time more, a negative one never does.

use crate::metrics::{CacheUse, Metrics, ReviewKind, ReviewResult};
use moka::Expiry;
use moka::future::Cache;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Most answers kept of each kind.
const ENTRIES: u64 = 10_000;
/// Most reviews in flight of each kind; more wait, within the time that a review may take.
const IN_FLIGHT: usize = 64;
/// How long a review may take, its wait for a place included.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a held answer is used before the API server is asked again.
const RETRY: Duration = Duration::from_secs(5);

/// Why a review gave no answer. Says nothing about the caller.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReviewError {
    /// The API server refused the review or could not be reached.
    #[error("cannot review at the API server: {0}")]
    Api(String),
    /// No answer came in time.
    #[error("the API server did not answer a review within {0:?}")]
    TimedOut(Duration),
}

/// An answer and how long it may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<V> {
    /// What was answered.
    pub value: V,
    /// How long it is used without asking again.
    pub fresh: Duration,
    /// How long, from now, it is used when the API server cannot be asked. Zero for a negative answer.
    pub held: Duration,
}

/// Whether an answer lets the caller in.
pub trait Verdict {
    /// True when it does.
    fn is_positive(&self) -> bool;
}

impl Verdict for bool {
    fn is_positive(&self) -> bool {
        *self
    }
}

impl<T> Verdict for Option<T> {
    fn is_positive(&self) -> bool {
        self.is_some()
    }
}

/// Answers of one kind of review.
pub struct ReviewCache<K, V> {
    fresh: Cache<K, Answer<V>>,
    held: Cache<K, (V, Instant)>,
    places: Semaphore,
    timeout: Duration,
    kind: ReviewKind,
    metrics: Metrics,
}

impl<K, V> ReviewCache<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Verdict + Clone + Send + Sync + 'static,
{
    /// An empty cache for reviews of `kind`.
    pub fn new(kind: ReviewKind, metrics: Metrics) -> Self {
        Self {
            fresh: Cache::builder().max_capacity(ENTRIES).expire_after(FreshFor).build(),
            held: Cache::builder().max_capacity(ENTRIES).expire_after(HeldUntil).build(),
            places: Semaphore::new(IN_FLIGHT),
            timeout: TIMEOUT,
            kind,
            metrics,
        }
    }

    /// The fresh answer for `key`, else that of `review`, which runs once however many ask at the same time.
    ///
    /// # Errors
    /// [`ReviewError`] when the API server gave no answer and no positive one is held.
    pub async fn get<F>(&self, key: K, review: F) -> Result<V, Arc<ReviewError>>
    where
        F: Future<Output = Result<Answer<V>, ReviewError>>,
    {
        if let Some(answer) = self.fresh.get(&key).await {
            self.count(Some(&answer.value), CacheUse::Hit);
            return Ok(answer.value);
        }
        let answer = self.fresh.try_get_with(key.clone(), self.ask(key, review)).await?;
        Ok(answer.value)
    }

    async fn ask<F>(&self, key: K, review: F) -> Result<Answer<V>, ReviewError>
    where
        F: Future<Output = Result<Answer<V>, ReviewError>>,
    {
        match self.bounded(review).await {
            Ok(answer) => {
                self.count(Some(&answer.value), CacheUse::Miss);
                self.hold(key, &answer).await;
                Ok(answer)
            }
            Err(error) => {
                tracing::warn!(kind = self.kind.as_str(), %error, "review without an answer");
                let Some((value, until)) = self.held.get(&key).await else {
                    self.count(None, CacheUse::Miss);
                    return Err(error);
                };
                self.count(Some(&value), CacheUse::Held);
                let left = until.saturating_duration_since(Instant::now());
                Ok(Answer { value, fresh: left.min(RETRY), held: left })
            }
        }
    }

    async fn bounded<F>(&self, review: F) -> Result<Answer<V>, ReviewError>
    where
        F: Future<Output = Result<Answer<V>, ReviewError>>,
    {
        let placed = async {
            let _place = self.places.acquire().await;
            review.await
        };
        tokio::time::timeout(self.timeout, placed).await.unwrap_or(Err(ReviewError::TimedOut(self.timeout)))
    }

    async fn hold(&self, key: K, answer: &Answer<V>) {
        if answer.value.is_positive() && !answer.held.is_zero() {
            self.held.insert(key, (answer.value.clone(), Instant::now() + answer.held)).await;
        } else {
            self.held.invalidate(&key).await;
        }
    }

    fn count(&self, value: Option<&V>, cache: CacheUse) {
        let result = match value.map(Verdict::is_positive) {
            Some(true) => ReviewResult::Allowed,
            Some(false) => ReviewResult::Denied,
            None => ReviewResult::Unavailable,
        };
        self.metrics.reviewed(self.kind, result, cache);
    }
}

/// Drops an answer when it is no longer fresh.
struct FreshFor;

impl<K, V> Expiry<K, Answer<V>> for FreshFor {
    fn expire_after_create(&self, _: &K, answer: &Answer<V>, _: Instant) -> Option<Duration> {
        Some(answer.fresh)
    }

    fn expire_after_update(
        &self,
        _: &K,
        answer: &Answer<V>,
        _: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(answer.fresh)
    }
}

/// Drops a held answer at its end.
struct HeldUntil;

impl<K, V> Expiry<K, (V, Instant)> for HeldUntil {
    fn expire_after_create(&self, _: &K, held: &(V, Instant), now: Instant) -> Option<Duration> {
        Some(held.1.saturating_duration_since(now))
    }

    fn expire_after_update(
        &self,
        _: &K,
        held: &(V, Instant),
        now: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(held.1.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Notify;

    const LONG: Duration = Duration::from_mins(1);

    fn cache() -> ReviewCache<u8, bool> {
        ReviewCache::new(ReviewKind::Access, Metrics::default())
    }

    #[allow(clippy::unnecessary_wraps)] // It stands for a review, which may fail.
    fn answer(value: bool, fresh: Duration, held: Duration) -> Result<Answer<bool>, ReviewError> {
        Ok(Answer { value, fresh, held })
    }

    fn away() -> Result<Answer<bool>, ReviewError> {
        Err(ReviewError::Api("away".into()))
    }

    #[tokio::test]
    async fn a_fresh_answer_is_not_asked_for_again() {
        let cache = cache();
        assert!(cache.get(1, async { answer(true, LONG, LONG) }).await.unwrap());
        assert!(cache.get(1, async { panic!("asked again") }).await.unwrap());
        assert!(!cache.get(2, async { answer(false, LONG, Duration::ZERO) }).await.unwrap());
    }

    #[tokio::test]
    async fn callers_of_one_key_share_one_review() {
        let (cache, asked, go) = (Arc::new(cache()), Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let callers: Vec<_> = (0..20)
            .map(|_| {
                let (cache, asked, go) = (cache.clone(), asked.clone(), go.clone());
                tokio::spawn(async move {
                    cache
                        .get(1, async {
                            asked.fetch_add(1, Ordering::SeqCst);
                            go.notified().await;
                            answer(true, LONG, LONG)
                        })
                        .await
                })
            })
            .collect();
        while asked.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        go.notify_one();
        for caller in callers {
            assert!(caller.await.unwrap().unwrap());
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_positive_answer_outlives_the_api_server_and_a_negative_one_does_not() {
        let cache = cache();
        assert!(cache.get(1, async { answer(true, Duration::ZERO, LONG) }).await.unwrap());
        assert!(cache.get(1, async { away() }).await.unwrap(), "held");
        assert!(!cache.get(2, async { answer(false, Duration::ZERO, LONG) }).await.unwrap());
        assert!(cache.get(2, async { away() }).await.is_err(), "never held");
    }

    #[tokio::test]
    async fn a_negative_answer_ends_a_held_positive_one() {
        let cache = cache();
        assert!(cache.get(1, async { answer(true, Duration::ZERO, LONG) }).await.unwrap());
        assert!(!cache.get(1, async { answer(false, Duration::ZERO, Duration::ZERO) }).await.unwrap());
        assert!(cache.get(1, async { away() }).await.is_err());
    }

    #[tokio::test]
    async fn what_cannot_be_known_is_an_error_and_is_not_kept() {
        let cache = cache();
        assert!(cache.get(1, async { away() }).await.is_err());
        assert!(cache.get(1, async { answer(true, LONG, LONG) }).await.unwrap());
    }

    #[tokio::test]
    async fn a_review_that_hangs_is_given_up() {
        let cache = ReviewCache { timeout: Duration::from_millis(20), ..cache() };
        let refused = cache.get(1, std::future::pending()).await.unwrap_err();
        assert!(matches!(*refused, ReviewError::TimedOut(_)), "{refused}");
    }
}
