//! Reviews as the API server would answer them, by a script.

use berth_gateway::authenticate::{TokenReviewer, User};
use berth_gateway::authorize::AccessReviewer;
use berth_gateway::review::ReviewError;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A token `token-NAME` belongs to the user NAME; the user `admin` may connect everywhere.
#[derive(Default)]
pub struct Reviews {
    away: AtomicBool,
    tokens: Mutex<Vec<String>>,
    accesses: Mutex<Vec<String>>,
}

impl Reviews {
    pub fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }

    /// The tokens that were reviewed, in order.
    pub fn tokens(&self) -> Vec<String> {
        self.tokens.lock().unwrap().clone()
    }

    /// The accesses that were reviewed, in order, as `user namespace/session`.
    pub fn accesses(&self) -> Vec<String> {
        self.accesses.lock().unwrap().clone()
    }

    fn check_away(&self) -> Result<(), ReviewError> {
        if self.away.load(Ordering::SeqCst) {
            Err(ReviewError::Api("connection refused".into()))
        } else {
            Ok(())
        }
    }
}

impl TokenReviewer for Reviews {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, ReviewError>> {
        async move {
            self.tokens.lock().unwrap().push(token.to_owned());
            // Others that ask at the same time get their turn while this review is in flight.
            tokio::task::yield_now().await;
            self.check_away()?;
            Ok(token.strip_prefix("token-").map(|name| User { name: name.into(), ..User::default() }))
        }
        .boxed()
    }
}

impl AccessReviewer for Reviews {
    fn may_connect<'a>(
        &'a self,
        user: &'a User,
        namespace: &'a str,
        session: &'a str,
    ) -> BoxFuture<'a, Result<bool, ReviewError>> {
        async move {
            self.accesses.lock().unwrap().push(format!("{} {namespace}/{session}", user.name));
            self.check_away()?;
            Ok(user.name == "admin")
        }
        .boxed()
    }
}
