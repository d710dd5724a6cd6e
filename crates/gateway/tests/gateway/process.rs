//! The whole process: its start, its readiness, its end.

use crate::api_server::{ApiServer, session};
use crate::client::{Answer, Client, head, post};
use crate::pki::Ca;
use crate::world::soon;
use berth_gateway::cli::Args;
use berth_gateway::run::run_with;
use clap::Parser;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A folder of its own that is gone with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("berth-gateway-process-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A free port at an address that nothing else here listens on.
async fn free(ip: &str) -> SocketAddr {
    TcpListener::bind((ip, 0)).await.unwrap().local_addr().unwrap()
}

async fn ask(address: SocketAddr, path: &str) -> Answer {
    Client::send(address, &head("GET", path, &[])).await.read_all().await
}

async fn listening(address: SocketAddr) {
    let connects = async {
        while tokio::net::TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("it listens", connects).await;
}

async fn ready(admin: SocketAddr) {
    let is_ready = async {
        while ask(admin, "/readyz").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("it is ready", is_ready).await;
}

#[tokio::test]
async fn the_process_is_ready_once_it_has_its_identity_and_knows_every_session_and_ends_when_asked() {
    let (api, folder, shutdown) = (ApiServer::start().await, Folder::new(), CancellationToken::new());
    let (listen, admin) = (free("127.0.0.71").await, free("127.0.0.72").await);
    *api.books.sessions.lock().unwrap() = vec![session("s")];
    let (listen_text, admin_text) = (listen.to_string(), admin.to_string());
    let flags = ["berth-gateway", "--listen", &listen_text, "--admin-listen", &admin_text, "--tls-dir"];
    let mut args = Args::try_parse_from(flags.into_iter().chain([folder.0.to_str().unwrap()])).unwrap();
    args.placement_wait = Duration::from_millis(20);
    args.shutdown_delay = Duration::from_secs(2);
    let process = tokio::spawn(run_with(args, api.config.clone(), shutdown.clone()));

    listening(admin).await;
    assert_eq!(ask(admin, "/livez").await.status, 200);
    assert_eq!(ask(admin, "/readyz").await.status, 503, "no identity yet");
    for (name, pem) in ["tls.crt", "tls.key", "ca.crt"].iter().zip(Ca::new().gateway_pems()) {
        std::fs::write(folder.0.join(name), pem).unwrap();
    }
    let path = "/demo/s/github/mcp";
    let good = post(path, "alice", "{}").replace("token-alice", "good");
    let answer = soon("calls are answered", Client::send(listen, &good).await.read_all()).await;
    assert_eq!((answer.status, &answer.error()["data"]["reason"]), (503, &"Starting".into()));
    assert_eq!(ask(admin, "/readyz").await.status, 503, "no list yet");

    api.lists.add_permits(1);
    ready(admin).await;
    assert_eq!(ask(listen, path).await.status, 401);
    let bad = Client::send(listen, &post(path, "bob", "{}")).await.read_all().await;
    assert_eq!(bad.status, 401);
    let pending = Client::send(listen, &good).await.read_all().await;
    assert_eq!((pending.status, &pending.error()["data"]["reason"]), (503, &"Pending".into()));
    let unknown = Client::send(listen, &good.replace("/demo/s/", "/demo/t/")).await.read_all().await;
    assert_eq!(unknown.status, 404);
    let metrics = ask(admin, "/metrics").await.body;
    assert!(metrics.contains(r#"berth_gateway_requests_total{kind="post",code="4xx"} 2"#), "{metrics}");
    assert!(!metrics.contains("good") && !metrics.contains("alice"), "no token and no name in metrics");

    shutdown.cancel();
    let is_not_ready = async {
        while ask(admin, "/readyz").await.status != 503 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("it is not ready", is_not_ready).await;
    assert_eq!(
        ask(listen, path).await.status,
        401,
        "calls are still accepted: routes to it last a little longer"
    );
    soon("the process ends", process).await.unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(listen).await.is_err(), "nothing listens any more");
}
