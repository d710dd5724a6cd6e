//! Asks the leading operator to look at a session that its sidecar does not hold. What comes of it is seen in the index:
//! nobody waits for the answer.

use super::Leader;
use axum::body::Body;
use berth_net::client::{PeerClient, Target};
use http::Request;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long the leader may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Most sessions that are asked for at once: after that the leader has enough to look at.
const IN_FLIGHT: usize = 256;

/// Asks for sessions, for each one once at a time; clones share what is in flight.
#[derive(Clone)]
pub struct Waker {
    client: PeerClient,
    leader: Leader,
    asking: Arc<Mutex<HashSet<Box<str>>>>,
}

impl Waker {
    /// One that asks `leader` with the identity of `client`.
    pub fn new(client: PeerClient, leader: Leader) -> Self {
        Self { client, leader, asking: Arc::default() }
    }

    /// Asks in the background; without a known leader not at all.
    pub fn wake(&self, session_uid: &str) {
        let Some(address) = self.leader.address() else { return };
        let request = Request::post(format!("/v1/sessions/{session_uid}/wake")).body(Body::empty());
        let (Ok(request), Some(asking)) = (request, self.begin(session_uid)) else { return };
        let client = self.client.clone();
        tokio::spawn(async move {
            let target = Target::operator(address);
            let (session, asked) = (&asking.session_uid, client.request(&target, request));
            match tokio::time::timeout(TIMEOUT, asked).await {
                Ok(Ok(answer)) => tracing::debug!(%session, status = %answer.status(), "leader asked"),
                Ok(Err(error)) => tracing::debug!(%session, %error, "leader cannot be asked"),
                Err(_) => tracing::debug!(%session, "leader asked, and no answer in time"),
            }
        });
    }

    fn begin(&self, session_uid: &str) -> Option<Asking> {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = asking.len() < IN_FLIGHT && asking.insert(session_uid.into());
        begins.then(|| Asking { all: self.asking.clone(), session_uid: session_uid.into() })
    }
}

/// One session that is asked for until this is dropped.
struct Asking {
    all: Arc<Mutex<HashSet<Box<str>>>>,
    session_uid: Box<str>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.session_uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waker() -> Waker {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
        let (certificate, key) = (certificate.as_bytes(), key.serialize_pem());
        let identity = berth_net::identity::Identity::from_pem(certificate, key.as_bytes(), certificate);
        Waker::new(PeerClient::new(identity.unwrap()), Leader::default())
    }

    #[tokio::test]
    async fn a_session_is_asked_for_once_at_a_time_and_no_more_than_some_at_once() {
        let waker = waker();
        let first = waker.begin("1");
        assert!(first.is_some() && waker.begin("1").is_none() && waker.clone().begin("1").is_none());
        drop(first);
        let mut asking: Vec<_> = (0..IN_FLIGHT).map(|uid| waker.begin(&uid.to_string()).unwrap()).collect();
        assert!(waker.begin("one more").is_none());
        asking.pop();
        assert!(waker.begin("one more").is_some());
    }

    #[tokio::test]
    async fn without_a_leader_nobody_is_asked() {
        let waker = waker();
        waker.wake("1");
        assert!(waker.asking.lock().unwrap().is_empty());
    }
}
