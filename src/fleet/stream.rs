//! One stream from one sidecar: what it holds, then what changes.

use crate::fleet::{ControlError, Fleet};
use crate::metrics::{Result as Outcome, Verb};
use axum::body::Body;
use berth_net::backoff::Doubling;
use berth_net::client::Target;
use berth_net::lines::{LineError, Lines};
use berth_wire::WatchLine;
use http::{Method, Response, StatusCode};
use hyper::body::Incoming;
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// How long the head of the answer may take, and all of an answer that is a refusal.
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
    let opened = timeout(HEAD_TIMEOUT, open(fleet, pod_uid, target)).await;
    let response = opened.map_err(|_| StreamError::Silent)??;
    fleet.shared.metrics.control(Verb::Watch, Outcome::Ok);
    let mut lines = Lines::new(response.into_body());
    let mut sessions = HashSet::new();
    loop {
        let line = lines.next().await?;
        told.last = Instant::now();
        fleet.answers(pod_uid, told.last);
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

/// The stream from its head on, or what the sidecar says instead.
async fn open(fleet: &Fleet, pod_uid: &str, target: &Target) -> Result<Response<Incoming>, StreamError> {
    let request = fleet.request(Method::GET, "/v1/sessions?watch=true", Body::empty())?;
    let response = fleet.shared.client.request(target, request).await?;
    match response.status() {
        status if status.is_success() => Ok(response),
        StatusCode::CONFLICT => Err(fleet.refusal(pod_uid, response).await.into()),
        status => Err(StreamError::Status(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ca::Purpose;
    use crate::fixture;
    use crate::fleet::stand::pod;
    use axum::{Router, extract::State, routing::get};
    use berth_wire::SIDECAR_PORT;
    use futures::stream;
    use std::convert::Infallible;
    use tokio::net::TcpListener;
    use tokio::sync::watch;

    /// A refusal of which nothing comes but the head.
    async fn refuse_without_a_word(State(asked): State<watch::Sender<usize>>) -> (StatusCode, Body) {
        asked.send_modify(|times| *times += 1);
        (StatusCode::CONFLICT, Body::from_stream(stream::pending::<Result<&str, Infallible>>()))
    }

    #[tokio::test]
    async fn a_refusal_that_does_not_come_to_its_end_is_given_up_and_the_stream_asked_for_again() {
        let (ctx, _) = fixture::context(|_| fixture::failure(404, "NotFound", "no")).await;
        let (asked, mut times) = watch::channel(0);
        let app = Router::new().route("/v1/sessions", get(refuse_without_a_word)).with_state(asked);
        let identity = ctx.ca.identity_for_test(&Purpose::Sidecar { server_uid: "server".into() });
        let listener = TcpListener::bind(("127.0.77.37", SIDECAR_PORT)).await.unwrap();
        let cancel = CancellationToken::new();
        let _served = cancel.clone().drop_guard();
        tokio::spawn(berth_net::serve::serve(listener, Some(identity), app, 8, cancel));
        ctx.fleet.follow(&pod("127.0.77.37"));
        times.wait_for(|times| *times == 1).await.unwrap();
        // What is left is a wait, which the clock need not be awaited for.
        tokio::time::pause();
        let again = timeout(10 * HEAD_TIMEOUT, times.wait_for(|times| *times == 2)).await;
        again.expect("it is asked again").unwrap();
    }
}
