//! The TLS ports: a client that checks can tell what is wrong with each.

use std::{net::SocketAddr, sync::Arc};

use probe::ports::Port;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::client::{Server, drain, send_on};

async fn connect(address: SocketAddr, ca: &str, name: &str) -> Result<TlsStream<TcpStream>, String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| error.to_string())
}

async fn ca(server: &Server) -> String {
    server.ask("GET", "/tls/ca", &[], "").await.body
}

#[tokio::test]
async fn a_good_certificate_is_taken_by_every_name() {
    let server = Server::start().await;
    let good = server.listen(Port::Good).await;
    let ca = ca(&server).await;
    for name in ["localhost", "127.0.0.1", "::1", "probe"] {
        let stream = connect(good, &ca, name).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let answer = send_on(stream, "GET", "/healthz", &[], "").await.unwrap();
        assert_eq!(drain(answer).await, ("ok\n".to_owned(), true));
    }
    let books = server.books().await;
    assert_eq!(books["connections"]["ports"]["good"]["handshakes"], 4);
}

#[tokio::test]
async fn bad_certificates_are_told_apart() {
    let server = Server::start().await;
    let ca = ca(&server).await;
    for (port, wrong) in [
        (Port::Expired, "Expired"),
        (Port::WrongName, "not valid for name"),
        (Port::NoIntermediate, "UnknownIssuer"),
    ] {
        let address = server.listen(port).await;
        let error = connect(address, &ca, "localhost").await.expect_err("a refusal");
        assert!(error.to_lowercase().contains(&wrong.to_lowercase()), "{port}: {error}");
        server.until(|books| books["connections"]["ports"][port.name()]["handshakesFailed"] == 1).await;
    }
}

#[tokio::test]
async fn a_new_ca_is_shown_to_new_connections() {
    let server = Server::start().await;
    let good = server.listen(Port::Good).await;
    let old = ca(&server).await;
    let open = connect(good, &old, "localhost").await.unwrap();
    let new = server.ask("POST", "/tls/rotate", &[], "").await.body;
    assert_eq!(ca(&server).await, new);
    assert!(connect(good, &old, "localhost").await.is_err(), "the old CA is worth nothing any more");
    connect(good, &new, "localhost").await.unwrap();
    let answer = send_on(open, "GET", "/healthz", &[], "").await.unwrap();
    assert_eq!(answer.status(), 200, "what is open goes on");
}
