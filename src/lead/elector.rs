//! Takes the Lease, renews it, gives it back. `berth_plan::lead` decides.

use crate::api_error;
use crate::context::Clock;
use crate::lead::{Lead, Times};
use crate::uninstall::mark;
use berth_api::label::{LEADER_ADDRESS, LEADER_LEASE};
use berth_plan::lead::{LONGEST, Seen, Turn, patience, turn};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// How long one look at the Lease may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// One candidate.
pub struct Elector {
    /// The Leases of the operator's namespace, by a client without the fence.
    pub api: Api<Lease>,
    /// Name of the pod.
    pub pod: String,
    /// This process, unlike every other one that ever was or will be.
    pub identity: String,
    /// Where it would serve gateways.
    pub address: String,
    /// Durations.
    pub times: Times,
    /// What it finds.
    pub lead: Lead,
}

/// What one look came to.
enum Step {
    /// The Lease is ours.
    Held(u64),
    /// It is somebody else's.
    Foreign,
    /// Somebody else wrote it meanwhile: what they wrote has to be seen first.
    Again,
}

/// What was seen of the Lease so far.
#[derive(Default)]
struct Version {
    /// Its present version, and when that was first seen.
    current: Option<(String, Instant)>,
    /// A holder, and the last duration that it can have written itself.
    known: Option<(String, Duration)>,
}

impl Elector {
    /// Runs for the Lease and keeps it, until it is lost or `cancel`, when it is given back.
    pub async fn run(self, cancel: CancellationToken) -> &'static str {
        let mut version = Version::default();
        tracing::info!(identity = self.identity, "running for the lease; whoever holds it leads until then");
        while !cancel.is_cancelled() {
            let pause = self.round(&mut version).await;
            if self.lead.lost().is_cancelled() {
                break;
            }
            // The end of the term is not slept through.
            let left =
                self.lead.until().map_or(pause, |until| until.saturating_duration_since(Instant::now()));
            tokio::select! {
                () = cancel.cancelled() => {}
                () = sleep(pause.min(left)) => {}
            }
        }
        if cancel.is_cancelled() {
            self.give_back().await;
        }
        "election"
    }

    /// One look, and what follows for the lead. Says how long to pause.
    async fn round(&self, version: &mut Version) -> Duration {
        let begun = Instant::now();
        let until = self.lead.until();
        let step = tokio::select! {
            step = timeout(STEP_TIMEOUT, self.step(version)) => step,
            () = sleep_until(until.unwrap_or(begun)), if until.is_some() => {
                tracing::error!("the lease could not be renewed in time");
                self.lead.lose();
                return Duration::ZERO;
            }
        };
        match step {
            Ok(Ok(Step::Held(term))) => {
                if self.lead.term() != Ok(term) {
                    tracing::info!(term, identity = self.identity, "leading");
                }
                self.lead.hold(term, begun + self.times.duration - self.times.margin);
            }
            Ok(Ok(Step::Foreign)) if until.is_some() => {
                tracing::error!("another operator has taken the lease");
                self.lead.lose();
            }
            Ok(Ok(Step::Foreign)) => {}
            Ok(Ok(Step::Again)) => return Duration::ZERO,
            Ok(Err(error)) => tracing::warn!(error = api_error::text(&error), "cannot renew the lease"),
            Err(_) => tracing::warn!("the API server gave no answer about the lease"),
        }
        self.times.retry
    }

    async fn step(&self, version: &mut Version) -> Result<Step, kube::Error> {
        let found = self.api.get_opt(LEADER_LEASE).await?;
        let seen = found.as_ref().map(|lease| seen(lease, version, self.times.duration));
        self.lead.set_shutting_down(
            found.as_ref().is_some_and(|lease| mark::is_in_force(lease, Clock::SYSTEM.now())),
        );
        let Turn::Hold { term } = turn(&self.identity, &self.pod, seen, self.lead.above()) else {
            return Ok(Step::Foreign);
        };
        let (wanted, params) = (self.wanted(found.as_ref(), term), PostParams::default());
        let written = match &found {
            Some(_) => self.api.replace(LEADER_LEASE, &params, &wanted).await,
            None => self.api.create(&params, &wanted).await,
        };
        match written {
            Ok(_) => Ok(Step::Held(term)),
            // Written or made by somebody else since it was read.
            Err(error) if api_error::code(&error) == Some(409) => Ok(Step::Again),
            Err(error) => Err(error),
        }
    }

    /// The Lease as ours; of what was found, everything else stays, the version that fences the write among it.
    fn wanted(&self, found: Option<&Lease>, term: u64) -> Lease {
        let now = MicroTime(Timestamp::now());
        let mut lease = found.cloned().unwrap_or_default();
        let spec = lease.spec.take().unwrap_or_default();
        let renewed = spec.holder_identity.as_ref() == Some(&self.identity);
        lease.metadata.name = Some(LEADER_LEASE.to_owned());
        lease.annotations_mut().insert(LEADER_ADDRESS.to_owned(), self.address.clone());
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.times.duration.as_secs()).ok(),
            acquire_time: if renewed { spec.acquire_time } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(i32::try_from(term).unwrap_or(i32::MAX)),
            ..spec
        });
        lease
    }

    /// Lets others take over at once. Called when nothing of this process writes any more.
    async fn give_back(&self) {
        let given = timeout(STEP_TIMEOUT, async {
            let Some(mut lease) = self.api.get_opt(LEADER_LEASE).await? else { return Ok(()) };
            let ours = |spec: &mut LeaseSpec| {
                spec.holder_identity.take_if(|holder| *holder == self.identity).is_some()
            };
            if lease.spec.as_mut().is_some_and(ours) {
                lease.annotations_mut().remove(LEADER_ADDRESS);
                self.api.replace(LEADER_LEASE, &PostParams::default(), &lease).await?;
                tracing::info!("lease given back");
            }
            Ok::<_, kube::Error>(())
        });
        if let Ok(Err(error)) = given.await {
            tracing::warn!(
                error = api_error::text(&error),
                "cannot give the lease back; its term has to pass"
            );
        }
    }
}

/// What `lease` says now; `ours` is the duration of this process.
fn seen<'a>(lease: &'a Lease, version: &mut Version, ours: Duration) -> Seen<'a> {
    let spec = lease.spec.as_ref();
    let number = |number: Option<i32>| u64::try_from(number.unwrap_or(0)).unwrap_or(0);
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    let written = Duration::from_secs(number(spec.and_then(|spec| spec.lease_duration_seconds)));
    if written <= LONGEST {
        version.known = Some((holder.to_owned(), written));
    }
    let known = version.known.as_ref().filter(|(known, _)| known == holder).map(|(_, duration)| *duration);
    let duration = patience(written, known, ours);
    let (current, now) = (lease.resource_version().unwrap_or_default(), Instant::now());
    let since = match &version.current {
        Some((held, since)) if *held == current => *since,
        _ => {
            if written > LONGEST {
                let (written_seconds, waited_seconds) = (written.as_secs(), duration.as_secs());
                tracing::warn!(
                    holder,
                    written_seconds,
                    waited_seconds,
                    "the lease says leaseDurationSeconds that no operator writes; its holder is waited for no longer than it leads"
                );
            }
            version.current = Some((current, now));
            now
        }
    };
    let transitions = number(spec.and_then(|spec| spec.lease_transitions));
    Seen { holder, transitions, duration, unchanged: now - since }
}

#[cfg(test)]
mod tests;
