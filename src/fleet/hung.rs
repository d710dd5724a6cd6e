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

/// Whether a request is let through to a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Yes: it answers, as far as is known.
    AsAlways,
    /// Yes, to find out whether it still hangs.
    Probe,
    /// No: it hangs.
    NotNow,
}

impl Fleet {
    /// Lets a request through to the sidecar of a pod at `now`, or not. One that hangs is asked again after a pause, by whoever comes
    /// first: that takes the probe.
    pub(super) fn admit(&self, pod_uid: &str, now: Instant) -> Admission {
        self.with(|pods| match pods.get_mut(pod_uid).and_then(|sidecar| sidecar.hung_until.as_mut()) {
            None => Admission::AsAlways,
            Some(until) if now < *until => Admission::NotNow,
            Some(until) => {
                *until = now + PAUSE;
                Admission::Probe
            }
        })
    }

    /// A request that was sent to the sidecar of a pod at `asked` had no answer at `now`. If it has said something since, that one
    /// request is slow, and the sidecar does not hang.
    pub(super) fn hangs(&self, pod_uid: &str, asked: Instant, now: Instant) {
        self.with(|pods| {
            if let Some(sidecar) = pods.get_mut(pod_uid).filter(|sidecar| sidecar.heard <= asked) {
                sidecar.hung_until = Some(now + PAUSE);
            }
        });
    }

    /// The sidecar of a pod says something at `now`, by an answer or on its stream.
    pub(super) fn answers(&self, pod_uid: &str, now: Instant) {
        self.with(|pods| {
            if let Some(sidecar) = pods.get_mut(pod_uid) {
                sidecar.heard = now;
                sidecar.hung_until = None;
            }
        });
    }
}
