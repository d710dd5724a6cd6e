//! A way to the gateway, or to an upstream, that is cut when it is silent, as load balancers do.

use crate::gateway_url;
use crate::proxy::{dial_pod, listen_to_pods};
use kube::Client;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

/// A port that leads to one place until this is dropped.
#[derive(Debug)]
pub struct Cutter {
    address: SocketAddr,
    cuts: Arc<AtomicU32>,
    task: JoinHandle<()>,
}

impl Cutter {
    /// One on loopback that leads to the gateway, and cuts a connection on which nothing comes back for `silence`.
    pub async fn open(silence: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port on loopback");
        let dial = || async {
            let gateway = gateway_url();
            TcpStream::connect(gateway.trim_start_matches("http://")).await.ok()
        };
        Self::leading(listener, silence, dial)
    }

    /// The same for pods, on the node, that leads to `upstream`.
    pub async fn before(client: &Client, upstream: SocketAddr, silence: Duration) -> Self {
        Self::leading(listen_to_pods(client).await, silence, move || dial_pod(upstream))
    }

    fn leading<F>(listener: TcpListener, silence: Duration, dial: impl Fn() -> F + Send + 'static) -> Self
    where
        F: Future<Output = Option<TcpStream>> + Send + 'static,
    {
        let address = listener.local_addr().expect("it has an address");
        let cuts = Arc::<AtomicU32>::default();
        let counted = cuts.clone();
        let task = tokio::spawn(async move {
            // They end with this task.
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let (counted, far) = (counted.clone(), dial());
                connections.spawn(async move {
                    let far = far.await.expect("what it leads to can be reached");
                    if lead(near, far, silence).await {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Self { address, cuts, task }
    }

    /// Base URL, in place of that of what it leads to.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many connections were cut.
    pub fn cuts(&self) -> u32 {
        self.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// True if it was cut, false if one side ended it.
async fn lead(near: TcpStream, far: TcpStream, silence: Duration) -> bool {
    let (mut from_near, mut to_near) = near.into_split();
    let (mut from_far, mut to_far) = far.into_split();
    let up = async { drop(tokio::io::copy(&mut from_near, &mut to_far).await) };
    let down = async {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let Ok(read) = timeout(silence, from_far.read(&mut bytes)).await else { return true };
            match read {
                Ok(0) | Err(_) => return false,
                Ok(count) if to_near.write_all(&bytes[..count]).await.is_err() => return false,
                Ok(_) => {}
            }
        }
    };
    tokio::select! {
        () = up => false,
        cut = down => cut,
    }
}
