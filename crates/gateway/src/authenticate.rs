//! Who calls: a bearer token becomes a caller by a review of the API server. How long its answers count is told in
//! [`crate::review`]; a token that ends by its own claim counts no longer than that.

use crate::bearer::{self, Credential, TokenHash};
use crate::metrics::{Metrics, ReviewKind};
use crate::respond::Refusal;
use crate::review::{Answer, ReviewCache, ReviewError};
use futures::future::BoxFuture;
use http::HeaderMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long an accepted token is not reviewed again.
const POSITIVE: Duration = Duration::from_mins(1);
/// How long an accepted token is accepted while the API server is away.
const HELD: Duration = Duration::from_mins(5);
/// How long a refused token is not reviewed again.
const NEGATIVE: Duration = Duration::from_secs(5);

/// Who calls, as the API server knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// User name, such as `system:serviceaccount:demo:alice`.
    pub name: String,
    /// UID of the user.
    pub uid: String,
    /// Groups that the user is in.
    pub groups: Vec<String>,
    /// What else the authenticator says, for access reviews.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A caller whose token was accepted.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Who it is.
    pub user: Arc<User>,
    /// Hash of its token: names it in caches.
    pub token: TokenHash,
}

/// The seam to the API server.
pub trait TokenReviewer: Send + Sync + 'static {
    /// Who a token belongs to; `None` when it is not valid for our audience.
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, ReviewError>>;
}

/// Turns tokens into callers.
pub struct Authenticator {
    reviewer: Arc<dyn TokenReviewer>,
    cache: ReviewCache<TokenHash, Arc<User>>,
}

impl Authenticator {
    /// An authenticator that asks `reviewer` what it does not know.
    pub fn new(reviewer: Arc<dyn TokenReviewer>, metrics: Metrics) -> Self {
        Self { reviewer, cache: ReviewCache::new(ReviewKind::Token, metrics) }
    }

    /// The caller that a request's head names.
    ///
    /// # Errors
    /// [`Refusal::NoToken`], [`Refusal::BadToken`], or [`Refusal::ReviewUnavailable`] when it cannot be known.
    pub async fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, Refusal> {
        let text = match bearer::find(headers) {
            Credential::Missing => return Err(Refusal::NoToken),
            Credential::Malformed => return Err(Refusal::BadToken),
            Credential::Token(text) => text,
        };
        let token = bearer::hash(text);
        let review = || {
            let (reviewer, text) = (self.reviewer.clone(), text.to_owned());
            async move {
                let user = reviewer.review(&text).await?.map(Arc::new);
                Ok(dated(user, bearer::expiry(&text), SystemTime::now()))
            }
        };
        match self.cache.get(token, review).await {
            Ok(Some(user)) => Ok(Caller { user, token }),
            Ok(None) => Err(Refusal::BadToken),
            Err(_) => Err(Refusal::ReviewUnavailable),
        }
    }
}

/// An answer with the times it may be used for, given when the token ends (seconds since the epoch) and what time it is.
fn dated<T>(user: Option<T>, expiry: Option<u64>, now: SystemTime) -> Answer<T> {
    if user.is_none() {
        return Answer { value: user, fresh: NEGATIVE, held: Duration::ZERO };
    }
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let left = expiry.map_or(Duration::MAX, |expiry| Duration::from_secs(expiry).saturating_sub(now));
    Answer { value: user, fresh: left.min(POSITIVE), held: left.min(HELD) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(user: Option<()>, expiry: Option<u64>) -> (u64, u64) {
        let answer = dated(user, expiry, SystemTime::UNIX_EPOCH + Duration::from_secs(1_000));
        (answer.fresh.as_secs(), answer.held.as_secs())
    }

    #[test]
    fn an_answer_is_used_no_longer_than_the_token_lives() {
        let table = [
            (Some(()), None, (60, 300)),
            (Some(()), Some(5_000), (60, 300)),
            (Some(()), Some(1_100), (60, 100)),
            (Some(()), Some(1_030), (30, 30)),
            (Some(()), Some(999), (0, 0)),
            (None, Some(5_000), (5, 0)),
            (None, None, (5, 0)),
        ];
        for (user, expiry, expected) in table {
            assert_eq!(times(user, expiry), expected, "{user:?} {expiry:?}");
        }
    }
}
