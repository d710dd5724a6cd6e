//! The network of the test cluster's node: from this machine's own, no pod can be reached.

use crate::Process;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;

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
