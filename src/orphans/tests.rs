//! Orphans against stand-ins for the API server and a sidecar.

use super::*;
use crate::background;
use crate::fixture::{self, failure};
use crate::fleet::stand::{Stand, pod, report, until};
use berth_wire::SessionState;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A sidecar that holds the session `held`, which no cache knows; the API server answers the list as `answer` says.
async fn stage(address: &str, answer: (u16, Value)) -> (Context, fixture::Log, Stand) {
    let (ctx, log) = fixture::context(move |_| answer.clone()).await;
    let first = vec![report("held", SessionState::Idle), report("ending", SessionState::Ending)];
    let stand = Stand::start(&ctx.ca, address, first).await;
    ctx.fleet.follow(&pod(address));
    until("synced", || ctx.fleet.is_synced("pod")).await;
    (ctx, log, stand)
}

fn list(uids: &[&str]) -> (u16, Value) {
    let items: Vec<Value> = uids
        .iter()
        .map(|uid| json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "chat", "namespace": "demo", "uid": uid}}))
        .collect();
    (
        200,
        json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": items}),
    )
}

#[tokio::test]
async fn a_session_whose_object_is_gone_or_has_another_uid_is_ended_once() {
    let (ctx, log, stand) = stage("127.0.78.1", list(&["another"])).await;
    end(&ctx).await;
    assert_eq!(log.lines(), ["GET /apis/berth.dev/v1alpha1/namespaces/demo/agentsessions"]);
    let ended: Vec<_> =
        stand.ended().into_iter().map(|(uid, end)| (uid, end.drain_millis, end.close_millis)).collect();
    assert_eq!(ended, [("held".to_owned(), 0, 5_000)]);
    assert_eq!(ctx.metrics.orphans(), 1);
    assert!(!ctx.fleet.occupancy("pod", vec![]).held.contains("held"));
    end(&ctx).await;
    assert_eq!((log.lines(), stand.ended()), (vec![], vec![]));
}

/// An orphan that is reported is ended within half a minute, the list and the request included.
const _: () = assert!(background::SWEEP.as_secs() <= 25);

#[tokio::test]
async fn the_sweep_ends_orphans() {
    let (mut ctx, _, stand) = stage("127.0.78.7", list(&[])).await;
    ctx.stores.pods = fixture::store_of(vec![pod("127.0.78.7")]);
    let (ctx, cancel) = (Arc::new(ctx), CancellationToken::new());
    let sweep = tokio::spawn(background::sweep(ctx.clone(), Duration::from_millis(10), cancel.clone()));
    until("ended", || ctx.metrics.orphans() == 1).await;
    assert_eq!(stand.ended().len(), 1);
    cancel.cancel();
    sweep.await.unwrap();
}

#[tokio::test]
async fn a_session_that_only_the_cache_lacks_lives_on() {
    let (ctx, _, stand) = stage("127.0.78.2", list(&["another", "held"])).await;
    end(&ctx).await;
    assert_eq!((stand.ended(), ctx.metrics.orphans()), (vec![], 0));
}

#[tokio::test]
async fn a_list_that_fails_ends_nobody() {
    for (address, answer) in [
        ("127.0.78.3", failure(500, "InternalError", "etcd is away")),
        ("127.0.78.4", failure(404, "NotFound", "no such kind")),
        ("127.0.78.5", failure(410, "Expired", "the list is too old")),
    ] {
        let (ctx, _, stand) = stage(address, answer).await;
        end(&ctx).await;
        assert_eq!((stand.ended(), ctx.metrics.orphans()), (vec![], 0), "{address}");
    }
}

#[tokio::test]
async fn a_session_that_the_cache_knows_costs_no_request() {
    let (mut ctx, log, stand) = stage("127.0.78.6", list(&[])).await;
    let mut session = fixture::deleted_session(&json!({}));
    session.metadata.uid = Some("held".into());
    ctx.stores.sessions = fixture::store_of(vec![session]);
    end(&ctx).await;
    assert_eq!((log.lines(), stand.ended()), (vec![], vec![]));
}
