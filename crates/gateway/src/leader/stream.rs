//! One stream from the leading operator: where slots are, then what changes.

use super::Leader;
use crate::index::Index;
use crate::metrics::Metrics;
use axum::body::Body;
use berth_net::backoff::Doubling;
use berth_net::client::{PeerClient, PeerError, Target};
use berth_net::lines::{LineError, Lines};
use berth_wire::PlacementLine;
use http::{Request, StatusCode};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long the head of the answer may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// First and longest pause between attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("it gave no answer")]
    Silent,
    #[error("another one leads now")]
    Moved,
    #[error(transparent)]
    Line(#[from] LineError),
}

/// What the stream is read with and into.
pub struct Placements {
    /// Shows the gateway's identity.
    pub client: PeerClient,
    /// Takes what is said.
    pub index: Arc<Index>,
    /// Counts streams.
    pub metrics: Metrics,
}

impl Placements {
    /// Follows whoever leads until cancelled, beginning anew whenever the stream ends, at once when another one leads. What
    /// a stream said is forgotten with its end.
    pub async fn follow(&self, leader: &Leader, cancel: CancellationToken) {
        let work = async {
            // Places of sessions that are not known yet would be told by the thousand.
            self.index.synced().await;
            self.follow_forever(leader).await;
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = work => {}
        }
    }

    async fn follow_forever(&self, leader: &Leader) {
        let mut addresses = leader.follow();
        let mut pauses = Doubling::new(PAUSES.0, PAUSES.1);
        loop {
            let address = *addresses.borrow_and_update();
            // The sender lives as long as `leader`, so waiting for a change cannot fail.
            let Some(address) = address else {
                let _ = addresses.changed().await;
                continue;
            };
            let mut synced = false;
            let error = tokio::select! {
                error = self.read(address, &mut synced) => error,
                _ = addresses.changed() => StreamError::Moved,
            };
            self.index.forget_placements();
            self.metrics.placements_lost();
            if synced {
                tracing::info!(%address, %error, "stream of placements is down; status says the places meanwhile");
            } else {
                tracing::debug!(%address, %error, "no stream of placements");
            }
            if matches!(error, StreamError::Moved) {
                pauses.start_anew();
                continue;
            }
            // A stream that told everything was a good one, however it ended.
            if synced {
                pauses.start_anew();
            }
            let _ = tokio::time::timeout(pauses.pause(), addresses.changed()).await;
        }
    }

    /// Reads one stream to its end.
    async fn read(&self, address: SocketAddr, synced: &mut bool) -> StreamError {
        match self.lines(address).await {
            Ok(lines) => self.take(address, lines, synced).await,
            Err(error) => error,
        }
    }

    async fn lines(&self, address: SocketAddr) -> Result<Lines<PlacementLine>, StreamError> {
        let request = Request::get("/v1/placements?watch=true").body(Body::empty()).unwrap_or_default();
        let target = Target::operator(address);
        let asked = tokio::time::timeout(HEAD_TIMEOUT, self.client.request(&target, request));
        let answer = asked.await.map_err(|_| StreamError::Silent)??;
        if answer.status() != StatusCode::OK {
            return Err(StreamError::Status(answer.status()));
        }
        Ok(Lines::new(answer.into_body()))
    }

    async fn take(
        &self,
        from: SocketAddr,
        mut lines: Lines<PlacementLine>,
        synced: &mut bool,
    ) -> StreamError {
        let mut up = None;
        loop {
            match lines.next().await {
                Ok(PlacementLine::Session(placements)) => self.index.place(&placements),
                Ok(PlacementLine::Synced) => {
                    *synced = true;
                    up.get_or_insert_with(|| self.metrics.placements_stream());
                    tracing::info!(address = %from, "stream of placements is up");
                }
                Ok(PlacementLine::Alive) => {}
                Err(error) => return error.into(),
            }
        }
    }
}
