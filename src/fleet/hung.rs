//! Sidecars that take requests and do not answer. Few of them would keep every worker waiting, and with it the sessions of all other
//! pods: so one that did not answer in time is asked by one request at a time, a short one, until it says something.

use crate::fleet::Fleet;
use std::time::Duration;
use tokio::time::Instant;

/// A request that fails after so long without an answer, or later, says that the sidecar hangs. A failure that comes at once holds
/// nobody up.
pub(super) const HANGS: Duration = Duration::from_secs(2);
/// How long after such a request the next one is sent.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// How long that one may take at most.
pub(super) const PROBE: Duration = Duration::from_secs(1);

/// Whether a sidecar may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// It answers, as far as is known.
    AsAlways,
    /// It hangs, and this request finds out whether it still does.
    First,
    /// It hangs.
    NotNow,
}

impl Fleet {
    /// Whether a request may be sent to the sidecar of a pod now. One that hangs is asked again after a pause, by whoever comes first.
    pub(super) fn may_ask(&self, pod_uid: &str) -> Asked {
        let now = Instant::now();
        self.with(|pods| match pods.get_mut(pod_uid).and_then(|sidecar| sidecar.hung_until.as_mut()) {
            None => Asked::AsAlways,
            Some(until) if now < *until => Asked::NotNow,
            Some(until) => {
                *until = now + PAUSE;
                Asked::First
            }
        })
    }

    /// The sidecar of a pod did not answer in time.
    pub(super) fn hangs(&self, pod_uid: &str) {
        let until = Instant::now() + PAUSE;
        self.with(|pods| {
            if let Some(sidecar) = pods.get_mut(pod_uid) {
                sidecar.hung_until = Some(until);
            }
        });
    }

    /// The sidecar of a pod says something, by an answer or on its stream.
    pub(super) fn answers(&self, pod_uid: &str) {
        self.with(|pods| {
            if let Some(sidecar) = pods.get_mut(pod_uid) {
                sidecar.hung_until = None;
            }
        });
    }
}
