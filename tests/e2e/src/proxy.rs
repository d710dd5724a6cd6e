//! An HTTP proxy on the node, outside of the pods' network as a company's is: it notes what it is asked for.

use crate::inside::{inside, node_address};
use kube::Client;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A way is there, or not, within this.
const DIAL: Duration = Duration::from_secs(10);
/// Longest head of a request, in bytes.
const HEAD_LIMIT: usize = 8 * 1024;

/// A proxy that serves until this is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    notes: Arc<Notes>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Notes {
    /// First lines of requests.
    asked: Mutex<Vec<String>>,
    /// What CONNECT is answered with.
    status: Mutex<u16>,
    /// The pod that every way leads to.
    behind: IpAddr,
    /// Ports that may be asked for, and the pod's in place of each.
    ports: Vec<(u16, u16)>,
}

impl Proxy {
    /// One whose every way leads to the pod at `behind`, whatever name is asked for: the port decides, by pairs of one that is
    /// asked for and one of the pod.
    pub async fn open(client: &Client, behind: IpAddr, ports: &[(u16, u16)]) -> Self {
        let listener = listen_to_pods(client).await;
        let address = listener.local_addr().expect("it has an address");
        let (asked, status) = (Mutex::default(), Mutex::new(200));
        let notes = Arc::new(Notes { asked, status, behind, ports: ports.to_vec() });
        let of_task = notes.clone();
        let task = tokio::spawn(async move {
            // They end with this task.
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(serve(near, of_task.clone()));
            }
        });
        Self { address, notes, task }
    }

    /// Its URL, as pods reach it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Host and port of the URL.
    pub fn authority(&self) -> String {
        self.address.to_string()
    }

    /// First lines of the requests so far.
    pub fn asked(&self) -> Vec<String> {
        self.notes.asked.lock().unwrap().clone()
    }

    /// Has it answer every CONNECT with this status from now on.
    pub fn answer_with(&self, status: u16) {
        *self.notes.status.lock().unwrap() = status;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A port of the node, which pods reach by its address.
pub(crate) async fn listen_to_pods(client: &Client) -> TcpListener {
    let node = node_address(client).await;
    let listener = inside(move || std::net::TcpListener::bind((node, 0)).expect("a port of the node"));
    listener.set_nonblocking(true).expect("a listener that does not block");
    TcpListener::from_std(listener).expect("a listener")
}

/// A connection from the node to a pod, if one can be had.
pub(crate) async fn dial_pod(pod: SocketAddr) -> Option<TcpStream> {
    let dial = move || inside(move || std::net::TcpStream::connect_timeout(&pod, DIAL));
    let stream = tokio::task::spawn_blocking(dial).await.ok()?.ok()?;
    stream.set_nonblocking(true).expect("a socket that does not block");
    Some(TcpStream::from_std(stream).expect("a socket"))
}

/// A client that goes away, or asks for what nobody may, gets no answer.
async fn serve(mut near: TcpStream, notes: Arc<Notes>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > HEAD_LIMIT || !matches!(near.read_buf(&mut head).await, Ok(1..)) {
            return;
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let line = head.lines().next().unwrap_or_default().to_owned();
    let port = line.split(' ').nth(1).and_then(|to| to.rsplit_once(':')?.1.parse::<u16>().ok());
    notes.asked.lock().unwrap().push(line);
    let status = *notes.status.lock().unwrap();
    if near.write_all(format!("HTTP/1.1 {status} as told\r\n\r\n").as_bytes()).await.is_err() || status != 200
    {
        return;
    }
    let Some((_, to)) = notes.ports.iter().find(|(from, _)| Some(*from) == port).copied() else { return };
    let Some(mut far) = dial_pod(SocketAddr::new(notes.behind, to)).await else { return };
    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
}
