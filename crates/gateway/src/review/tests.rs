use super::*;
use std::sync::atomic::AtomicUsize;
use tokio::sync::{Notify, oneshot};

const LONG: Duration = Duration::from_mins(1);
const ZERO: Duration = Duration::ZERO;

type Review = Result<Answer<&'static str>, ReviewError>;

fn cache() -> ReviewCache<u8, &'static str> {
    with(BOUNDS)
}

fn with(bounds: Bounds) -> ReviewCache<u8, &'static str> {
    ReviewCache::with(ReviewKind::Access, Metrics::default(), bounds, ENTRIES)
}

#[allow(clippy::unnecessary_wraps)] // It stands for a review, which may fail.
fn yes(fresh: Duration, held: Duration) -> Review {
    Ok(Answer { value: Some("yes"), fresh, held })
}

#[allow(clippy::unnecessary_wraps)]
fn no(fresh: Duration) -> Review {
    Ok(Answer { value: None, fresh, held: LONG })
}

fn away() -> Review {
    Err(ReviewError::Api("away".into()))
}

impl ReviewCache<u8, &'static str> {
    /// Asks for `key`, to be reviewed with that answer.
    async fn ask(&self, key: u8, review: Review) -> Outcome<&'static str> {
        self.get(key, move || async move { review }).await
    }

    /// Asks for `key`, which must be answered without a review.
    async fn known(&self, key: u8) -> Outcome<&'static str> {
        self.get(key, || -> std::future::Pending<Review> { panic!("asked again") }).await
    }

    /// Waits until no review is in flight.
    async fn landed(&self) {
        let landed = async {
            while !self.shared.flights.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), landed).await.expect("the review lands");
    }
}

#[tokio::test]
async fn a_fresh_answer_is_not_asked_for_again() {
    let cache = cache();
    assert_eq!(cache.ask(1, yes(LONG, LONG)).await.unwrap(), Some("yes"));
    assert_eq!(cache.known(1).await.unwrap(), Some("yes"));
    assert_eq!(cache.ask(2, no(LONG)).await.unwrap(), None);
    assert_eq!(cache.known(2).await.unwrap(), None);
}

#[tokio::test]
async fn callers_of_one_key_share_one_review() {
    let (cache, asked, go) = (Arc::new(cache()), Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let callers: Vec<_> = (0..20)
        .map(|_| {
            let (cache, asked, go) = (cache.clone(), asked.clone(), go.clone());
            tokio::spawn(async move {
                let review = || async move {
                    asked.fetch_add(1, Ordering::SeqCst);
                    go.notified().await;
                    yes(LONG, LONG)
                };
                cache.get(1, review).await
            })
        })
        .collect();
    while asked.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    go.notify_one();
    for caller in callers {
        assert_eq!(caller.await.unwrap().unwrap(), Some("yes"));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_review_goes_on_when_its_caller_leaves() {
    let cache = cache();
    let (answer, answered) = oneshot::channel::<()>();
    {
        let mut caller = std::pin::pin!(cache.get(1, move || async move {
            answered.await.unwrap();
            yes(LONG, LONG)
        }));
        assert!(futures::poll!(&mut caller).is_pending());
    }
    answer.send(()).unwrap();
    cache.landed().await;
    assert_eq!(cache.known(1).await.unwrap(), Some("yes"));
}

#[tokio::test]
async fn a_positive_answer_outlives_the_api_server_and_a_negative_one_does_not() {
    let cache = cache();
    assert_eq!(cache.ask(1, yes(ZERO, LONG)).await.unwrap(), Some("yes"));
    assert_eq!(cache.ask(1, away()).await.unwrap(), Some("yes"), "held");
    assert_eq!(cache.ask(2, no(ZERO)).await.unwrap(), None);
    assert!(cache.ask(2, away()).await.is_err(), "never held");
}

#[tokio::test]
async fn a_positive_answer_is_held_no_longer_than_its_time() {
    let cache = cache();
    // One whose time is over as it comes stands for one that grew old; `known` tests how time goes by.
    assert_eq!(cache.ask(1, yes(ZERO, ZERO)).await.unwrap(), Some("yes"));
    assert!(cache.ask(1, away()).await.is_err());
    assert_eq!(cache.ask(2, yes(LONG, LONG * 3)).await.unwrap(), Some("yes"));
    let known = cache.shared.positive.get(&2).await.unwrap();
    assert_eq!(known.held.duration_since(known.fresh), LONG * 2);
}

#[tokio::test]
async fn every_answer_counts_from_when_it_was_asked_for() {
    let cache = cache();
    let asked = Instant::now().checked_sub(LONG).unwrap();
    for (key, value) in [(1, Some("yes")), (2, None)] {
        cache.shared.keep(key, asked, &Answer { value, fresh: LONG, held: LONG }).await;
        assert!(cache.ask(key, away()).await.is_err(), "{value:?} is over");
        cache.shared.keep(key, asked, &Answer { value, fresh: LONG * 2, held: LONG }).await;
        assert_eq!(cache.known(key).await.unwrap(), value, "for another minute");
    }
}

#[tokio::test]
async fn a_negative_answer_ends_a_held_positive_one() {
    let cache = cache();
    assert_eq!(cache.ask(1, yes(ZERO, LONG)).await.unwrap(), Some("yes"));
    assert_eq!(cache.ask(1, no(ZERO)).await.unwrap(), None);
    assert!(cache.ask(1, away()).await.is_err());
}

#[tokio::test]
async fn an_answer_that_is_not_fresh_waits_for_the_new_one_however_long_that_takes() {
    let cache = cache();
    assert_eq!(cache.ask(1, yes(ZERO, LONG)).await.unwrap(), Some("yes"));
    let (answer, answered) = oneshot::channel::<()>();
    let mut caller = std::pin::pin!(cache.get(1, move || async move {
        answered.await.unwrap();
        no(LONG)
    }));
    // Longer than who finds reviews failing would wait.
    assert!(tokio::time::timeout(BOUNDS.patience * 2, &mut caller).await.is_err(), "it waits");
    answer.send(()).unwrap();
    assert_eq!(caller.await.unwrap(), None, "revoked meanwhile");
}

#[tokio::test]
async fn an_ageing_answer_is_used_while_one_review_renews_it() {
    let cache = with(Bounds { ahead: LONG, apart: ZERO, ..BOUNDS });
    assert_eq!(cache.ask(1, yes(LONG, LONG)).await.unwrap(), Some("yes"));
    let (answer, answered) = oneshot::channel::<()>();
    let renew = move || async move {
        answered.await.unwrap();
        no(LONG)
    };
    assert_eq!(cache.get(1, renew).await.unwrap(), Some("yes"), "not waited for");
    assert_eq!(cache.known(1).await.unwrap(), Some("yes"), "one review is enough");
    answer.send(()).unwrap();
    cache.landed().await;
    assert_eq!(cache.known(1).await.unwrap(), None, "its answer counts at once");
}

#[tokio::test]
async fn an_answer_that_ages_from_the_start_is_not_asked_for_over_and_over() {
    let cache = with(Bounds { ahead: LONG, apart: LONG, ..BOUNDS });
    assert_eq!(cache.ask(1, yes(LONG, LONG)).await.unwrap(), Some("yes"));
    assert_eq!(
        cache.known(1).await.unwrap(),
        Some("yes"),
        "its token is near its end, so asking helps nothing"
    );
    assert!(cache.shared.flights.is_empty());
}

#[tokio::test]
async fn an_ageing_answer_whose_review_fails_stays_fresh_to_its_end() {
    let cache = with(Bounds { ahead: LONG, apart: ZERO, ..BOUNDS });
    assert_eq!(cache.ask(1, yes(LONG, LONG)).await.unwrap(), Some("yes"));
    assert_eq!(cache.ask(1, away()).await.unwrap(), Some("yes"));
    cache.landed().await;
    assert_eq!(cache.ask(1, no(LONG)).await.unwrap(), Some("yes"), "asked for again beside it");
    cache.landed().await;
    assert_eq!(cache.known(1).await.unwrap(), None);
}

#[tokio::test]
async fn an_api_server_that_hangs_delays_one_call_and_no_more() {
    let bounds = Bounds { timeout: Duration::from_millis(300), ahead: ZERO, apart: LONG, patience: ZERO };
    let cache = with(bounds);
    for key in 1..=3 {
        assert_eq!(cache.ask(key, yes(ZERO, LONG)).await.unwrap(), Some("yes"));
    }
    let began = Instant::now();
    assert_eq!(cache.get(1, std::future::pending).await.unwrap(), Some("yes"));
    assert!(began.elapsed() >= bounds.timeout, "it might have been slow only");
    assert_eq!(cache.known(1).await.unwrap(), Some("yes"), "not asked again for a moment");
    // The other key's review hangs as well, and nobody waits for it: it is in flight when its callers have their answer.
    assert_eq!(cache.get(2, std::future::pending).await.unwrap(), Some("yes"));
    assert_eq!(cache.known(2).await.unwrap(), Some("yes"));
    assert!(!cache.shared.flights.is_empty());
    cache.landed().await;
    // It is back, and who has no patience is told by the next call at the latest.
    cache.ask(3, no(LONG)).await.unwrap();
    cache.landed().await;
    assert_eq!(cache.known(3).await.unwrap(), None);
}

#[tokio::test]
async fn what_cannot_be_known_is_an_error_and_is_not_kept() {
    let cache = cache();
    assert!(cache.ask(1, away()).await.is_err());
    assert_eq!(cache.ask(1, yes(LONG, LONG)).await.unwrap(), Some("yes"));
}

#[tokio::test]
async fn a_review_that_hangs_is_given_up_and_one_that_breaks_leaves_nothing_behind() {
    let cache = with(Bounds { timeout: Duration::from_millis(20), ..BOUNDS });
    let refused = cache.get(1, std::future::pending).await.unwrap_err();
    assert!(matches!(*refused, ReviewError::TimedOut(_)), "{refused}");
    let broken = cache.get(1, || async { panic!("as the test wants") }).await.unwrap_err();
    assert!(matches!(*broken, ReviewError::Api(_)), "{broken}");
    cache.landed().await;
}

#[tokio::test]
async fn no_more_answers_are_kept_than_the_cache_holds() {
    let cache = ReviewCache::with(ReviewKind::Token, Metrics::default(), BOUNDS, 8);
    for key in 0..100_u32 {
        let review = if key % 2 == 0 { yes(LONG, LONG) } else { no(LONG) };
        cache.get(key, move || async move { review }).await.unwrap();
    }
    cache.shared.positive.run_pending_tasks().await;
    cache.shared.negative.run_pending_tasks().await;
    let kept = (cache.shared.positive.entry_count(), cache.shared.negative.entry_count());
    assert!((1..=8).contains(&kept.0) && (1..=8).contains(&kept.1), "{kept:?}");
}

#[tokio::test]
async fn who_is_known_does_not_wait_behind_who_is_not() {
    let cache = Arc::new(with(Bounds { timeout: LONG, ..BOUNDS }));
    assert_eq!(cache.ask(255, yes(ZERO, LONG)).await.unwrap(), Some("yes"));
    let strangers: Vec<_> = (0..100_u8)
        .map(|key| {
            let cache = cache.clone();
            tokio::spawn(async move { cache.get(key, std::future::pending).await })
        })
        .collect();
    while cache.shared.places.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let answered = tokio::time::timeout(LONG / 3, cache.ask(255, no(LONG)));
    assert_eq!(answered.await.expect("it does not wait").unwrap(), None);
    strangers.iter().for_each(tokio::task::JoinHandle::abort);
}
