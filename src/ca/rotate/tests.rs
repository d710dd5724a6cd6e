use super::*;
use crate::ca::record::{CA_SECRET, ROTATE};
use crate::ca::{GATEWAY_SECRET, Server, secret as of_secret};
use crate::found_good::Key;
use crate::memory_api::MemoryApi;
use axum::body::Body;
use axum::{Router, routing::get};
use berth_net::client::{PeerClient, Target};
use berth_net::serve;
use berth_wire::{CA_FILE, CERT_FILE, KEY_FILE};
use http::Request;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Some hours after the start of a test, which is two hours ago: certificates are checked by the clock of the system.
fn hours(hours: u64) -> Moment {
    Moment(crate::context::Clock::SYSTEM.now().0 / 1000 * 1000 - 7_200_000).plus(Duration::from_hours(hours))
}

fn now() -> Moment {
    hours(0)
}

fn at(name: &str) -> String {
    format!("/api/v1/namespaces/berth/secrets/{name}")
}

/// An operator with one server, whose Secrets are all made.
async fn stage(api: &MemoryApi) -> (Ca, Own) {
    let ca = Ca::open(api.client(), "berth", now()).await.unwrap();
    let (_, mut own) = ca.own_identity(now()).unwrap();
    let server = Server { namespace: "demo", name: "everything", uid: "0a1b" };
    ca.ensure_server(server, now()).await.unwrap();
    ca.keep(&mut own, now()).await.unwrap();
    (ca, own)
}

fn ask(api: &MemoryApi) {
    let mut secret = api.get(&at(CA_SECRET)).unwrap();
    secret["metadata"]["annotations"][ROTATE] = "now".into();
    api.put(&at(CA_SECRET), secret);
}

fn certificate_path(api: &MemoryApi) -> String {
    api.paths().into_iter().find(|path| path.starts_with("/api/v1/namespaces/demo/secrets/")).unwrap()
}

fn secret(api: &MemoryApi, path: &str) -> Secret {
    serde_json::from_value(api.get(path).unwrap()).unwrap()
}

/// The identity that a part would mount.
fn mounted(api: &MemoryApi, path: &str) -> Identity {
    let data = secret(api, path).data.unwrap();
    Identity::from_pem(&data[CERT_FILE].0, &data[KEY_FILE].0, &data[CA_FILE].0).unwrap()
}

fn trusted(api: &MemoryApi, path: &str) -> usize {
    let data = secret(api, path).data.unwrap();
    String::from_utf8(data[CA_FILE].0.clone()).unwrap().matches("BEGIN CERTIFICATE").count()
}

/// Whether `client` and a sidecar with that identity let each other in.
async fn talk(client: &Identity, sidecar: Identity) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = Target::sidecar(listener.local_addr().unwrap(), "0a1b");
    let cancel = CancellationToken::new();
    let _guard = cancel.clone().drop_guard();
    tokio::spawn(serve::serve(
        listener,
        Some(sidecar),
        Router::new().route("/", get(|| async {})),
        4,
        cancel,
    ));
    let request = Request::get("/").body(Body::empty()).unwrap();
    PeerClient::new(client.clone()).request(&target, request).await.is_ok()
}

#[tokio::test]
async fn parts_that_lag_one_step_behind_in_a_rotation_still_talk_to_each_other() {
    let api = MemoryApi::default();
    let (ca, mut own) = stage(&api).await;
    let certificate = certificate_path(&api);
    let take = || {
        // What the operator uses is shared with what it uses later, so another of the same moment stands in for it.
        let operator = ca.identity_for_test(&Purpose::Operator);
        (operator, mounted(&api, &at(GATEWAY_SECRET)), mounted(&api, &certificate))
    };
    let mut stages = vec![take()];
    ask(&api);
    for hour in [0, 1] {
        ca.keep(&mut own, hours(hour)).await.unwrap();
        assert_eq!((trusted(&api, &certificate), trusted(&api, &at(GATEWAY_SECRET))), (2, 2));
        stages.push(take());
    }
    for (behind, ahead) in [(0, 1), (1, 2)] {
        for (client, server) in [(behind, ahead), (ahead, behind), (ahead, ahead)] {
            for client in [&stages[client].0, &stages[client].1] {
                assert!(talk(client, stages[server].2.clone()).await, "{behind} {ahead}");
            }
        }
    }
    // The test can fail: two steps apart they do not know each other.
    assert!(!talk(&stages[0].0, stages[2].2.clone()).await);
    // The identity that was made before all of it has taken up every step.
    assert!(talk(&own.identity, stages[2].2.clone()).await);
    ca.keep(&mut own, hours(24 * 91)).await.unwrap();
    assert_eq!((trusted(&api, &certificate), trusted(&api, &at(GATEWAY_SECRET))), (1, 1));
}

#[tokio::test]
async fn a_rotation_begins_by_itself_and_waits_until_every_secret_is_written() {
    let api = MemoryApi::default();
    let (ca, mut own) = stage(&api).await;
    let certificate = certificate_path(&api);
    let broken = certificate.clone();
    let due = hours(24 * 3650);
    let (refuse, refused) = tokio::sync::watch::channel(true);
    api.rule(move |method, path| {
        let breaks = *refused.borrow() && method == http::Method::PATCH && path == broken;
        breaks.then(|| crate::fixture::failure(500, "InternalError", "etcd is away"))
    });
    ca.keep(&mut own, due).await.unwrap_err();
    assert_eq!(trusted(&api, &certificate), 1);
    let before = secret(&api, &at(CA_SECRET)).data.unwrap();
    assert!(before.contains_key("next.crt"));
    // An hour later it is still not promoted: one part does not know it.
    ca.keep(&mut own, due.plus(Duration::from_hours(2))).await.unwrap_err();
    assert!(secret(&api, &at(CA_SECRET)).data.unwrap() == before);
    refuse.send_replace(false);
    // Nor when that one has only just learnt of it: what is mounted lags behind the Secret.
    let learnt = due.plus(Duration::from_hours(2));
    for minutes in [0, 59] {
        ca.keep(&mut own, learnt.plus(Duration::from_mins(minutes))).await.unwrap();
        assert!(secret(&api, &at(CA_SECRET)).data.unwrap() == before);
        assert_eq!(trusted(&api, &certificate), 2);
    }
    ca.keep(&mut own, learnt.plus(Duration::from_hours(1))).await.unwrap();
    let after = secret(&api, &at(CA_SECRET)).data.unwrap();
    assert_eq!((&after[CERT_FILE], after.contains_key("next.crt")), (&before["next.crt"], false));
    assert_eq!(trusted(&api, &certificate), 2);
}

#[tokio::test]
async fn an_idle_system_writes_nothing() {
    let api = MemoryApi::default();
    let (ca, mut own) = stage(&api).await;
    api.writes();
    for hour in [1, 7, 14] {
        ca.keep(&mut own, hours(hour)).await.unwrap();
    }
    assert!(api.writes().is_empty());
}

#[tokio::test]
async fn a_ca_whose_secret_was_deleted_comes_back_as_it_was() {
    let api = MemoryApi::default();
    let (ca, mut own) = stage(&api).await;
    for rotating in [false, true] {
        if rotating {
            ask(&api);
            ca.keep(&mut own, hours(0)).await.unwrap();
        }
        let before = secret(&api, &at(CA_SECRET));
        assert_eq!(before.data.as_ref().unwrap().contains_key("next.crt"), rotating);
        api.remove(&at(CA_SECRET));
        api.writes();
        ca.keep(&mut own, hours(0)).await.unwrap();
        assert_eq!(api.writes(), ["POST /api/v1/namespaces/berth/secrets"]);
        let back = secret(&api, &at(CA_SECRET));
        assert_eq!((back.data, back.metadata.annotations), (before.data, before.metadata.annotations));
    }
}

#[tokio::test]
async fn a_secret_of_the_ca_that_cannot_be_used_is_told_and_the_one_in_memory_goes_on() {
    let api = MemoryApi::default();
    let (ca, mut own) = stage(&api).await;
    let good = api.get(&at(CA_SECRET)).unwrap();
    let other = json!(of_secret::bytes([(KEY_FILE, Pair::create(now()).unwrap().key)]));
    for (file, value) in
        [(CERT_FILE, json!("bm8=")), (KEY_FILE, other[KEY_FILE].clone()), (KEY_FILE, Value::Null)]
    {
        let mut broken = good.clone();
        broken["data"][file] = value;
        api.put(&at(CA_SECRET), broken.clone());
        api.remove(&at(GATEWAY_SECRET));
        ca.good().changed(&ca.own_secrets()[1], None);
        api.writes();
        let error = ca.keep(&mut own, hours(0)).await.unwrap_err();
        assert!(matches!(error, Error::Unusable(_)), "{error}");
        let said = error.to_string();
        assert!(said.contains("\"berth-ca\"") && said.contains("delete it"), "{said}");
        assert_eq!(api.writes(), [format!("PATCH {}", at(GATEWAY_SECRET))], "the rest is seen to");
        assert_eq!(trusted(&api, &at(GATEWAY_SECRET)), 1);
    }
    api.remove(&at(CA_SECRET));
    ca.keep(&mut own, hours(0)).await.unwrap();
    assert_eq!(api.get(&at(CA_SECRET)).unwrap()["data"], good["data"]);
}

#[tokio::test]
async fn what_is_told_to_have_gone_is_made_again_once_and_what_the_operator_wrote_is_no_news() {
    let api = MemoryApi::default();
    let (ca, mut own) = stage(&api).await;
    let [own_ca, gateway] = ca.own_secrets();
    let version =
        |path: &str| api.get(path).unwrap()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    for (key, path) in [(&own_ca, at(CA_SECRET)), (&gateway, at(GATEWAY_SECRET))] {
        assert!(!ca.good().changed(key, Some(&version(&path))), "as it was made: {path}");
        api.remove(&path);
        api.writes();
        assert!(ca.good().changed(key, None));
        ca.keep(&mut own, hours(0)).await.unwrap();
        assert_eq!(api.writes().len(), 1, "{path}");
        assert!(!ca.good().changed(key, Some(&version(&path))), "as it was made again: {path}");
        ca.keep(&mut own, hours(0)).await.unwrap();
        assert!(api.writes().is_empty());
    }
}

#[tokio::test]
async fn nothing_is_made_again_in_a_namespace_that_is_being_deleted() {
    let api = MemoryApi::default();
    let (ca, mut own) = stage(&api).await;
    for namespace in ["berth", "demo"] {
        let metadata =
            json!({"name": namespace, "finalizers": ["x"], "deletionTimestamp": "2026-01-01T00:00:00Z"});
        api.put(&format!("/api/v1/namespaces/{namespace}"), json!({"metadata": metadata}));
    }
    let server = Server { namespace: "demo", name: "everything", uid: "0a1b" };
    let certificate = certificate_path(&api);
    let name = certificate.rsplit('/').next().unwrap().to_owned();
    for path in [&at(CA_SECRET), &at(GATEWAY_SECRET), &certificate] {
        api.remove(path);
    }
    ca.good().changed(&ca.own_secrets()[1], None);
    ca.good().changed(&Key { namespace: "demo".into(), name }, None);
    api.writes();
    assert!(ca.keep(&mut own, hours(0)).await.unwrap_err().is_terminating_namespace());
    assert!(ca.ensure_server(server, hours(0)).await.unwrap_err().is_terminating_namespace());
    assert!(api.writes().is_empty());
}

#[tokio::test]
async fn a_new_ca_still_trusts_the_parts_that_are_there() {
    let api = MemoryApi::default();
    let (_, _own) = stage(&api).await;
    let sidecar = mounted(&api, &certificate_path(&api));
    api.remove(&at(CA_SECRET));
    // Another process, which has nothing but what the API server has.
    let (ca, mut own) = stage(&api).await;
    ca.keep(&mut own, hours(0)).await.unwrap();
    assert_eq!(trusted(&api, &certificate_path(&api)), 2);
    // The new operator trusts the old sidecar, which will trust it when it has read its new Secret.
    let operator = ca.identity_for_test(&Purpose::Operator);
    assert!(!talk(&operator, sidecar).await);
    assert!(talk(&operator, mounted(&api, &certificate_path(&api))).await);
}

#[tokio::test]
async fn a_foreign_secret_with_the_label_is_left_alone() {
    let api = MemoryApi::default();
    let (ca, mut own) = stage(&api).await;
    let foreign: Value = json!({"metadata": {"name": "copy", "namespace": "demo",
        "labels": {"berth.dev/role": "certificate"}}});
    api.put("/api/v1/namespaces/demo/secrets/copy", foreign);
    ask(&api);
    api.writes();
    ca.keep(&mut own, hours(0)).await.unwrap();
    assert!(api.writes().iter().all(|write| !write.ends_with("/copy")));
}

#[tokio::test]
async fn the_key_of_session_ids_is_the_same_for_every_operator_through_rotation_and_loss() {
    let api = MemoryApi::default();
    let (ca, mut own) = stage(&api).await;
    let key = |ca: &Ca| ca.scope_key("session", "server").0;
    let first = key(&ca);
    assert_eq!(key(&Ca::open(api.client(), "berth", now()).await.unwrap()), first);
    ask(&api);
    ca.keep(&mut own, now()).await.unwrap();
    ca.keep(&mut own, hours(2)).await.unwrap();
    assert_eq!(trusted(&api, &certificate_path(&api)), 2, "a rotation is under way");
    assert_eq!(key(&ca), first);
    api.remove(&at(CA_SECRET));
    ca.keep(&mut own, hours(2)).await.unwrap();
    assert_eq!(key(&Ca::open(api.client(), "berth", hours(2)).await.unwrap()), first);
    assert!(!format!("{:?}", ca.scope_key("session", "server")).contains(&first));
}

#[tokio::test]
async fn a_secret_without_the_key_of_session_ids_gets_one_and_keeps_what_it_has() {
    let api = MemoryApi::default();
    let (ca, mut own) = stage(&api).await;
    let take = || {
        let mut secret = api.get(&at(CA_SECRET)).unwrap();
        secret["data"].as_object_mut().unwrap().remove("scope.key").unwrap();
        api.put(&at(CA_SECRET), secret.clone());
        secret["data"].clone()
    };
    let key = |ca: &Ca| ca.scope_key("session", "server").0;
    let first = key(&ca);
    // Somebody took it away: who still has it puts it back.
    take();
    ca.keep(&mut own, now()).await.unwrap();
    assert_eq!(key(&Ca::open(api.client(), "berth", now()).await.unwrap()), first);
    // An older version never had it.
    let older = take();
    let upgraded = Ca::open(api.client(), "berth", now()).await.unwrap();
    assert_ne!(key(&upgraded), first);
    assert_eq!(key(&Ca::open(api.client(), "berth", now()).await.unwrap()), key(&upgraded));
    let mut held = api.get(&at(CA_SECRET)).unwrap()["data"].clone();
    assert!(held.as_object_mut().unwrap().remove("scope.key").is_some() && held == older);
}

#[tokio::test]
async fn a_certificate_that_was_made_immutable_is_made_anew_when_it_has_to_change() {
    let api = MemoryApi::default();
    let (ca, _own) = stage(&api).await;
    let path = certificate_path(&api);
    let name = path.rsplit('/').next().unwrap().to_owned();
    let mut changed = api.get(&path).unwrap();
    changed["data"][KEY_FILE] = "eA==".into();
    changed["immutable"] = true.into();
    api.put(&path, changed);
    let refusals = std::sync::atomic::AtomicUsize::new(0);
    let refused = path.clone();
    api.rule(move |method, path| {
        let first = || refusals.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        let text = "data: Forbidden: field is immutable when `immutable` is set";
        (*method == http::Method::PATCH && path == refused && first())
            .then(|| crate::fixture::failure(422, "Invalid", text))
    });
    api.writes();
    ca.good().changed(&Key { namespace: "demo".into(), name }, Some("changed"));
    let server = Server { namespace: "demo", name: "everything", uid: "0a1b" };
    ca.ensure_server(server, now()).await.unwrap();
    let writes = ["PATCH", "DELETE", "PATCH"].map(|verb| format!("{verb} {path}"));
    assert_eq!(api.writes(), writes, "the first is refused");
    assert!(api.get(&path).unwrap().get("immutable").is_none());
    mounted(&api, &path);
}
