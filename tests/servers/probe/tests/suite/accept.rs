//! Faults below HTTP and while a request is read.

use std::time::{Duration, Instant};

use probe::ports::Port;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time,
};

use crate::client::{SOON, Server, drain, send_on};

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: probe.test\r\nconnection: close\r\n\r\n";

/// Long enough to see that nothing comes.
const QUIET: Duration = Duration::from_millis(150);

#[tokio::test]
async fn a_connection_may_be_accepted_and_never_read() {
    let server = Server::start().await;
    let plain = server.listen(Port::Plain).await;
    server.faults(json!({"accept": {"hang": true}})).await;
    let mut hung = TcpStream::connect(plain).await.unwrap();
    hung.write_all(HEALTH).await.unwrap();
    let mut byte = [0];
    assert!(time::timeout(QUIET, hung.read(&mut byte)).await.is_err(), "nothing comes");
    let books = server.until(|books| books["connections"]["ports"]["plain"]["struck"] == 1).await;
    assert_eq!(books["connections"]["ports"]["plain"]["open"], 1);
    drop(hung);
    server.until(|books| books["connections"]["ports"]["plain"]["open"] == 0).await;
}

#[tokio::test]
async fn an_accepted_connection_may_close_or_wait() {
    let server = Server::start().await;
    let plain = server.listen(Port::Plain).await;
    server.faults(json!({"accept": {"close": true, "times": 1}})).await;
    let mut closed = TcpStream::connect(plain).await.unwrap();
    let mut text = String::new();
    // An end, or a reset if something was written meanwhile.
    let read = time::timeout(SOON, closed.read_to_string(&mut text)).await.expect("an end in time");
    assert!(read.is_err() || text.is_empty());

    server.faults(json!({"accept:plain": {"delayMs": 60, "times": 1}})).await;
    let start = Instant::now();
    for slow in [true, false] {
        let stream = TcpStream::connect(plain).await.unwrap();
        let answer = send_on(stream, "GET", "/healthz", &[], "").await.unwrap();
        assert_eq!(drain(answer).await, ("ok\n".to_owned(), true));
        assert!(!slow || start.elapsed() >= Duration::from_millis(60));
    }
}

#[tokio::test]
async fn every_byte_may_be_slow_the_head_included() {
    let server = Server::start().await;
    let plain = server.listen(Port::Plain).await;
    server.faults(json!({"accept": {"dripMs": 20}})).await;
    let mut stream = TcpStream::connect(plain).await.unwrap();
    stream.write_all(HEALTH).await.unwrap();
    let start = Instant::now();
    let mut head = [0; 5];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/");
    assert!(start.elapsed() >= Duration::from_millis(80), "{:?}", start.elapsed());
    assert_eq!(server.ask("GET", "/healthz", &[], "").await.body, "ok\n", "the main port is never struck");
}

#[tokio::test]
async fn a_silent_port_reads_and_never_answers() {
    let server = Server::start().await;
    let silent = server.listen(Port::Silent).await;
    let mut stream = TcpStream::connect(silent).await.unwrap();
    // More than the buffers between would hold.
    time::timeout(SOON, stream.write_all(&vec![b'x'; 16 << 20])).await.expect("it is read").unwrap();
    let mut byte = [0];
    assert!(time::timeout(QUIET, stream.read(&mut byte)).await.is_err(), "nothing comes");
    drop(stream);
    server.until(|books| books["connections"]["ports"]["silent"]["open"] == 0).await;
}

#[tokio::test]
async fn a_body_may_be_read_slowly_never_or_not_to_its_end() {
    let server = Server::start().await;
    let session = server.initialize("Bearer a").await;
    let header = [("mcp-session-id", session.as_str())];
    let body =
        json!({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "x".repeat(10_240)}}).to_string();
    server.faults(json!({"read": {"dripMs": 5, "times": 1}})).await;
    let start = Instant::now();
    assert_eq!(server.ask("POST", "/mcp", &header, &body).await.status, 200);
    assert!(start.elapsed() >= Duration::from_millis(50), "{:?}", start.elapsed());

    server.faults(json!({"read": {"status": 413, "body": "too large", "times": 1}})).await;
    let refused = server.ask("POST", "/mcp", &header, &body).await;
    assert_eq!((refused.status.as_u16(), refused.body.as_str()), (413, "too large"));
    server.faults(json!({"read": {"close": true, "times": 1}})).await;
    assert!(server.send("POST", "/mcp", &header, &body).await.is_err());

    server.faults(json!({"read": {"hang": true}})).await;
    let hung = time::timeout(QUIET, server.send("POST", "/mcp", &header, &body)).await;
    assert!(hung.is_err(), "no answer");
    // A GET has no body.
    drop(server.stream(&session, None).await);
    assert_eq!(server.books().await["totals"]["faulted"], 4);
}
