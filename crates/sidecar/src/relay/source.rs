//! Keeps the upstream's own stream, the answer to a GET, as long as clients listen. [`crate::session`] decides when it is asked
//! for; one task of a session does it, and ends when nobody listens any more.

use super::fan;
use super::resubscribe::resubscribe;
use crate::budget::{COPIES, NoRoom};
use crate::fault;
use crate::session::{Keep, Offer, Session, StreamStep};
use crate::upstream::{Body, Carried, Connection, Loss, REFUSAL_LIMIT, SendError, retry_after, session_loss};
use berth_mcp::{header, sse};
use berth_net::metrics::Held;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::sleep_until;

/// After so many events of one chunk those who read get a turn.
const BATCH: usize = 64;

/// The one who keeps the stream.
struct Source {
    session: Arc<Session>,
    /// Number of the connection that `last` is of.
    epoch: u64,
    /// Id of the last event.
    last: Option<String>,
    /// What was carried when the upstream refused the credential.
    refused: Option<Arc<HeaderMap>>,
}

/// Keeps the stream until nobody listens or the session's end begins.
pub(super) async fn keep(session: Arc<Session>) {
    let mut source = Source { session: session.clone(), epoch: 0, last: None, refused: None };
    let mut kept = Kept(Some(session.clone()));
    tokio::select! {
        // Whoever listens from now on keeps it.
        () = source.run() => kept.0 = None,
        () = session.fenced().cancelled() => {}
    }
}

/// Says that nobody keeps the stream any more if that was not said, in a panic too.
struct Kept(Option<Arc<Session>>);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            session.listening.abandon();
        }
    }
}

impl Source {
    async fn run(&mut self) {
        let session = self.session.clone();
        let listening = &session.listening;
        fault::point("listen");
        loop {
            match listening.step(&session, self.may_ask()) {
                StreamStep::Stop => return,
                StreamStep::Rest => listening.changed().await,
                StreamStep::Wait(until) => tokio::select! {
                    () = sleep_until(until) => {}
                    () = listening.changed() => {}
                },
                StreamStep::Open => {
                    let asked = self.open().await;
                    listening.ended(asked, session.random());
                }
            }
        }
    }

    /// Whether the credential has changed since it was refused, if it was.
    fn may_ask(&mut self) -> bool {
        match &self.session.desired().carried {
            Carried::Withheld(_) => false,
            Carried::Headers(now) => {
                self.refused.take_if(|refused| *refused != *now);
                self.refused.is_none()
            }
        }
    }

    /// Asks for the stream and reads it to its end; gives the pause that the upstream asks for.
    async fn open(&mut self) -> Option<Duration> {
        let session = self.session.clone();
        let connection = session.established()?;
        if connection.epoch != self.epoch {
            (self.epoch, self.last) = (connection.epoch, None);
            if connection.began_anew() && session.listening.begins(connection.epoch) {
                session.spawn(resubscribe(session.clone(), connection.clone()));
            }
        }
        tokio::select! {
            asked = self.ask(&connection) => asked,
            () = unwanted(&session, connection.epoch) => None,
        }
    }

    async fn ask(&mut self, connection: &Arc<Connection>) -> Option<Duration> {
        let session = self.session.clone();
        let carried = session.desired().carried.clone();
        let mut response = match connection.listen(self.last.as_deref()).await {
            Ok(response) => response,
            Err(
                SendError::Lost(_) | SendError::HeadTooLarge | SendError::NotSent(_) | SendError::Withheld(_),
            ) => return None,
        };
        let status = response.status();
        if status.is_success() && header::is_event_stream(response.headers().get(CONTENT_TYPE)) {
            session.listening.answered(connection.epoch, Offer::Made);
            let _open = Held::new(&session.shared.metrics.upstream_streams);
            let mut asked = None;
            if let Err(reason) = self.read(connection, response.into_body(), &mut asked).await {
                tracing::warn!(session = %session.uid, %reason, "the upstream's stream is closed for a while");
            }
            return asked;
        }
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            if let Carried::Headers(headers) = carried {
                self.refused = Some(headers);
            }
            return None;
        }
        let is_ill = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
        if is_ill || status == StatusCode::TOO_MANY_REQUESTS {
            return retry_after(response.headers(), SystemTime::now());
        }
        let text = response.body_mut().text(REFUSAL_LIMIT).await.unwrap_or_default();
        if let Some(loss) = session_loss(status, &text).filter(|_| connection.has_session_id()) {
            // The next request that needs the upstream opens a new one.
            session.lost(connection, loss == Loss::Gone);
            return None;
        }
        session.listening.answered(connection.epoch, Offer::Declined);
        for scope in session.scopes() {
            scope.close_streams();
        }
        None
    }

    /// Passes on what the stream says until it ends; `asked` becomes the pause that the upstream asks for. An event for which there is
    /// no memory now is read again later, as the first after the last one that was passed on; one that the whole memory could not
    /// hold is skipped.
    async fn read(
        &mut self,
        connection: &Arc<Connection>,
        mut body: Body,
        asked: &mut Option<Duration>,
    ) -> Result<(), NoRoom> {
        let session = self.session.clone();
        let budget = &session.shared.budget;
        let limit = usize::try_from(session.desired().limits.response_bytes).unwrap_or(usize::MAX);
        let mut decoder = sse::Decoder::new(limit.min(budget.whole() / COPIES));
        let mut held = budget.charge();
        let mut batch = 0_usize;
        while let Ok(Some(chunk)) = body.chunk().await {
            // The largest event and the chunk that ends it may be a little more than there is.
            held.cover((COPIES * (decoder.held() + chunk.len())).min(budget.whole()))?;
            decoder.feed(&chunk);
            while let Some(event) = decoder.next_event() {
                let id = match event {
                    Ok(event) => {
                        let mut held = held.take();
                        held.fit(COPIES * event.data.len())?;
                        if !event.data.is_empty() {
                            fan::dispatch(&session, connection, event.data, held);
                        }
                        *asked = event.retry_millis.map(Duration::from_millis).or(*asked);
                        event.id
                    }
                    Err(error) => {
                        tracing::warn!(session = %session.uid, %error, "the upstream's stream says what is skipped");
                        error.id
                    }
                };
                self.last = id.or(self.last.take()).filter(|id| !id.is_empty());
                batch += 1;
                if batch.is_multiple_of(BATCH) {
                    tokio::task::yield_now().await;
                }
            }
            held.fit(COPIES * decoder.held())?;
        }
        Ok(())
    }
}

/// Returns when the stream of the connection `epoch` is to be closed.
async fn unwanted(session: &Session, epoch: u64) {
    loop {
        match session.listening.keep(session, epoch) {
            Keep::Close => return,
            Keep::Open => session.listening.changed().await,
            Keep::Until(until) => tokio::select! {
                () = sleep_until(until) => {}
                () = session.listening.changed() => {}
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::session::Desired;

    #[tokio::test]
    async fn after_a_panic_the_next_who_listens_keeps_the_stream() {
        let shared = fixture::shared();
        let desired = Desired::new(fixture::spec("Bearer first"), &shared.dialer).unwrap();
        let session = Session::new("s".into(), desired, shared);
        let scope = session.scope(&session.new_client("{}").unwrap().token).unwrap();
        let (first, to_keep) = session.listen(scope.clone());
        assert!(to_keep);
        let (_, to_keep) = session.listen(scope.clone());
        assert!(!to_keep, "the first does");
        fault::arm("listen");
        assert!(tokio::spawn(keep(session.clone())).await.unwrap_err().is_panic());
        let (_, to_keep) = session.listen(scope.clone());
        assert!(to_keep);
        drop(first);
        keep(session.clone()).await;
        let (_, to_keep) = session.listen(scope);
        assert!(to_keep, "one that ended well says so too");
    }
}
