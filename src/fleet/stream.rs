//! One stream from one sidecar: what it holds, then what changes.

use crate::fleet::Fleet;
use crate::metrics::{Result as Outcome, Verb};
use axum::body::Body;
use berth_net::client::Target;
use berth_wire::WatchLine;
use bytes::{Buf, BytesMut};
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::collections::HashSet;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A sidecar says something at least every ten seconds; one that is silent for longer than this is asked anew.
const SILENCE: Duration = Duration::from_secs(25);
/// How long the head of the answer may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// First and longest pause between attempts; each is twice the one before.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Longest line that is read.
const MAX_LINE_BYTES: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("{0}")]
    Peer(#[from] berth_net::client::PeerError),
    #[error("the sidecar answered {0}")]
    Status(http::StatusCode),
    #[error("the sidecar said nothing for too long")]
    Silent,
    #[error("the stream ended")]
    Ended,
    #[error("the stream broke off: {0}")]
    Broken(#[from] hyper::Error),
    #[error("a line is longer than {MAX_LINE_BYTES} bytes")]
    Long,
    #[error("a line cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
}

/// Follows a pod until `cancel`, beginning anew whenever the stream ends.
pub async fn follow(fleet: Fleet, pod_uid: String, target: Target, cancel: CancellationToken) {
    let mut pause = BACKOFF.0;
    loop {
        let mut synced = false;
        let ended = tokio::select! {
            () = cancel.cancelled() => return,
            ended = read(&fleet, &pod_uid, &target, &mut synced) => ended,
        };
        fleet.lost(&pod_uid);
        fleet.shared.metrics.control(Verb::Watch, Outcome::Error);
        if let Err(error) = ended {
            tracing::debug!(pod_uid, address = %target.address, %error, "stream of a sidecar is down");
        }
        // A stream that told everything was a good one, however it ended.
        pause = if synced { BACKOFF.0 } else { (pause * 2).min(BACKOFF.1) };
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn read(fleet: &Fleet, pod_uid: &str, target: &Target, synced: &mut bool) -> Result<(), StreamError> {
    let request = Request::get("/v1/sessions?watch=true").body(Body::empty()).unwrap_or_default();
    let asked = fleet.shared.client.request(target, request);
    let response = tokio::time::timeout(HEAD_TIMEOUT, asked).await.map_err(|_| StreamError::Silent)??;
    if !response.status().is_success() {
        return Err(StreamError::Status(response.status()));
    }
    fleet.shared.metrics.control(Verb::Watch, Outcome::Ok);
    let mut lines = Lines { body: response.into_body(), buffer: BytesMut::new() };
    let mut told = HashSet::new();
    loop {
        match lines.next().await? {
            WatchLine::Session(report) => {
                if !*synced {
                    told.insert(report.uid.clone());
                }
                fleet.reported(pod_uid, &report);
            }
            WatchLine::Synced { .. } => {
                fleet.synced(pod_uid, &std::mem::take(&mut told));
                *synced = true;
            }
            WatchLine::Alive => {}
        }
    }
}

/// Lines of a body, bounded in length and in the time between them.
struct Lines {
    body: Incoming,
    buffer: BytesMut,
}

impl Lines {
    async fn next(&mut self) -> Result<WatchLine, StreamError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end);
                self.buffer.advance(1);
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return Ok(serde_json::from_slice(&line)?);
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                return Err(StreamError::Long);
            }
            let frame =
                tokio::time::timeout(SILENCE, self.body.frame()).await.map_err(|_| StreamError::Silent)?;
            let frame = frame.ok_or(StreamError::Ended)??;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}
