//! TCP connections in the books.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Serialize;
use tokio::sync::watch;

use crate::{lock, ports::Port};

/// Counts of TCP connections.
#[derive(Debug, Default)]
pub struct Connections {
    counts: Mutex<ConnectionCounts>,
    drops: watch::Sender<u64>,
}

/// The counts at one moment.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionCounts {
    /// Accepted since the last reset, whatever they carried.
    pub accepted: u64,
    /// Open now, whatever they carried.
    pub open: u64,
    /// Accepted since the last reset, and carried a request to `/mcp` (probes and admin calls do not).
    pub mcp_accepted: u64,
    /// Open now, and carried a request to `/mcp`.
    pub mcp_open: u64,
    /// The same for each port that was ever used.
    pub ports: BTreeMap<Port, PortCounts>,
}

/// Counts of one port.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PortCounts {
    /// Accepted since the last reset.
    pub accepted: u64,
    /// Open now.
    pub open: u64,
    /// Struck by a fault when they were accepted.
    pub struck: u64,
    /// TLS handshakes that were finished.
    pub handshakes: u64,
    /// TLS handshakes that failed: the client turned away, mostly.
    pub handshakes_failed: u64,
}

impl Connections {
    /// The counts now.
    pub fn counts(&self) -> ConnectionCounts {
        lock(&self.counts).clone()
    }

    /// Forgets how many were accepted; what is open stays true.
    pub fn reset(&self) {
        let mut counts = lock(&self.counts);
        (counts.accepted, counts.mcp_accepted) = (0, 0);
        for port in counts.ports.values_mut() {
            *port = PortCounts { open: port.open, ..PortCounts::default() };
        }
    }

    /// Drops every open connection that carried a request to `/mcp`, and says how many those were.
    pub fn drop_mcp(&self) -> u64 {
        let open = lock(&self.counts).mcp_open;
        self.drops.send_modify(|number| *number += 1);
        open
    }
}

/// One open TCP connection; dropping it counts it as closed.
#[derive(Debug)]
pub struct Connection {
    connections: Arc<Connections>,
    /// Where it was accepted.
    pub port: Port,
    mcp: AtomicBool,
}

impl Connection {
    /// Counts a new one.
    pub fn open(connections: &Arc<Connections>, port: Port) -> Self {
        let connection = Self { connections: Arc::clone(connections), port, mcp: AtomicBool::new(false) };
        connection.count(|all, port| {
            all.accepted += 1;
            all.open += 1;
            port.accepted += 1;
            port.open += 1;
        });
        connection
    }

    /// Notes that this connection carried a request to `/mcp`.
    pub fn mark_mcp(&self) {
        if !self.mcp.swap(true, Ordering::Relaxed) {
            self.count(|all, _| {
                all.mcp_accepted += 1;
                all.mcp_open += 1;
            });
        }
    }

    /// Notes that a fault struck it.
    pub fn struck(&self) {
        self.count(|_, port| port.struck += 1);
    }

    /// Notes how its TLS handshake ended.
    pub fn shook_hands(&self, well: bool) {
        self.count(|_, port| if well { port.handshakes += 1 } else { port.handshakes_failed += 1 });
    }

    /// Waits until a test has it dropped, see [`Connections::drop_mcp`].
    pub async fn dropped(&self) {
        let mut drops = self.connections.drops.subscribe();
        // The sender lives as long as this does.
        while drops.changed().await.is_ok() {
            if self.mcp.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn count(&self, change: impl FnOnce(&mut ConnectionCounts, &mut PortCounts)) {
        let mut counts = lock(&self.connections.counts);
        let mut port = counts.ports.remove(&self.port).unwrap_or_default();
        change(&mut counts, &mut port);
        counts.ports.insert(self.port, port);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mcp = u64::from(self.mcp.load(Ordering::Relaxed));
        self.count(|all, port| {
            all.open -= 1;
            all.mcp_open -= mcp;
            port.open -= 1;
        });
    }
}
