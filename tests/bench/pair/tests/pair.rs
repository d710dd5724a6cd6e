//! The pair and the client against each other, over sockets of this machine.

#![allow(clippy::unwrap_used)]

use bench_pair::load::{self, NUMBER, Post, Run};
use bench_pair::{relay, tls};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::fs;
use std::net::SocketAddr;
use tempfile::TempDir;
use tokio::net::TcpListener;

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn ca() -> Issuer {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A folder with a certificate by `issuer`, whose peers must have one by `trusted`.
fn folder(issuer: &Issuer, trusted: &Issuer) -> TempDir {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new([tls::NAME.to_owned()]).unwrap();
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("tls.crt"), params.signed_by(&key, issuer).unwrap().pem()).unwrap();
    fs::write(folder.path().join("tls.key"), key.serialize_pem()).unwrap();
    fs::write(folder.path().join("ca.crt"), trusted.pem()).unwrap();
    folder
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A server that sends back a header and the body, except for the word `odd`, which it does not know.
async fn upstream() -> SocketAddr {
    async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
        let sent = request.headers().get("x-sent").cloned();
        let body = request.into_body().collect().await?.to_bytes();
        let odd = body.windows(3).any(|word| word == b"odd");
        let mut response = Response::new(Full::new(if odd { Bytes::from_static(b"what?") } else { body }));
        response.headers_mut().extend(sent.map(|value| (http::HeaderName::from_static("x-got"), value)));
        Ok(response)
    }
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)));
        }
    });
    address
}

/// The pair before `to`; the address of its front.
async fn pair(front: &TempDir, back: &TempDir, to: SocketAddr) -> SocketAddr {
    let (back_listener, back_address) = listener().await;
    let acceptor = tls::configs(back.path()).unwrap().1.into();
    tokio::spawn(relay::back(back_listener, to, acceptor));
    let (front_listener, front_address) = listener().await;
    let connector = tls::configs(front.path()).unwrap().0.into();
    tokio::spawn(relay::front(front_listener, back_address, connector));
    front_address
}

fn post(to: SocketAddr, body: &str) -> Post {
    Post { to, path: "/mcp".into(), headers: vec![("x-sent".into(), "1".into())], body: body.into() }
}

#[tokio::test]
async fn calls_pass_the_pair_with_head_and_body_on_kept_connections() {
    let ca = ca();
    let (front, back) = (folder(&ca, &ca), folder(&ca, &ca));
    let to = pair(&front, &back, upstream().await).await;
    let answer = load::once(&post(to, "hello")).await.unwrap();
    assert_eq!((answer.status, answer.body.as_str()), (200, "hello"));
    assert!(answer.headers.contains(&("x-got".into(), "1".into())), "{answer:?}");

    let body = format!("{NUMBER} {}", "x".repeat(100_000));
    let run = Run { post: post(to, &body), expect: "00000".into(), connections: 4, millis: 100 };
    let ran = load::run(&run).await.unwrap();
    assert!(ran.calls >= 4 && ran.nanos >= 100_000_000, "{ran:?}");
    assert!(0 < ran.p50_nanos && ran.p50_nanos <= ran.p99_nanos && ran.p99_nanos <= ran.nanos, "{ran:?}");
}

#[tokio::test]
async fn one_answer_that_is_not_expected_fails_the_run() {
    let run = Run { post: post(upstream().await, "odd"), expect: "odd".into(), connections: 1, millis: 100 };
    let error = load::run(&run).await.unwrap_err().to_string();
    assert!(error.contains("200 OK what?"), "{error}");
}

#[tokio::test]
async fn each_connection_sends_its_own_number() {
    let to = upstream().await;
    let second =
        |expect: &str| Run { post: post(to, NUMBER), expect: expect.into(), connections: 2, millis: 1 };
    assert!(load::run(&second("00000")).await.is_ok());
    let error = load::run(&second("000000")).await.unwrap_err().to_string();
    assert!(error.contains("000001"), "{error}");
}

#[tokio::test]
async fn the_back_refuses_whoever_has_no_certificate_of_its_ca() {
    let (ca, other) = (ca(), ca());
    let (front, back) = (folder(&other, &ca), folder(&ca, &ca));
    let to = pair(&front, &back, upstream().await).await;
    assert!(load::once(&post(to, "hello")).await.is_err());
}
