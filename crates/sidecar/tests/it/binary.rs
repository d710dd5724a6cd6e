//! The binary itself: flags, files, health, signals.

use crate::support::harness::{SERVER_UID, data_request, read, request_of, spec};
use crate::support::pki::Pki;
use crate::support::upstream::Upstream;
use crate::support::{PATIENCE, client};
use axum::body::Body;
use berth_net::client::{PeerClient, Target};
use http::{Method, Request, StatusCode};
use serde_json::Value;
use std::net::SocketAddr;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStderr, Command};

fn start(tls_dir: &std::path::Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_berth-sidecar"))
        .args(["--server-uid", SERVER_UID, "--server-name", "scripted", "--revision", "r1", "--slots", "2"])
        .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--tls-dir"])
        .arg(tls_dir)
        .env_remove("RUST_LOG")
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Reads log lines until `message`.
async fn logged(lines: &mut tokio::io::Lines<BufReader<ChildStderr>>, message: &str) -> Value {
    let found = tokio::time::timeout(PATIENCE, async {
        loop {
            let line = lines.next_line().await.unwrap().expect("a log line");
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["message"] == message {
                return line;
            }
        }
    });
    found.await.expect(message)
}

/// The address in a log field, which is written as `Some(address)`.
fn address(line: &Value, field: &str) -> SocketAddr {
    let text = line[field].as_str().unwrap();
    text.trim_start_matches("Some(").trim_end_matches(')').parse().unwrap()
}

async fn admin(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn the_binary_serves_and_ends_its_sessions_when_told_to() {
    let (pki, upstream) = (Pki::new(), Upstream::start().await);
    let dir = std::env::temp_dir().join(format!("berth-sidecar-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    pki.sidecar(SERVER_UID).write(&dir);
    let mut child = start(&dir);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let serving = logged(&mut lines, "serving").await;
    let admin_address = address(&serving, "admin_listen");
    assert!(admin(admin_address, "/readyz").await.starts_with("HTTP/1.1 200"));

    let target = Target::sidecar(address(&serving, "listen"), SERVER_UID);
    let operator = PeerClient::new(pki.client(berth_wire::OPERATOR_URI).identity());
    let put = Request::put("/v1/sessions/s")
        .header(berth_wire::TERM_HEADER, "1")
        .body(Body::from(serde_json::to_vec(&spec("s", &upstream)).unwrap()))
        .unwrap();
    assert_eq!(read(request_of(&operator, &target, put).await).await.0, StatusCode::OK);
    let gateway = PeerClient::new(pki.client(berth_wire::GATEWAY_URI).identity());
    let initialize = data_request(Method::POST, "s", None, client::initialize("a").to_string());
    assert_eq!(read(request_of(&gateway, &target, initialize).await).await.0, StatusCode::OK);
    let metrics = admin(admin_address, "/metrics").await;
    for line in [
        "berth_sidecar_sessions 1",
        "berth_sidecar_scopes 1",
        "berth_sidecar_connects_total{result=\"Connected\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }

    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().await.unwrap().success());
    let status = tokio::time::timeout(PATIENCE, child.wait()).await.expect("an end in time").unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(upstream.books().deletes, ["upstream-1"]);
    let mut rest = String::new();
    lines.into_inner().read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("\"ended\"") && !rest.contains("Bearer"), "{rest}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[tokio::test]
async fn the_binary_says_what_it_misses() {
    let mut child = start(std::path::Path::new("/no-such-folder"));
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = logged(&mut lines, "the sidecar cannot run").await;
    assert!(line["error"].as_str().unwrap().contains("/no-such-folder/tls.crt"), "{line}");
    assert!(!child.wait().await.unwrap().success());
}
