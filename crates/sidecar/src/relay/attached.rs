//! A call that runs as a part of its client's request, and without it once the client has left.
//!
//! Most calls are over before anything else happens to them: a task for each would only cost a change of threads. One that is
//! not over when this is dropped becomes a task of the session's.

use crate::session::Session;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A call with its client.
pub(super) struct Attached {
    session: Arc<Session>,
    /// None once it is over.
    call: Option<BoxFuture<'static, ()>>,
}

impl Attached {
    /// Attaches `call`, which is a part of `session`. A panic in it is its end and nobody else's.
    pub(super) fn new(session: Arc<Session>, call: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { session, call: Some(AssertUnwindSafe(call).catch_unwind().map(drop).boxed()) }
    }

    /// Lets the call run until it gives its answer; none if it ends without.
    pub(super) async fn until<T>(mut self, mut answer: oneshot::Receiver<T>) -> Option<T> {
        if let Some(call) = &mut self.call {
            tokio::select! {
                biased;
                () = call => self.call = None,
                answer = &mut answer => return answer.ok(),
            }
        }
        answer.await.ok()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Without a runtime the process ends, and the call with it.
        if let Some(call) = self.call.take()
            && Handle::try_current().is_ok()
        {
            self.session.spawn(call);
        }
    }
}
