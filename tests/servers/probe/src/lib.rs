//! `probe`: an MCP server for tests. It speaks the legacy era over streamable HTTP, keeps books of
//! what really reached it, and misbehaves on demand.
//!
//! Messages are written by hand and not by an SDK, so that tests know every byte that was sent. `README.md` beside the sources
//! has every fault in a table.

pub mod accept;
pub mod admin;
pub mod app;
pub mod arrival;
pub mod ask;
pub mod books;
pub mod catalogue;
pub mod digest;
pub mod faults;
pub mod mcp;
pub mod methods;
pub mod notify;
pub mod ports;
pub mod rpc;
pub mod session;
pub mod sse;
pub mod tls;
pub mod tools;

use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

/// What may be set from outside.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pause between keep-alive comments on a GET stream.
    pub keep_alive: Duration,
    /// Header names, in lower case, that the books show in clear besides the built-in ones.
    pub show_headers: BTreeSet<String>,
    /// Names and addresses in the certificates of the TLS ports.
    pub tls_names: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let tls_names = ["localhost", "127.0.0.1", "::1", "probe"].map(str::to_owned).to_vec();
        Self { keep_alive: Duration::from_secs(15), show_headers: BTreeSet::new(), tls_names }
    }
}

/// All state of one server.
#[derive(Debug)]
pub struct Probe {
    /// What may be set from outside.
    pub settings: Settings,
    /// Live MCP sessions.
    pub sessions: session::Sessions,
    /// What was seen.
    pub books: books::Books,
    /// What is to go wrong.
    pub faults: faults::Faults,
    /// What `tools/list` lists.
    pub catalogue: catalogue::Listed,
    /// Certificates of the TLS ports.
    pub tls: tls::Tls,
    /// TCP connections.
    pub connections: Arc<accept::Connections>,
    /// Ends the server.
    pub shutdown: CancellationToken,
}

impl Probe {
    /// A server without sessions, with empty books.
    pub fn new(settings: Settings) -> io::Result<Arc<Self>> {
        let tls = tls::Tls::new(settings.tls_names.clone());
        Ok(Arc::new(Self {
            settings,
            sessions: session::Sessions::new()?,
            books: books::Books::default(),
            faults: faults::Faults::default(),
            catalogue: catalogue::Listed::default(),
            tls,
            connections: Arc::default(),
            shutdown: CancellationToken::new(),
        }))
    }
}

/// Locks; a panic of another holder does not matter, since no update here is made in two steps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
