//! The books: what really arrived, in counts and in order. No credential is ever in them.

mod rows;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Mutex,
    time::Instant,
};

use http::Method;
use serde::Serialize;

pub use self::rows::{Entry, Reply, Row};
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
    "completionComplete",
    "ping",
    "promptsGet",
    "promptsList",
    "resourcesList",
    "resourcesRead",
    "resourcesSubscribe",
    "resourcesUnsubscribe",
    "response",
    "toolsCall",
    "toolsList",
    "unauthorized",
    "uncounted",
    "unknownSession",
];

#[derive(Debug)]
struct Pages {
    since: Instant,
    rows: HashMap<String, Row>,
    totals: BTreeMap<String, u64>,
    journal: VecDeque<Entry>,
    seq: u64,
    effects: u64,
    replies: VecDeque<Reply>,
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
            replies: VecDeque::new(),
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
    /// The last answers to requests of the server, oldest first.
    pub replies: VecDeque<Reply>,
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
        let at_ms = u64::try_from(pages.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let entry = Entry::new(pages.seq, at_ms, arrival, fault);
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

    /// Writes down how a session ended.
    pub fn ended(&self, session: &str, how: &'static str) {
        self.with_row(session, |row| row.ended = Some(how));
    }

    /// Writes down that a fault struck a request before it could be read.
    pub fn faulted(&self) {
        lock(&self.pages).add("faulted");
    }

    /// Writes down what a client said to a request of the server.
    pub fn replied(&self, reply: Reply) {
        let mut pages = lock(&self.pages);
        if pages.replies.len() == JOURNAL_LIMIT {
            pages.replies.pop_front();
        }
        pages.replies.push_back(reply);
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
            replies: pages.replies.clone(),
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
    use crate::{Probe, Settings, arrival::Place, ports::Port};

    fn arrival(probe: &Probe, verb: Method, body: &'static str) -> Arrival {
        let place = Place { port: Port::Main, path: "/mcp".to_owned(), host: String::new() };
        Arrival::new(probe, place, verb, &HeaderMap::new(), body.into())
    }

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
        let arrival = arrival(&probe, Method::POST, r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#);
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
        let arrival = arrival(&probe, Method::GET, "");
        let old = books.arrived(&arrival, None);
        books.reset();
        books.arrived(&arrival, None);
        books.answered(old, 401);
        assert_eq!(books.copy().journal[0].status, None);
        assert_eq!(books.copy().totals["unauthorized"], 0);
    }
}
