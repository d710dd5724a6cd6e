//! Elections over a stand-in for the API server that keeps one Lease with its versions, in paused time.

use super::*;
use crate::lead::NotLeading;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use berth_api::label::SHUTDOWN;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use std::sync::{Arc, Mutex};
use tokio::time::advance;

/// The API server's one Lease, and whether it answers.
#[derive(Default)]
struct Server {
    lease: Mutex<Option<Lease>>,
    away: Mutex<bool>,
}

impl Server {
    fn set_away(&self, away: bool) {
        *self.away.lock().unwrap() = away;
    }

    fn spec(&self) -> LeaseSpec {
        self.lease.lock().unwrap().clone().and_then(|lease| lease.spec).unwrap_or_default()
    }
}

async fn answer(State(server): State<Arc<Server>>, request: Request) -> Response {
    if *server.away.lock().unwrap() {
        return failure(503);
    }
    let method = request.method().clone();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut held = server.lease.lock().unwrap();
    if method == Method::GET {
        return held.as_ref().map_or_else(|| failure(404), |lease| Json(lease).into_response());
    }
    let mut wanted: Lease = serde_json::from_slice(&body).unwrap();
    let version = held.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
    if wanted.metadata.resource_version != version {
        return failure(409);
    }
    let next = version.map_or(1, |version| version.parse::<u64>().unwrap() + 1);
    wanted.metadata.resource_version = Some(next.to_string());
    *held = Some(wanted.clone());
    Json(wanted).into_response()
}

fn failure(code: u16) -> Response {
    let reason = if code == 404 { "NotFound" } else { "Conflict" };
    let (_, body) = crate::fixture::failure(code, reason, "");
    (StatusCode::from_u16(code).unwrap(), Json(body)).into_response()
}

fn elector(server: &Arc<Server>, pod: &str, started: i64) -> Elector {
    let client = Client::new(Router::new().fallback(answer).with_state(server.clone()), "berth");
    Elector {
        api: Api::namespaced(client, "berth"),
        pod: pod.to_owned(),
        identity: berth_plan::lead::identity(pod, started),
        address: format!("{pod}.test:8443"),
        times: Times::of(Duration::from_secs(15)),
        lead: Lead::default(),
    }
}

/// One look, as often as it takes to come to a result.
async fn look(elector: &Elector, version: &mut Version) {
    while elector.round(version).await == Duration::ZERO && !elector.lead.lost().is_cancelled() {}
}

#[tokio::test(start_paused = true)]
async fn another_takes_over_only_when_the_first_has_stopped_for_a_whole_term() {
    let server = Arc::new(Server::default());
    let (a, b) = (elector(&server, "a", 1), elector(&server, "b", 2));
    let (mut of_a, mut of_b) = (Version::default(), Version::default());
    look(&a, &mut of_a).await;
    look(&b, &mut of_b).await;
    assert_eq!((a.lead.term(), b.lead.term()), (Ok(1), Err(NotLeading)));
    // `a` renews once more, then is paused.
    advance(Duration::from_secs(10)).await;
    look(&a, &mut of_a).await;
    look(&b, &mut of_b).await;
    advance(Duration::from_secs(14)).await;
    look(&b, &mut of_b).await;
    assert_eq!(
        (a.lead.term(), b.lead.term()),
        (Err(NotLeading), Err(NotLeading)),
        "`a` has stepped down first"
    );
    advance(Duration::from_secs(1)).await;
    look(&b, &mut of_b).await;
    assert_eq!(b.lead.term(), Ok(2));
    assert_eq!(server.spec().holder_identity.as_deref(), Some("b_2"));
    // It goes on, and finds that it does not lead.
    look(&a, &mut of_a).await;
    assert!(a.lead.lost().is_cancelled() && a.lead.term() == Err(NotLeading));
    assert_eq!(server.spec().holder_identity.as_deref(), Some("b_2"));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_reach_the_api_server_loses_its_lead_in_time() {
    let server = Arc::new(Server::default());
    let a = elector(&server, "a", 1);
    let (lead, resign) = (a.lead.clone(), CancellationToken::new());
    let running = tokio::spawn(a.run(resign.clone()));
    lead.won().await;
    server.set_away(true);
    let since = Instant::now();
    lead.lost().cancelled().await;
    assert!(since.elapsed() <= Duration::from_secs(12), "{:?}", since.elapsed());
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_back_is_taken_at_once_and_one_of_a_dead_process_of_the_same_pod_too() {
    let server = Arc::new(Server::default());
    let a = elector(&server, "a", 1);
    let (lead, resign) = (a.lead.clone(), CancellationToken::new());
    let running = tokio::spawn(a.run(resign.clone()));
    lead.won().await;
    resign.cancel();
    running.await.unwrap();
    let held = server.lease.lock().unwrap().clone().unwrap();
    assert!(!held.annotations().contains_key(LEADER_ADDRESS));

    let b = elector(&server, "b", 2);
    look(&b, &mut Version::default()).await;
    assert_eq!(b.lead.term(), Ok(2));
    let again = elector(&server, "b", 3);
    look(&again, &mut Version::default()).await;
    assert_eq!(again.lead.term(), Ok(3));
}

#[tokio::test(start_paused = true)]
async fn what_others_wrote_on_the_lease_stays_and_the_mark_of_an_uninstall_is_seen() {
    let server = Arc::new(Server::default());
    let a = elector(&server, "a", 1);
    let mut version = Version::default();
    look(&a, &mut version).await;
    assert!(!a.lead.is_shutting_down());
    server
        .lease
        .lock()
        .unwrap()
        .as_mut()
        .unwrap()
        .annotations_mut()
        .insert(SHUTDOWN.to_owned(), "true".to_owned());
    look(&a, &mut version).await;
    look(&a, &mut version).await;
    assert!(a.lead.is_shutting_down() && a.lead.term() == Ok(1));
    let held = server.lease.lock().unwrap().clone().unwrap();
    assert_eq!(held.annotations()[LEADER_ADDRESS], "a.test:8443");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_deleted_comes_back_with_a_term_that_sidecars_accept() {
    let server = Arc::new(Server::default());
    let a = elector(&server, "a", 1);
    let mut version = Version::default();
    look(&a, &mut version).await;
    a.lead.outranked(40, "pod");
    look(&a, &mut version).await;
    assert_eq!((a.lead.term(), server.spec().lease_transitions), (Ok(41), Some(41)));
}

#[tokio::test(start_paused = true)]
async fn a_leader_never_goes_below_a_term_that_it_has_held() {
    let server = Arc::new(Server::default());
    let a = elector(&server, "a", 1);
    let mut version = Version::default();
    look(&a, &mut version).await;
    let set = |term| {
        let mut lease = server.lease.lock().unwrap();
        lease.as_mut().unwrap().spec.as_mut().unwrap().lease_transitions = Some(term);
    };
    set(50_000);
    look(&a, &mut version).await;
    assert_eq!(a.lead.term(), Ok(50_000));
    set(3);
    look(&a, &mut version).await;
    assert_eq!((a.lead.term(), server.spec().lease_transitions), (Ok(50_000), Some(50_000)));
}

#[tokio::test(start_paused = true)]
async fn a_dead_holder_is_not_waited_for_as_long_as_another_hand_says() {
    for (knew_it, waited) in [(true, 15), (false, 300)] {
        let server = Arc::new(Server::default());
        let (a, b) = (elector(&server, "a", 1), elector(&server, "b", 2));
        let (mut of_a, mut of_b) = (Version::default(), Version::default());
        look(&a, &mut of_a).await;
        if knew_it {
            look(&b, &mut of_b).await;
        }
        {
            let mut held = server.lease.lock().unwrap();
            let lease = held.as_mut().unwrap();
            lease.spec.as_mut().unwrap().lease_duration_seconds = Some(86_400);
            lease.metadata.resource_version = Some("77".into());
        }
        look(&b, &mut of_b).await;
        advance(Duration::from_secs(waited - 1)).await;
        look(&b, &mut of_b).await;
        assert_eq!(b.lead.term(), Err(NotLeading), "{waited}");
        advance(Duration::from_secs(1)).await;
        look(&b, &mut of_b).await;
        assert_eq!((b.lead.term(), a.lead.term()), (Ok(2), Err(NotLeading)), "{waited}");
        assert_eq!(server.spec().lease_duration_seconds, Some(15));
    }
}

#[tokio::test(start_paused = true)]
async fn a_duration_that_another_hand_cut_short_takes_the_lead_from_nobody_who_may_still_lead() {
    let server = Arc::new(Server::default());
    let (a, b) = (elector(&server, "a", 1), elector(&server, "b", 2));
    let (mut of_a, mut of_b) = (Version::default(), Version::default());
    look(&a, &mut of_a).await;
    server.lease.lock().unwrap().as_mut().unwrap().spec.as_mut().unwrap().lease_duration_seconds = Some(1);
    look(&b, &mut of_b).await;
    advance(Duration::from_secs(11)).await;
    look(&b, &mut of_b).await;
    assert_eq!((a.lead.term(), b.lead.term()), (Ok(1), Err(NotLeading)));
}
