//! Attempts that fail, and what they leave behind, against real sockets.

use super::*;
use crate::fault;
use crate::fixture;
use crate::session::machine::State;
use crate::session::{CallError, Desired};
use crate::upstream::{Dialer, Proxies};
use axum::response::IntoResponse;
use axum::{Router, routing::post};
use berth_wire::{SessionSpec, SessionState, UpstreamTls};
use http::{HeaderMap, StatusCode};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use std::net::SocketAddr;
use std::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// What an upstream saw.
#[derive(Default)]
struct Books {
    initializes: usize,
    /// Values of Authorization that came with `initialize`.
    credentials: Vec<String>,
    deletes: usize,
}

/// An upstream that answers `initialize` with `statuses`, one after the other, the last one for ever.
async fn upstream(statuses: &'static [u16]) -> (SocketAddr, Arc<Mutex<Books>>) {
    let books = Arc::<Mutex<Books>>::default();
    let (on_post, on_delete) = (books.clone(), books.clone());
    let receive = async move |headers: HeaderMap, body: String| {
        if body.contains("notifications/initialized") {
            return StatusCode::ACCEPTED.into_response();
        }
        let mut books = lock(&on_post);
        books.credentials.push(headers[http::header::AUTHORIZATION].to_str().unwrap().to_owned());
        let status = statuses[books.initializes.min(statuses.len() - 1)];
        books.initializes += 1;
        let wait = axum::response::AppendHeaders((status != 503).then_some(("retry-after", "120")));
        if status != 200 {
            return (StatusCode::from_u16(status).unwrap(), wait).into_response();
        }
        let id = body.split("\"id\":").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25"}}}}"#);
        ([("content-type", "application/json"), ("mcp-session-id", "u")], text).into_response()
    };
    let delete = async move || {
        lock(&on_delete).deletes += 1;
        StatusCode::OK
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/mcp", post(receive).delete(delete));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, books)
}

fn spec(address: SocketAddr, credential: &str) -> SessionSpec {
    let mut spec = fixture::spec(credential);
    spec.upstream.url = format!("http://localhost:{}/mcp", address.port());
    spec
}

fn session(shared: &Arc<super::super::Shared>, spec: SessionSpec) -> Arc<Session> {
    Session::new("s".into(), Desired::new(spec, &shared.dialer).unwrap(), shared.clone())
}

async fn connect(session: &Arc<Session>) -> Result<Arc<Connection>, Trouble> {
    session.connection(Some(&"{}".into())).await.map_err(|error| match error {
        CallError::Trouble(trouble) => trouble,
        other => panic!("{other:?}"),
    })
}

/// Waits until no attempt runs.
async fn settled(shared: &super::super::Shared) {
    shared.tasks.close();
    shared.tasks.wait().await;
    shared.tasks.reopen();
}

/// The steps before the upstream has read `initialize`.
const BEFORE: [&str; 5] = ["resolve", "connect", "http", "initialize", "headers"];

#[tokio::test]
async fn a_panic_in_any_step_is_one_error_and_the_next_call_connects() {
    let (address, books) = upstream(&[200]).await;
    for (count, step) in BEFORE.into_iter().chain(["answer", "initialized", "publish"]).enumerate() {
        let shared = fixture::shared();
        let session = session(&shared, spec(address, "Bearer first"));
        fault::arm(step);
        let (one, other) = tokio::join!(connect(&session), connect(&session));
        for told in [one, other] {
            assert!(told.err().unwrap().message.contains("inside the sidecar"), "{step}");
        }
        settled(&shared).await;
        assert_eq!(shared.metrics.connections.get(), 0, "{step}: its sockets are closed");
        assert!(lock(&session.inner).unconfirmed, "{step}: nobody knows what it left behind");
        let report = session.report();
        assert_eq!((report.state, report.next_retry_unix_millis), (SessionState::Idle, None), "{step}");
        connect(&session).await.unwrap_or_else(|trouble| panic!("{step}: {trouble:?}"));
        assert_eq!((session.report().activity.connects, session.report().failure), (2, None), "{step}");
        assert!(lock(&session.inner).attempts.is_empty());
        let before = usize::from(!BEFORE.contains(&step));
        assert_eq!(lock(&books).initializes, before + 1, "{step} ({count})");
        lock(&books).initializes = 0;
    }
}

/// Serves TLS in front of `upstream`, for `localhost`; gives the address and, as PEM, the authority of its certificate.
async fn tls_in_front_of(upstream: SocketAddr) -> (SocketAddr, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let (key, params) =
        (KeyPair::generate().unwrap(), CertificateParams::new(vec!["localhost".into()]).unwrap());
    let leaf = params.signed_by(&key, &authority).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let config = config.with_no_client_auth().with_single_cert(vec![leaf.der().clone()], key).unwrap();
    let (acceptor, listener) = (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await);
    let listener = listener.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // An attempt that panics ends here.
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut plain = TcpStream::connect(upstream).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut plain).await;
            });
        }
    });
    (address, authority.pem())
}

#[tokio::test]
async fn a_panic_in_tls_is_one_error_and_the_next_call_connects() {
    let (plain, books) = upstream(&[200]).await;
    let (address, authority) = tls_in_front_of(plain).await;
    let shared = fixture::shared();
    let mut spec = spec(address, "Bearer first");
    spec.upstream.url = spec.upstream.url.replace("http:", "https:");
    spec.upstream.tls = Some(UpstreamTls { ca_pem: Some(authority), server_name: None });
    panics_once(&shared, &session(&shared, spec), "tls", &books).await;
}

/// A panic at `step`, before anything is sent, and what comes after it.
async fn panics_once(
    shared: &Arc<super::super::Shared>,
    session: &Arc<Session>,
    step: &'static str,
    books: &Mutex<Books>,
) {
    fault::arm(step);
    assert!(connect(session).await.err().unwrap().message.contains("inside the sidecar"));
    settled(shared).await;
    assert_eq!((lock(books).initializes, shared.metrics.connections.get()), (0, 0));
    connect(session).await.unwrap();
    assert_eq!((session.report().activity.connects, session.report().failure), (2, None));
}

#[tokio::test]
async fn a_panic_before_a_proxy_is_asked_is_one_error_and_the_next_call_connects() {
    let (plain, books) = upstream(&[200]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    // An attempt that panics ends here.
                    if stream.read_buf(&mut head).await.unwrap_or_default() == 0 {
                        return;
                    }
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                let mut plain = TcpStream::connect(plain).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut plain).await;
            });
        }
    });
    let set = |name: &str| (name == "http_proxy").then(|| format!("http://{address}"));
    let mut shared = fixture::shared();
    let dialer = Dialer::system().unwrap().through(Proxies::read(set, "").unwrap());
    Arc::get_mut(&mut shared).unwrap().dialer = Arc::new(dialer);
    let mut spec = fixture::spec("Bearer first");
    spec.upstream.url = "http://mcp.example.com/mcp".into();
    panics_once(&shared, &session(&shared, spec), "proxy", &books).await;
}

/// A way to `to` that lets nothing pass until it is released; gives the address, when somebody is there, and the release.
async fn held_up(to: SocketAddr) -> (SocketAddr, CancellationToken, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (reached, release) = (CancellationToken::new(), CancellationToken::new());
    let (there, released) = (reached.clone(), release.clone());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            there.cancel();
            let released = released.clone();
            tokio::spawn(async move {
                released.cancelled().await;
                let mut behind = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut behind).await;
            });
        }
    });
    (address, reached, release)
}

#[tokio::test]
async fn an_attempt_that_trusted_others_than_are_trusted_now_closes_no_gate() {
    let (plain, _) = upstream(&[200]).await;
    let (tls, right) = tls_in_front_of(plain).await;
    let (_, wrong) = tls_in_front_of(plain).await;
    let (address, reached, release) = held_up(tls).await;
    let shared = fixture::shared();
    let trusting = |authority: &str| {
        let mut spec = spec(address, "Bearer first");
        spec.upstream.url = spec.upstream.url.replace("http:", "https:");
        spec.upstream.tls = Some(UpstreamTls { ca_pem: Some(authority.to_owned()), server_name: None });
        spec
    };
    let session = session(&shared, trusting(&wrong));
    let mend = async {
        reached.cancelled().await;
        session.update(Desired::new(trusting(&right), &shared.dialer).unwrap());
        release.cancel();
    };
    let (told, ()) = tokio::join!(connect(&session), mend);
    let told = told.err().unwrap();
    assert_eq!((told.failure, told.retry_after), (Reason::TLSUntrusted, None), "{told:?}");
    assert_eq!(lock(&shared.gate).next_try(Instant::now()), None);
    connect(&session).await.unwrap();
}

#[tokio::test]
async fn a_panic_while_one_tries_for_all_makes_room_for_the_next() {
    let (address, _) = upstream(&[200]).await;
    let shared = fixture::shared();
    let session = session(&shared, spec(address, "Bearer first"));
    // The first failure closes the gate; nobody listens there.
    let other = Session::new(
        "o".into(),
        Desired::new(fixture::spec("Bearer first"), &shared.dialer).unwrap(),
        shared.clone(),
    );
    let told = connect(&other).await.err().unwrap();
    let wait = told.retry_after.expect("the gate is closed");
    assert_eq!(connect(&session).await.err().unwrap().message, told.message, "for every session");
    tokio::time::sleep(wait).await;
    fault::arm("connect");
    assert!(connect(&session).await.err().unwrap().message.contains("inside the sidecar"));
    settled(&shared).await;
    connect(&session).await.unwrap();
}

#[tokio::test]
async fn a_refused_credential_is_not_tried_again_until_it_or_an_object_changes() {
    for status in [401, 403] {
        let (address, books) = upstream(if status == 401 { &[401] } else { &[403] }).await;
        let shared = fixture::shared();
        let session = session(&shared, spec(address, "Bearer first"));
        let first = connect(&session).await.err().unwrap();
        assert_eq!((first.failure, first.retry_after), (Reason::Unauthorized, None));
        for _ in 0..5 {
            assert_eq!(connect(&session).await.err(), Some(first.clone()), "as it was told before");
        }
        assert_eq!(lock(&session.inner).link.state(), State::Barred);
        // The same told again changes nothing.
        session.update(Desired::new(spec(address, "Bearer first"), &shared.dialer).unwrap());
        connect(&session).await.err().unwrap();
        assert_eq!(lock(&books).initializes, 1, "nothing was sent meanwhile");
        session.update(Desired::new(spec(address, "Bearer second"), &shared.dialer).unwrap());
        assert_eq!(session.report().failure, None);
        connect(&session).await.err().unwrap();
        assert_eq!(lock(&books).credentials, ["Bearer first", "Bearer second"]);
        let mut elsewhere = spec(address, "Bearer second");
        elsewhere.upstream.url = format!("http://127.0.0.1:{}/mcp", address.port());
        session.update(Desired::new(elsewhere, &shared.dialer).unwrap());
        connect(&session).await.err().unwrap();
        assert_eq!(lock(&books).initializes, 3);
        // Somebody has mended the server's spec, whatever it was.
        let mut mended = spec(address, "Bearer second");
        mended.upstream.url = format!("http://127.0.0.1:{}/mcp", address.port());
        mended.generation.server += 1;
        session.update(Desired::new(mended, &shared.dialer).unwrap());
        connect(&session).await.err().unwrap();
        assert_eq!(lock(&books).initializes, 4);
    }
}

#[tokio::test]
async fn one_refused_credential_holds_up_no_other_session() {
    let (address, books) = upstream(&[401, 200]).await;
    let shared = fixture::shared();
    connect(&session(&shared, spec(address, "Bearer first"))).await.err().unwrap();
    connect(&session(&shared, spec(address, "Bearer second"))).await.unwrap();
    assert_eq!(lock(&books).credentials, ["Bearer first", "Bearer second"]);
}

#[tokio::test]
async fn a_limit_of_the_upstreams_holds_every_session_until_its_time() {
    let (address, books) = upstream(&[429]).await;
    let shared = fixture::shared();
    let sessions: Vec<_> = (0..50).map(|_| session(&shared, spec(address, "Bearer first"))).collect();
    let told = connect(&sessions[0]).await.err().unwrap();
    assert_eq!(told.failure, Reason::RateLimited);
    let wait = told.retry_after.unwrap();
    assert_eq!(wait.as_secs(), 120);
    for session in &sessions {
        let told = connect(session).await.err().unwrap();
        assert!(told.failure == Reason::RateLimited && told.retry_after.is_some_and(|left| left <= wait));
        let report = session.report();
        assert_eq!((report.state, report.failure), (SessionState::Idle, Some(Reason::RateLimited)));
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
        let next = u128::from(report.next_retry_unix_millis.expect("a time"));
        assert!(next > unix && next <= unix + 120_000);
    }
    assert_eq!(lock(&books).initializes, 1);
}

#[tokio::test]
async fn an_outage_of_one_server_is_tried_by_one_session_at_a_time() {
    let (address, books) = upstream(&[503]).await;
    let shared = fixture::shared();
    let sessions: Vec<_> = (0..50).map(|_| session(&shared, spec(address, "Bearer first"))).collect();
    let told = futures::future::join_all(sessions.iter().map(connect)).await;
    let wait = told.iter().filter_map(|told| told.as_ref().err().unwrap().retry_after).max().unwrap();
    assert!(told.iter().all(|told| told.as_ref().err().unwrap().failure == Reason::UpstreamUnreachable));
    let began_together = lock(&books).initializes;
    assert!(lock(&shared.gate).next_try(Instant::now()).is_some());
    tokio::time::sleep(wait).await;
    let told = futures::future::join_all(sessions.iter().map(connect)).await;
    assert!(told.iter().all(|told| told.as_ref().err().unwrap().failure == Reason::UpstreamUnreachable));
    assert_eq!(lock(&books).initializes, began_together + 1, "one tries for all");
}

#[tokio::test]
async fn what_is_wrong_with_one_initialize_holds_that_session_and_no_other() {
    for status in [400, 422, 429] {
        let statuses: &[u16] = match status {
            400 => &[400, 200],
            422 => &[422, 200],
            _ => &[429, 200],
        };
        let (address, books) = upstream(statuses).await;
        let shared = fixture::shared();
        let of = |credential: &str| {
            let mut spec = spec(address, credential);
            spec.upstream.own_credential = status == 429;
            spec
        };
        let own = session(&shared, of("Bearer first"));
        let told = connect(&own).await.err().unwrap();
        assert_eq!(told.retry_after.map(|wait| wait.as_secs()), Some(120), "{status}");
        for _ in 0..5 {
            let held = connect(&own).await.err().unwrap();
            assert_eq!((held.failure, held.message), (told.failure, told.message.clone()));
            assert!(held.retry_after <= told.retry_after);
        }
        assert!(own.report().next_retry_unix_millis.is_some(), "{status}");
        assert_eq!(lock(&books).initializes, 1, "{status}: nothing was sent meanwhile");
        connect(&session(&shared, of("Bearer second"))).await.unwrap();
        own.update(Desired::new(of("Bearer third"), &shared.dialer).unwrap());
        connect(&own).await.unwrap();
        assert_eq!(lock(&books).credentials, ["Bearer first", "Bearer second", "Bearer third"]);
    }
}

#[tokio::test]
async fn attempts_that_are_still_being_cleaned_up_after_are_bounded() {
    let (address, books) = upstream(&[200]).await;
    let shared = fixture::shared();
    let session = session(&shared, spec(address, "Bearer first"));
    let (cleaning, attempts): (Vec<_>, Vec<_>) =
        (0..16).map(|epoch| Running::new(session.clone(), epoch)).unzip();
    lock(&session.inner).attempts = attempts;
    let told = connect(&session).await.err().unwrap();
    assert!(told.message.contains("16 attempts that failed are still being cleaned up"), "{told:?}");
    assert_eq!(lock(&books).initializes, 0);
    drop(cleaning);
    connect(&session).await.unwrap();
}
