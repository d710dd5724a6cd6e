//! One stream from one sidecar: what it holds, then what changes.

use crate::fleet::{ControlError, Fleet};
use crate::metrics::{Result as Outcome, Verb};
use axum::body::Body;
use berth_net::backoff::Doubling;
use berth_net::client::Target;
use berth_net::lines::{LineError, Lines};
use berth_wire::WatchLine;
use http::{Method, StatusCode};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long the head of the answer may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// First and longest pause between attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("{0}")]
    Peer(#[from] berth_net::client::PeerError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("the sidecar answered {0}")]
    Status(StatusCode),
    #[error("the sidecar gave no answer")]
    Silent,
    #[error(transparent)]
    Line(#[from] LineError),
}

/// What one stream has told.
struct Told {
    /// Whether it has told everything.
    everything: bool,
    /// When it said something last, or was begun.
    last: Instant,
}

/// Follows a pod until `cancel`, beginning anew whenever the stream ends.
pub async fn follow(fleet: Fleet, pod_uid: String, target: Target, cancel: CancellationToken) {
    let mut pauses = Doubling::new(BACKOFF.0, BACKOFF.1);
    loop {
        let mut told = Told { everything: false, last: Instant::now() };
        let ended = tokio::select! {
            () = cancel.cancelled() => return,
            ended = read(&fleet, &pod_uid, &target, &mut told) => ended,
        };
        fleet.lost(&pod_uid, told.last);
        fleet.shared.metrics.control(Verb::Watch, Outcome::Error);
        if let Err(error) = ended {
            tracing::debug!(pod_uid, address = %target.address, %error, "stream of a sidecar is down");
        }
        // A stream that told everything was a good one, however it ended.
        if told.everything {
            pauses.start_anew();
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(pauses.pause()) => {}
        }
    }
}

async fn read(fleet: &Fleet, pod_uid: &str, target: &Target, told: &mut Told) -> Result<(), StreamError> {
    let request = fleet.request(Method::GET, "/v1/sessions?watch=true", Body::empty())?;
    let asked = fleet.shared.client.request(target, request);
    let response = tokio::time::timeout(HEAD_TIMEOUT, asked).await.map_err(|_| StreamError::Silent)??;
    match response.status() {
        status if status.is_success() => {}
        StatusCode::CONFLICT => return Err(fleet.refusal(pod_uid, response).await.into()),
        status => return Err(StreamError::Status(status)),
    }
    fleet.shared.metrics.control(Verb::Watch, Outcome::Ok);
    let mut lines = Lines::new(response.into_body());
    let mut sessions = HashSet::new();
    loop {
        let line = lines.next().await?;
        told.last = Instant::now();
        fleet.answers(pod_uid);
        match line {
            WatchLine::Session(report) => {
                if !told.everything {
                    sessions.insert(report.uid.clone());
                }
                fleet.reported(pod_uid, &report);
            }
            WatchLine::Synced { .. } => {
                fleet.synced(pod_uid, &std::mem::take(&mut sessions));
                told.everything = true;
            }
            WatchLine::Alive => {}
        }
    }
}
