//! Whether somebody who is not a session's subject may use it: `create` on `agentsessions/connect`, by access review. How
//! long answers count is told in [`crate::review`].

use crate::authenticate::{Caller, User};
use crate::bearer::TokenHash;
use crate::metrics::{Metrics, ReviewKind};
use crate::path::SessionPath;
use crate::respond::Refusal;
use crate::review::{Answer, ReviewCache, ReviewError};
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

/// How long an answer is used without asking again.
const FRESH: Duration = Duration::from_secs(30);
/// How long a permission is used while the API server is away; the token itself is held no longer than that.
const HELD: Duration = Duration::from_mins(5);

/// The seam to the API server.
pub trait AccessReviewer: Send + Sync + 'static {
    /// Whether `user` may `create` `agentsessions/connect` of that name in that namespace.
    fn may_connect<'a>(
        &'a self,
        user: &'a User,
        namespace: &'a str,
        session: &'a str,
    ) -> BoxFuture<'a, Result<bool, ReviewError>>;
}

/// Asks for permissions. Whether the session exists plays no part, so that the time an answer takes does not tell it.
pub struct Authorizer {
    reviewer: Arc<dyn AccessReviewer>,
    cache: ReviewCache<(TokenHash, Box<str>), ()>,
}

impl Authorizer {
    /// An authorizer that asks `reviewer` what it does not know.
    pub fn new(reviewer: Arc<dyn AccessReviewer>, metrics: Metrics) -> Self {
        Self { reviewer, cache: ReviewCache::new(ReviewKind::Access, metrics) }
    }

    /// Whether the caller may use a session whoever its subject is.
    ///
    /// # Errors
    /// [`Refusal::ReviewUnavailable`] when it cannot be known.
    pub async fn may_connect(&self, caller: &Caller, path: &SessionPath<'_>) -> Result<bool, Refusal> {
        let key = (caller.token, path.key().into_boxed_str());
        let review = || {
            let (reviewer, user) = (self.reviewer.clone(), caller.user.clone());
            let (namespace, session) = (path.namespace.to_owned(), path.session.to_owned());
            async move {
                let may = reviewer.may_connect(&user, &namespace, &session).await?;
                Ok(Answer { value: may.then_some(()), fresh: FRESH, held: HELD })
            }
        };
        let known = self.cache.get(key, review).await;
        known.map(|may| may.is_some()).map_err(|_| Refusal::ReviewUnavailable)
    }
}
