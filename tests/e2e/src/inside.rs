//! The network of the test cluster's node: from this machine's own, no pod can be reached.

use crate::{Process, TestNamespace, eventually};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::Client;
use kube::api::{Api, ListParams};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// Runs `work` in the node's network, on a thread of its own: sockets and processes that it makes stay in there.
pub fn inside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let network = File::open(Process::of_cluster("kube-apiserver").link("ns/net")).expect("it has a network");
    let thread = std::thread::spawn(move || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("tests run as root, as the cluster does");
        work()
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Waits until connections to a Service come through: the node's rules for it are written a moment after its pods are Ready.
/// In a cluster that is given nobody can look from inside, and nothing is waited for.
pub async fn until_reached(namespace: &TestNamespace, service: &str, port: u16) {
    if std::env::var_os("BERTH_KUBECONFIG").is_some() {
        return;
    }
    let found = namespace.api::<Service>().get(service).await.unwrap();
    let address = found.spec.and_then(|spec| spec.cluster_ip).expect("a Service has an address");
    let address = SocketAddr::new(address.parse::<IpAddr>().unwrap(), port);
    eventually(&format!("Service {service} is reached"), Duration::from_mins(1), || async {
        let dial = move || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
        let dialled = tokio::task::spawn_blocking(move || inside(dial)).await.expect("a dial ends");
        dialled.then_some(())
    })
    .await;
}

/// The address of the only node, in its own network and for its pods.
pub async fn node_address(client: &Client) -> IpAddr {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    let addresses = nodes.items[0].status.as_ref().and_then(|status| status.addresses.clone());
    let internal = addresses.unwrap().into_iter().find(|address| address.type_ == "InternalIP").unwrap();
    internal.address.parse().unwrap()
}
