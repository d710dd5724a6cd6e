//! The mark that Berth is being uninstalled: an annotation of the Lease that operators look at all the time anyway.
//!
//! It says until when it counts, so that an uninstall that was killed in the middle does not stop Berth for ever.

use berth_api::label::{LEADER_LEASE, SHUTDOWN};
use berth_plan::time::Moment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// Field manager of the mark.
const MANAGER: &str = "berth-uninstall";

/// Whether the Lease says that Berth is being uninstalled. What cannot be read as a time counts without an end: somebody
/// wrote it on purpose.
pub fn is_in_force(lease: &Lease, now: Moment) -> bool {
    lease.annotations().get(SHUTDOWN).is_some_and(|until| {
        until.parse::<Timestamp>().map_or(true, |until| now < Moment(until.as_millisecond()))
    })
}

/// Marks the Lease, which is made when there is none.
pub async fn set(client: &Client, namespace: &str, until: Moment) -> kube::Result<()> {
    let mark = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": LEADER_LEASE, "annotations": {SHUTDOWN: until.to_api().0.to_string()}},
    });
    let params = PatchParams::apply(MANAGER).force();
    leases(client, namespace).patch(LEADER_LEASE, &params, &Patch::Apply(mark)).await?;
    Ok(())
}

/// Takes the mark away.
pub async fn clear(client: &Client, namespace: &str) -> kube::Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {SHUTDOWN: null}}}));
    match leases(client, namespace).patch(LEADER_LEASE, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        cleared => cleared.map(drop),
    }
}

/// Whether an operator holds the Lease and renews it. The time in it is that of another clock, which is good enough for
/// what people are told.
pub async fn is_led(client: &Client, namespace: &str, now: Moment) -> kube::Result<bool> {
    Ok(leases(client, namespace).get_opt(LEADER_LEASE).await?.is_some_and(|lease| is_held(&lease, now)))
}

fn is_held(lease: &Lease, now: Moment) -> bool {
    let Some(spec) = &lease.spec else { return false };
    let (Some(renewed), Some(seconds)) = (&spec.renew_time, spec.lease_duration_seconds) else {
        return false;
    };
    let until = renewed.0.as_millisecond() + i64::from(seconds) * 1000;
    spec.holder_identity.as_ref().is_some_and(|holder| !holder.is_empty()) && now < Moment(until)
}

fn leases(client: &Client, namespace: &str) -> Api<Lease> {
    Api::namespaced(client.clone(), namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_api::MemoryApi;
    use std::time::Duration;

    const NOW: Moment = Moment(1_800_000_000_000);
    const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/berth/leases/berth-operator";

    fn lease(api: &MemoryApi) -> Lease {
        serde_json::from_value(api.get(PATH).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn a_mark_counts_until_its_time_is_over_or_it_is_taken_away() {
        let api = MemoryApi::default();
        clear(&api.client(), "berth").await.unwrap();
        api.put(PATH, json!({"metadata": {"name": LEADER_LEASE}, "spec": {"holderIdentity": "op-a_1"}}));
        assert!(!is_in_force(&lease(&api), NOW));
        set(&api.client(), "berth", NOW.plus(Duration::from_secs(10))).await.unwrap();
        assert!(is_in_force(&lease(&api), NOW));
        assert_eq!(lease(&api).spec.unwrap().holder_identity.as_deref(), Some("op-a_1"));
        assert!(!is_in_force(&lease(&api), NOW.plus(Duration::from_secs(10))));
        clear(&api.client(), "berth").await.unwrap();
        assert!(!is_in_force(&lease(&api), NOW));
        let mut by_hand = lease(&api);
        by_hand.annotations_mut().insert(SHUTDOWN.into(), "true".into());
        assert!(is_in_force(&by_hand, NOW));
    }

    #[tokio::test]
    async fn a_lease_that_is_renewed_no_more_leads_nobody() {
        let api = MemoryApi::default();
        assert!(!is_led(&api.client(), "berth", NOW).await.unwrap());
        let renewed = NOW.to_api().0.to_string().replace('Z', ".000000Z");
        for (holder, after, led) in [("op-a_1", 14, true), ("op-a_1", 15, false), ("", 1, false)] {
            let spec = json!({"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15});
            api.put(PATH, json!({"metadata": {"name": LEADER_LEASE}, "spec": spec}));
            let now = NOW.plus(Duration::from_secs(after));
            assert_eq!(is_led(&api.client(), "berth", now).await.unwrap(), led, "{holder} {after}");
        }
    }
}
