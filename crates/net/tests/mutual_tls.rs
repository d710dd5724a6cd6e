//! Peers over real sockets: who is let in, who is not, and rotation without a restart.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use axum::body::Body;
use axum::{Extension, Router, routing::get};
use berth_net::client::{PeerClient, PeerError, Target};
use berth_net::identity::Identity;
use berth_net::peer::Peer;
use berth_net::serve::{serve, serve_and_drain};
use berth_wire::{GATEWAY_URI, OPERATOR_URI, server_dns_name};
use http::Request;
use http_body_util::BodyExt;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Certificate and key in PEM for one alternative name.
    fn issue(&self, name: SanType) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name];
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    fn client(&self, uri: &str) -> Identity {
        let (cert, key) = self.issue(SanType::URI(uri.try_into().unwrap()));
        Identity::from_pem(cert.as_bytes(), key.as_bytes(), self.0.pem().as_bytes()).unwrap()
    }

    fn server(&self, uid: &str) -> (String, String) {
        self.issue(SanType::DnsName(server_dns_name(uid).try_into().unwrap()))
    }

    fn server_identity(&self, uid: &str) -> Identity {
        let (cert, key) = self.server(uid);
        Identity::from_pem(cert.as_bytes(), key.as_bytes(), self.0.pem().as_bytes()).unwrap()
    }
}

/// Serves the name of the peer that asks; ends with the guard.
async fn start(identity: Identity) -> (SocketAddr, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new()
        .route("/who", get(|Extension(peer): Extension<Peer>| async move { format!("{peer:?}") }));
    let cancel = CancellationToken::new();
    tokio::spawn(serve(listener, Some(identity), app, 16, cancel.clone()));
    (address, cancel.drop_guard())
}

async fn ask(client: &PeerClient, address: SocketAddr, uid: &str) -> Result<String, PeerError> {
    let request = Request::get("/who").body(Body::empty()).unwrap();
    let answer = client.request(&Target::sidecar(address, uid), request).await?;
    Ok(String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
}

#[tokio::test]
async fn each_peer_is_known_by_the_uri_in_its_certificate() {
    let ca = Ca::new();
    let (address, _server) = start(ca.server_identity("uid-a")).await;
    for (uri, peer) in [(OPERATOR_URI, "Operator"), (GATEWAY_URI, "Gateway"), ("berth://other", "Unknown")] {
        let client = PeerClient::new(ca.client(uri));
        assert_eq!(ask(&client, address, "uid-a").await.unwrap(), peer);
    }
}

#[tokio::test]
async fn a_sidecar_of_another_server_is_refused_before_anything_is_sent() {
    let ca = Ca::new();
    let (address, _server) = start(ca.server_identity("uid-a")).await;
    let error = ask(&PeerClient::new(ca.client(GATEWAY_URI)), address, "uid-b").await.unwrap_err();
    assert!(error.is_before_send(), "{error}");
}

#[tokio::test]
async fn a_client_of_another_ca_is_refused() {
    let (ca, other) = (Ca::new(), Ca::new());
    let (address, _server) = start(ca.server_identity("uid-a")).await;
    // The stranger trusts the right CA, but shows a certificate of its own.
    let (cert, key) = other.issue(SanType::URI(OPERATOR_URI.try_into().unwrap()));
    let stranger = Identity::from_pem(cert.as_bytes(), key.as_bytes(), ca.0.pem().as_bytes()).unwrap();
    assert!(ask(&PeerClient::new(stranger), address, "uid-a").await.is_err());
}

#[tokio::test]
async fn a_rotated_identity_serves_new_connections_without_a_restart() {
    let (old, new) = (Ca::new(), Ca::new());
    let identity = old.server_identity("uid-a");
    let (address, _server) = start(identity.clone()).await;
    let kept = PeerClient::new(old.client(GATEWAY_URI));
    assert_eq!(ask(&kept, address, "uid-a").await.unwrap(), "Gateway");

    let (cert, key) = new.server("uid-a");
    identity.replace_pem(cert.as_bytes(), key.as_bytes(), new.0.pem().as_bytes()).unwrap();
    assert_eq!(ask(&PeerClient::new(new.client(GATEWAY_URI)), address, "uid-a").await.unwrap(), "Gateway");
    assert_eq!(ask(&kept, address, "uid-a").await.unwrap(), "Gateway", "a connection begun before goes on");
    assert!(
        ask(&PeerClient::new(old.client(GATEWAY_URI)), address, "uid-a").await.is_err(),
        "the old CA no longer counts"
    );
}

#[tokio::test]
async fn a_folder_is_followed_and_broken_files_are_survived() {
    let (old, new) = (Ca::new(), Ca::new());
    let dir = std::env::temp_dir().join(format!("berth-net-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let write = |ca: &Ca, (cert, key): (String, String)| {
        for (file, text) in [("tls.crt", cert), ("tls.key", key), ("ca.crt", ca.0.pem())] {
            std::fs::write(dir.join(file), text).unwrap();
        }
    };
    write(&old, old.server("uid-a"));
    let identity = Identity::from_dir(&dir).await.unwrap();
    let (address, _server) = start(identity.clone()).await;
    let cancel = CancellationToken::new();
    let _stop = cancel.clone().drop_guard();
    let (followed, folder) = (identity.clone(), dir.clone());
    tokio::spawn(
        async move { followed.follow_dir(&folder, std::time::Duration::from_millis(5), cancel).await },
    );

    std::fs::write(dir.join("tls.crt"), "rubbish").unwrap();
    let client = PeerClient::new(old.client(GATEWAY_URI));
    assert_eq!(ask(&client, address, "uid-a").await.unwrap(), "Gateway", "the identity in use stays");

    write(&new, new.server("uid-a"));
    let client = PeerClient::new(new.client(GATEWAY_URI));
    let taken_up = async {
        while ask(&client, address, "uid-a").await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), taken_up)
        .await
        .expect("the new files are taken up");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[tokio::test]
async fn the_end_lets_a_running_request_finish() {
    let ca = Ca::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let cancel = CancellationToken::new();
    let (entered, mut seen) = tokio::sync::mpsc::channel::<()>(1);
    let finish = CancellationToken::new();
    let (handler_finish, handler_entered) = (finish.clone(), entered.clone());
    let app = Router::new().route(
        "/who",
        get(move || async move {
            handler_entered.send(()).await.unwrap();
            handler_finish.cancelled().await;
            "finished"
        }),
    );
    let server = tokio::spawn(serve(listener, Some(ca.server_identity("uid-a")), app, 16, cancel.clone()));
    let client = PeerClient::new(ca.client(GATEWAY_URI));
    let running = tokio::spawn(async move { ask(&client, address, "uid-a").await });
    seen.recv().await.unwrap();
    cancel.cancel();
    finish.cancel();
    assert_eq!(running.await.unwrap().unwrap(), "finished");
    server.await.unwrap();
}

#[tokio::test]
async fn a_request_that_outlives_the_drain_is_cut_as_unanswered() {
    let ca = Ca::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let cancel = CancellationToken::new();
    let cancelled = cancel.clone();
    let app = Router::new().route(
        "/who",
        get(move || async move {
            cancelled.cancel();
            std::future::pending::<String>().await
        }),
    );
    let identity = Some(ca.server_identity("uid-a"));
    let drain = std::time::Duration::from_millis(50);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.spawn(serve_and_drain(listener, identity, app, 16, drain, cancel));
    let client = PeerClient::new(ca.client(GATEWAY_URI));
    let ended = async {
        server.await.unwrap();
        // What is cut is what the end of the process cuts.
        runtime.shutdown_background();
    };
    let (answer, ()) = tokio::join!(ask(&client, address, "uid-a"), ended);
    assert!(matches!(answer, Err(PeerError::NoAnswer { .. })), "{answer:?}");
}

#[tokio::test]
async fn gateways_whose_calls_hang_keep_no_operator_out() {
    let ca = Ca::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (called, mut calls) = tokio::sync::mpsc::channel(1);
    let app = Router::new()
        .route("/who", get(|Extension(peer): Extension<Peer>| async move { format!("{peer:?}") }))
        .route(
            "/hang",
            get(move || async move {
                called.send(()).await.unwrap();
                std::future::pending::<()>().await;
            }),
        );
    let cancel = CancellationToken::new();
    let _server = cancel.clone().drop_guard();
    tokio::spawn(serve(listener, Some(ca.server_identity("uid-a")), app, 2, cancel));
    let asked = async |uri: &str, path: &str| {
        // Large enough not to be on its way when the answer is.
        let request = Request::get(path).body(Body::from(vec![0; 4 * 1024 * 1024])).unwrap();
        let client = PeerClient::new(ca.client(uri));
        let target = Target::sidecar(address, "uid-a");
        let answer = client.request(&target, request);
        tokio::time::timeout(std::time::Duration::from_secs(10), answer)
            .await
            .expect("it is answered")
            .unwrap()
    };
    let hanging: Vec<_> = (0..2)
        .map(|_| {
            let client = PeerClient::new(ca.client(GATEWAY_URI));
            let request = Request::get("/hang").body(Body::empty()).unwrap();
            tokio::spawn(async move { client.request(&Target::sidecar(address, "uid-a"), request).await })
        })
        .collect();
    for _ in &hanging {
        calls.recv().await.unwrap();
    }
    assert_eq!(asked(OPERATOR_URI, "/who").await.status(), 200);
    for uri in [GATEWAY_URI, "berth://other"] {
        let refused = asked(uri, "/who").await;
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["retry-after"]),
            (503, &"1".parse().unwrap())
        );
        assert!(refused.headers().contains_key(berth_wire::NOT_ACCEPTED_HEADER));
    }
    // A place is free again once a call is over.
    hanging[0].abort();
    let served = async { while asked(GATEWAY_URI, "/who").await.status() != 200 {} };
    tokio::time::timeout(std::time::Duration::from_secs(10), served).await.expect("a place is free");
}
