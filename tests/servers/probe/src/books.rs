//! The books: what really arrived, in counts and in order. No credential is ever in them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Mutex,
    time::Instant,
};

use http::Method;
use serde::Serialize;
use serde_json::{Value, value::RawValue};

use crate::{
    arrival::{Arrival, Claim},
    faults::Fault,
    lock,
};

/// Entries that the journal keeps.
pub const JOURNAL_LIMIT: usize = 10_000;

/// Totals that are always present, so that a reader need not tell zero from absent.
const TOTALS: &[&str] = &[
    "cancelled",
    "delete",
    "deleteUnknown",
    "faulted",
    "get",
    "initialize",
    "initialized",
    "initializeWithSession",
    "interrupted",
    "invalid",
    "loggingSetLevel",
    "noSession",
    "ping",
    "promptsGet",
    "promptsList",
    "resourcesList",
    "resourcesRead",
    "response",
    "toolsCall",
    "toolsList",
    "unauthorized",
    "uncounted",
    "unknownSession",
];

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
    /// Digest of the credential, or `none`.
    pub auth_sha256: String,
    /// Fault that struck.
    pub fault: Option<String>,
    /// Status of the answer; null while there is none, and for ever after hang and close.
    pub status: Option<u16>,
}

#[derive(Debug)]
struct Pages {
    since: Instant,
    rows: HashMap<String, Row>,
    totals: BTreeMap<String, u64>,
    journal: VecDeque<Entry>,
    seq: u64,
    effects: u64,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            rows: HashMap::new(),
            totals: TOTALS.iter().map(|name| ((*name).to_owned(), 0)).collect(),
            journal: VecDeque::new(),
            seq: 0,
            effects: 0,
        }
    }
}

/// A copy of the books.
#[derive(Clone, Debug, Serialize)]
pub struct Copy {
    /// All sessions since the last reset, oldest first; the answer adds to each what is true now.
    #[serde(skip)]
    pub sessions: Vec<Row>,
    /// Counts.
    pub totals: BTreeMap<String, u64>,
    /// Runs of the tool `effect`.
    pub effects: u64,
    /// The last requests, oldest first.
    pub journal: VecDeque<Entry>,
    /// Entries that no longer fit into the journal.
    pub dropped: u64,
}

/// The books.
#[derive(Debug, Default)]
pub struct Books {
    pages: Mutex<Pages>,
}

/// Number of an entry, to add to it later.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    since: Instant,
    seq: u64,
}

impl Books {
    /// Writes down that a request arrived and which fault will strike it.
    pub fn arrived(&self, arrival: &Arrival, fault: Option<&Fault>) -> Ticket {
        let mut pages = lock(&self.pages);
        pages.count(arrival, fault);
        pages.seq += 1;
        let entry = Entry {
            seq: pages.seq,
            at_ms: u64::try_from(pages.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            method: arrival.name().to_owned(),
            tool: arrival.tool(),
            session_id: arrival.claim.id().map(str::to_owned),
            minted: None,
            jsonrpc_id: arrival.id().map(ToOwned::to_owned),
            auth_sha256: arrival.authorization.clone(),
            fault: fault.map(Fault::name),
            status: None,
        };
        if pages.journal.len() == JOURNAL_LIMIT {
            pages.journal.pop_front();
        }
        pages.journal.push_back(entry);
        Ticket { since: pages.since, seq: pages.seq }
    }

    /// Writes down how a request was answered.
    pub fn answered(&self, ticket: Ticket, status: u16) {
        let mut pages = lock(&self.pages);
        if let Some(entry) = pages.entry(ticket) {
            entry.status = Some(status);
            if status == 401 {
                pages.add("unauthorized");
            }
        }
    }

    /// Writes down a new session.
    pub fn minted(&self, ticket: Ticket, mut row: Row) {
        let mut pages = lock(&self.pages);
        let Some(entry) = pages.entry(ticket) else { return };
        entry.minted = Some(row.id.clone());
        row.initialized_at = pages.rows.len() as u64 + 1;
        pages.rows.insert(row.id.clone(), row);
    }

    /// Writes down that a call reached a tool.
    pub fn called(&self, session: &str, tool: &str) {
        self.with_row(session, |row| *row.calls.entry(tool.to_owned()).or_default() += 1);
    }

    /// Writes down a cancellation, and whether it stopped anything.
    pub fn cancelled(&self, session: &str, interrupted: bool) {
        let counted = self.with_row(session, |row| {
            row.cancelled += 1;
            row.interrupted += u64::from(interrupted);
        });
        if counted && interrupted {
            lock(&self.pages).add("interrupted");
        }
    }

    /// Writes down that a client ended its session.
    pub fn ended(&self, session: &str) {
        self.with_row(session, |row| row.ended = Some("DELETE"));
    }

    /// Counts a side effect, and says how many there were.
    pub fn effect(&self) -> u64 {
        let mut pages = lock(&self.pages);
        pages.effects += 1;
        pages.effects
    }

    /// Begins new books.
    pub fn reset(&self) {
        *lock(&self.pages) = Pages::default();
    }

    /// A copy of everything.
    pub fn copy(&self) -> Copy {
        let pages = lock(&self.pages);
        let mut sessions: Vec<_> = pages.rows.values().cloned().collect();
        sessions.sort_by_key(|row| row.initialized_at);
        Copy {
            sessions,
            totals: pages.totals.clone(),
            effects: pages.effects,
            journal: pages.journal.clone(),
            dropped: pages.seq - pages.journal.len() as u64,
        }
    }

    fn with_row(&self, session: &str, change: impl FnOnce(&mut Row)) -> bool {
        lock(&self.pages).rows.get_mut(session).map(change).is_some()
    }
}

impl Pages {
    fn add(&mut self, total: &str) {
        *self.totals.entry(total.to_owned()).or_default() += 1;
    }

    /// A request counts once: under its name, or under why it did not belong to a counted session.
    fn count(&mut self, arrival: &Arrival, fault: Option<&Fault>) {
        if fault.is_some() {
            self.add("faulted");
        }
        let (name, delete) = (arrival.name(), arrival.verb == Method::DELETE);
        match &arrival.claim {
            claim if name == "initialize" => {
                self.add("initialize");
                if claim.id().is_some() {
                    self.add("initializeWithSession");
                }
            }
            Claim::None => self.add("noSession"),
            Claim::Unknown(_) if delete => self.add("deleteUnknown"),
            Claim::Unknown(_) => self.add("unknownSession"),
            Claim::Live(session) => match self.rows.get_mut(&session.id) {
                Some(row) => {
                    row.saw(arrival);
                    self.add(&total_name(name));
                }
                None => self.add("uncounted"),
            },
        }
    }

    /// The entry of a ticket, unless it was dropped or the books were reset since.
    fn entry(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        let first = self.journal.front().filter(|_| ticket.since == self.since)?.seq;
        self.journal.get_mut(usize::try_from(ticket.seq.checked_sub(first)?).ok()?)
    }
}

impl Row {
    fn saw(&mut self, arrival: &Arrival) {
        *self.requests.entry(arrival.name().to_owned()).or_default() += 1;
        self.authorization_sha256s.insert(arrival.authorization.clone());
        self.last_headers = arrival.headers.iter().cloned().collect();
    }
}

/// `tools/call` is `toolsCall`, `notifications/cancelled` is `cancelled`, `DELETE` is `delete`.
fn total_name(name: &str) -> String {
    if name.chars().all(|c| c.is_ascii_uppercase()) {
        return name.to_ascii_lowercase();
    }
    let mut parts = name.trim_start_matches("notifications/").split('/');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |mut text, part| {
        let mut chars = part.chars();
        text.extend(chars.next().map(|c| c.to_ascii_uppercase()));
        text.push_str(chars.as_str());
        text
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::{Probe, Settings};

    #[test]
    fn names_of_totals() {
        for (name, total) in [
            ("tools/call", "toolsCall"),
            ("notifications/initialized", "initialized"),
            ("notifications/roots/list_changed", "rootsList_changed"),
            ("logging/setLevel", "loggingSetLevel"),
            ("DELETE", "delete"),
            ("response", "response"),
        ] {
            assert_eq!(total_name(name), total);
        }
    }

    #[test]
    fn journal_is_bounded_and_says_what_it_dropped() {
        let probe = Probe::new(Settings::default()).unwrap();
        let books = Books::default();
        let body = br#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;
        let arrival = Arrival::new(&probe, Method::POST, &HeaderMap::new(), body);
        let first = books.arrived(&arrival, None);
        for _ in 0..JOURNAL_LIMIT {
            books.arrived(&arrival, None);
        }
        books.answered(first, 401);
        let copy = books.copy();
        assert_eq!((copy.journal.len(), copy.dropped), (JOURNAL_LIMIT, 1));
        assert_eq!(copy.journal[0].seq, 2);
        assert_eq!(copy.journal[0].jsonrpc_id.as_ref().unwrap().get(), "7");
        assert_eq!(copy.totals["noSession"], JOURNAL_LIMIT as u64 + 1);
    }

    #[test]
    fn a_ticket_of_old_books_changes_nothing() {
        let probe = Probe::new(Settings::default()).unwrap();
        let books = Books::default();
        let arrival = Arrival::new(&probe, Method::GET, &HeaderMap::new(), b"");
        let old = books.arrived(&arrival, None);
        books.reset();
        books.arrived(&arrival, None);
        books.answered(old, 401);
        assert_eq!(books.copy().journal[0].status, None);
        assert_eq!(books.copy().totals["unauthorized"], 0);
    }
}
