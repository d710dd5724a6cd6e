//! What the books hold.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Value, value::RawValue};

use crate::{arrival::Arrival, digest, faults::Fault, ports::Port};

/// One session in the books.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Value of `Mcp-Session-Id`.
    pub id: String,
    /// Place among all sessions since the last reset, from 1.
    pub initialized_at: u64,
    /// How it ended.
    pub ended: Option<&'static str>,
    /// From `initialize`.
    pub client_info: Value,
    /// The version that was agreed on.
    pub protocol_version: String,
    /// The version that the client asked for.
    pub requested_protocol_version: Value,
    /// From `initialize`.
    pub capabilities: Value,
    /// Digest of the credential at `initialize`.
    pub authorization_sha256_at_initialize: String,
    /// All different digests that its requests carried.
    pub authorization_sha256s: BTreeSet<String>,
    /// Requests by name.
    pub requests: BTreeMap<String, u64>,
    /// Calls that reached a tool, by its name.
    pub calls: BTreeMap<String, u64>,
    /// Cancellations that arrived.
    pub cancelled: u64,
    /// Cancellations that stopped a running call.
    pub interrupted: u64,
    /// Headers of its last request.
    pub last_headers: BTreeMap<String, String>,
}

impl Row {
    pub(super) fn saw(&mut self, arrival: &Arrival) {
        *self.requests.entry(arrival.name().to_owned()).or_default() += 1;
        self.authorization_sha256s.insert(arrival.authorization.clone());
        self.last_headers = arrival.headers.iter().cloned().collect();
    }
}

/// One request in the journal.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Order of arrival since the last reset, from 1.
    pub seq: u64,
    /// Milliseconds since the last reset, monotonic.
    pub at_ms: u64,
    /// JSON-RPC method, `response`, `invalid`, or the HTTP method.
    pub method: String,
    /// Tool of a `tools/call`.
    pub tool: Option<String>,
    /// Session that the request named.
    pub session_id: Option<String>,
    /// Session that an `initialize` started.
    pub minted: Option<String>,
    /// JSON-RPC id, as it was written.
    pub jsonrpc_id: Option<Box<RawValue>>,
    /// Progress token, as it was written.
    pub progress_token: Option<Box<RawValue>>,
    /// Port that it came to.
    pub port: Port,
    /// Path that it was for.
    pub path: String,
    /// Its `Last-Event-ID`.
    pub last_event_id: Option<String>,
    /// Length of its body.
    pub body_bytes: usize,
    /// Digest of its body, byte for byte.
    pub body_sha256: String,
    /// Digest of the credential, or `none`.
    pub auth_sha256: String,
    /// Fault that struck.
    pub fault: Option<String>,
    /// Status of the answer; null while there is none, and for ever after hang and close.
    pub status: Option<u16>,
}

impl Entry {
    pub(super) fn new(seq: u64, at_ms: u64, arrival: &Arrival, fault: Option<&Fault>) -> Self {
        Self {
            seq,
            at_ms,
            method: arrival.name().to_owned(),
            tool: arrival.tool(),
            session_id: arrival.claim.id().map(str::to_owned),
            minted: None,
            jsonrpc_id: arrival.id().map(ToOwned::to_owned),
            progress_token: arrival.progress_token(),
            port: arrival.place.port,
            path: arrival.place.path.clone(),
            last_event_id: arrival.last_event_id.clone(),
            body_bytes: arrival.body.len(),
            body_sha256: digest::hex(&arrival.body),
            auth_sha256: arrival.authorization.clone(),
            fault: fault.map(Fault::name),
            status: None,
        }
    }
}

/// What a client said to a request of the server.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reply {
    /// Session that the answer came on.
    pub session_id: String,
    /// Id of the request, as the client wrote it.
    pub jsonrpc_id: Box<RawValue>,
    /// Method that was asked in this session under that id; null if nothing was, or nobody waited any more.
    pub asked: Option<&'static str>,
    /// The result, as it was written.
    pub result: Option<Box<RawValue>>,
    /// The error, as it was written.
    pub error: Option<Box<RawValue>>,
}

impl Reply {
    /// An answer that has just come.
    pub fn new(
        session: &str,
        id: Box<RawValue>,
        asked: Option<&'static str>,
        (result, error): (Option<Box<RawValue>>, Option<Box<RawValue>>),
    ) -> Self {
        Self { session_id: session.to_owned(), jsonrpc_id: id, asked, result, error }
    }
}
