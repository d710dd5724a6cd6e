//! The whole process: its start, its readiness, its end.

use crate::api_server::{ApiServer, held_at, session};
use crate::client::{Answer, Client, get, head, post};
use crate::leader::LeaderStand;
use crate::pki::Ca;
use crate::sidecar::Sidecar;
use crate::world::{SERVER_UID, soon};
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
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("berth-gateway-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Writes an identity as a mounted Secret has it.
    fn fill(&self, pems: [String; 3]) {
        for (name, pem) in ["tls.crt", "tls.key", "ca.crt"].iter().zip(pems) {
            std::fs::write(self.0.join(name), pem).unwrap();
        }
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

fn args(listen: SocketAddr, admin: SocketAddr, folder: &Folder) -> Args {
    let (listen, admin, dir) = (listen.to_string(), admin.to_string(), folder.0.to_str().unwrap());
    let flags = ["berth-gateway", "--listen", &listen, "--admin-listen", &admin, "--tls-dir", dir];
    Args::try_parse_from(flags).unwrap()
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

async fn not_ready(admin: SocketAddr) {
    let is_not_ready = async {
        while ask(admin, "/readyz").await.status != 503 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("it is not ready", is_not_ready).await;
}

#[tokio::test]
async fn the_process_is_ready_once_it_has_its_identity_and_knows_every_session_and_ends_when_asked() {
    let (api, folder, shutdown) = (ApiServer::start().await, Folder::new("start"), CancellationToken::new());
    let (listen, admin) = (free("127.0.0.71").await, free("127.0.0.72").await);
    *api.books.sessions.lock().unwrap() = vec![session("s")];
    let mut args = args(listen, admin, &folder);
    args.placement_wait = Duration::from_millis(20);
    args.shutdown_delay = Duration::from_secs(2);
    let process = tokio::spawn(run_with(args, api.config.clone(), shutdown.clone()));

    listening(admin).await;
    assert_eq!(ask(admin, "/livez").await.status, 200);
    assert_eq!(ask(admin, "/readyz").await.status, 503, "no identity yet");
    folder.fill(Ca::new().gateway_pems());
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
    not_ready(admin).await;
    assert_eq!(
        ask(listen, path).await.status,
        401,
        "calls are still accepted: routes to it last a little longer"
    );
    soon("the process ends", process).await.unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(listen).await.is_err(), "nothing listens any more");
}

#[tokio::test]
async fn a_process_that_follows_the_leader_finishes_its_running_call_before_it_ends() {
    let (api, folder, shutdown) = (ApiServer::start().await, Folder::new("end"), CancellationToken::new());
    let (listen, admin, ca) = (free("127.0.0.73").await, free("127.0.0.74").await, Ca::new());
    folder.fill(ca.gateway_pems());
    let pod = SocketAddr::new("127.0.0.75".parse().unwrap(), berth_wire::SIDECAR_PORT);
    let sidecar = Sidecar::start(pod, ca.sidecar(SERVER_UID)).await;
    let leader = LeaderStand::start(ca.operator()).await;
    // The session has no status: only the leader knows its place.
    *api.books.sessions.lock().unwrap() = vec![session("s")];
    *api.books.lease.lock().unwrap() = Some(held_at(leader.address));
    api.lists.add_permits(1);
    let mut args = args(listen, admin, &folder);
    args.operator_namespace = Some("berth".into());
    args.allowed_hosts = vec!["gateway.test".into()];
    args.shutdown_delay = Duration::from_millis(50);
    let process = tokio::spawn(run_with(args, api.config.clone(), shutdown.clone()));
    listening(admin).await;
    ready(admin).await;

    let told = leader.stream().await;
    told.place("uid-s", Some(pod.ip()));
    let (heard, events) = (sidecar.script_stream(), sidecar.script_stream());
    let request = |request: String| request.replace("token-alice", "good");
    let mut listens = Client::send(listen, &request(get("/demo/s/github/mcp", "alice"))).await;
    listens.read_until("200 OK").await;
    let mut call = Client::send(listen, &request(post("/demo/s/github/mcp", "alice", "{}"))).await;
    events.send("data: begun\n\n".into()).await.unwrap();
    call.read_until("data: begun").await;
    let probe =
        head("GET", "/readyz", &["origin: https://evil.example"]).replace("gateway.test", "10.0.0.7:8081");
    let probed = Client::send(admin, &probe).await.read_all().await;
    assert_eq!(probed.status, 200, "a kubelet names the pod's address, and Host is not checked for it");

    shutdown.cancel();
    not_ready(admin).await;
    assert!(listens.read_all().await.body.ends_with("0\r\n\r\n"), "closed in order");
    soon("the sidecar sees that nobody listens", heard.closed()).await;
    let refused = async {
        while tokio::net::TcpStream::connect(listen).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("nothing new is taken", refused).await;
    assert!(!process.is_finished());
    events.send("data: done\n\n".into()).await.unwrap();
    drop(events);
    let answer = call.read_all().await;
    assert!(answer.body.contains("data: done") && answer.body.ends_with("0\r\n\r\n"), "{answer:?}");
    soon("the process ends", process).await.unwrap().unwrap();
    told.left().await;
}
