//! Requests to one sidecar: hold a session, end a session. Each is idempotent and bounded in time.

use crate::fleet::Fleet;
use crate::fleet::hung::{Admission, HANGS, PROBE};
use crate::metrics::{Result as Outcome, Verb};
use axum::body::Body;
use berth_net::client::{PeerError, Target};
use berth_plan::text::{ERROR_BYTES, clip};
use berth_wire::{EndReport, EndRequest, Refusal, RefusalReason, SessionReport, SessionSpec, TERM_HEADER};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How long an answer may take, beyond the time that the request itself asks for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Why a request to a sidecar failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The sidecar says no, for a reason.
    #[error("the sidecar refused: {}", .0.message)]
    Refused(Refusal),
    /// The sidecar cannot act on what it was sent, in its words; asking again changes nothing.
    #[error("the sidecar cannot act on this: {0}")]
    Invalid(String),
    /// The sidecar obeys nobody any more, and what people have to do about it.
    #[error("{0}")]
    Locked(String),
    /// Nothing was sent.
    #[error("{0}")]
    Unreachable(String),
    /// It may have been acted on.
    #[error("{0}")]
    NoAnswer(String),
}

impl Fleet {
    /// Asks the sidecar of a pod to hold a session as `spec` says.
    pub async fn put(&self, pod_uid: &str, spec: &SessionSpec) -> Result<SessionReport, ControlError> {
        let body = serde_json::to_vec(spec).map_err(|error| ControlError::Unreachable(error.to_string()))?;
        let answer =
            self.ask(pod_uid, Verb::Put, &format!("/v1/sessions/{}", spec.uid), body, ANSWER_TIMEOUT).await;
        let report: SessionReport = self.counted(Verb::Put, answer.and_then(|(_, body)| parsed(&body)))?;
        self.note(pod_uid, report.clone());
        Ok(report)
    }

    /// Asks the sidecar of a pod to end a session, and waits for the end as long as `end` says.
    pub async fn end(
        &self,
        pod_uid: &str,
        session_uid: &str,
        end: EndRequest,
    ) -> Result<EndReport, ControlError> {
        self.end_within(pod_uid, session_uid, end, Duration::MAX).await
    }

    /// The same of a sidecar that has to answer `within` that time at the most.
    pub async fn end_within(
        &self,
        pod_uid: &str,
        session_uid: &str,
        end: EndRequest,
        within: Duration,
    ) -> Result<EndReport, ControlError> {
        let path = format!(
            "/v1/sessions/{session_uid}?drainMillis={}&closeMillis={}&waitMillis={}",
            end.drain_millis, end.close_millis, end.wait_millis
        );
        let timeout = ANSWER_TIMEOUT.saturating_add(Duration::from_millis(end.wait_millis)).min(within);
        let answer = self.ask(pod_uid, Verb::Delete, &path, Vec::new(), timeout).await;
        let report: EndReport = self.counted(Verb::Delete, answer.and_then(|(_, body)| parsed(&body)))?;
        self.note_end(pod_uid, session_uid, report);
        Ok(report)
    }

    async fn ask(
        &self,
        pod_uid: &str,
        verb: Verb,
        path: &str,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<(StatusCode, Bytes), ControlError> {
        let target = self
            .target_of(pod_uid)
            .ok_or_else(|| ControlError::Unreachable("the pod does not run".to_owned()))?;
        let timeout = match self.admit(pod_uid, Instant::now()) {
            Admission::AsAlways => timeout,
            Admission::Probe => timeout.min(PROBE),
            Admission::NotNow => {
                let text = format!("the sidecar at {} gave no answer before", target.address);
                return Err(ControlError::Unreachable(text));
            }
        };
        let deadline = Instant::now() + timeout;
        let _permit = timeout_at(deadline, self.shared.requests.acquire()).await.map_err(|_| {
            ControlError::Unreachable("too many requests to other sidecars are under way".to_owned())
        })?;
        let begun = Instant::now();
        let response =
            timeout_at(deadline, self.send(&target, verb, path, body)).await.unwrap_or_else(|_| {
                let (address, seconds) = (target.address, timeout.as_secs());
                Err(ControlError::NoAnswer(format!("the sidecar at {address} gave no answer in {seconds}s")))
            });
        let now = Instant::now();
        match response {
            Ok((status, body)) => {
                self.answers(pod_uid, now);
                self.understood(pod_uid, &target, status, body)
            }
            Err(error) => {
                if now.duration_since(begun) >= HANGS {
                    self.hangs(pod_uid, begun, now);
                }
                Err(error)
            }
        }
    }

    async fn send(
        &self,
        target: &Target,
        verb: Verb,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Bytes), ControlError> {
        let method = match verb {
            Verb::Put => Method::PUT,
            Verb::Delete => Method::DELETE,
            Verb::Watch => Method::GET,
        };
        let request = self.request(method, path, Body::from(body))?;
        let response =
            self.shared.client.request(target, request).await.map_err(|error| unreachable(&error))?;
        let status = response.status();
        Ok((status, whole(response).await?))
    }

    /// What an answer comes to.
    fn understood(
        &self,
        pod_uid: &str,
        target: &Target,
        status: StatusCode,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), ControlError> {
        match status {
            StatusCode::OK | StatusCode::CREATED | StatusCode::ACCEPTED => Ok((status, body)),
            StatusCode::CONFLICT => Err(self.refused(pod_uid, parsed(&body)?)),
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => {
                Err(ControlError::Invalid(clip(String::from_utf8_lossy(&body).trim(), ERROR_BYTES)))
            }
            other => {
                Err(ControlError::NoAnswer(format!("the sidecar at {} answered {other}", target.address)))
            }
        }
    }

    /// A request under the term of this process; none is made when it does not lead any more.
    pub(super) fn request(
        &self,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<Request<Body>, ControlError> {
        let term = self.shared.lead.term().map_err(|error| ControlError::Unreachable(error.to_string()))?;
        Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(TERM_HEADER, term)
            .body(body)
            .map_err(|error| ControlError::Unreachable(error.to_string()))
    }

    /// The refusal in a 409.
    pub(super) async fn refusal(&self, pod_uid: &str, response: Response<Incoming>) -> ControlError {
        match whole(response).await.and_then(|body| parsed(&body)) {
            Ok(refusal) => self.refused(pod_uid, refusal),
            Err(error) => error,
        }
    }

    /// What a refusal comes to. One of the term says nothing about the session: whoever leads asks again.
    fn refused(&self, pod_uid: &str, refusal: Refusal) -> ControlError {
        if refusal.reason != RefusalReason::OldTerm {
            return ControlError::Refused(refusal);
        }
        let term = refusal.term.unwrap_or(0);
        if self.shared.lead.outranked(term, pod_uid) {
            return ControlError::NoAnswer(refusal.message);
        }
        self.note_lock(pod_uid, term);
        ControlError::Locked(self.lock_of(pod_uid).map_or(refusal.message, |trouble| trouble.message))
    }

    fn counted<T>(&self, verb: Verb, answer: Result<T, ControlError>) -> Result<T, ControlError> {
        let outcome = match &answer {
            Ok(_) => Outcome::Ok,
            Err(ControlError::Refused(_) | ControlError::Invalid(_) | ControlError::Locked(_)) => {
                Outcome::Refused
            }
            Err(_) => Outcome::Error,
        };
        self.shared.metrics.control(verb, outcome);
        answer
    }
}

async fn whole(response: Response<Incoming>) -> Result<Bytes, ControlError> {
    let collected = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
    let broken = |error| ControlError::NoAnswer(format!("the answer of the sidecar broke off: {error}"));
    Ok(collected.map_err(broken)?.to_bytes())
}

fn unreachable(error: &PeerError) -> ControlError {
    if error.is_before_send() {
        ControlError::Unreachable(error.to_string())
    } else {
        ControlError::NoAnswer(error.to_string())
    }
}

fn parsed<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, ControlError> {
    serde_json::from_slice(body)
        .map_err(|error| ControlError::NoAnswer(format!("the sidecar's answer cannot be read: {error}")))
}
