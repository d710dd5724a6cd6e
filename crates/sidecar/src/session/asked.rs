//! The server's requests that a client was handed: each is answered once, to the connection that it came from.

use berth_mcp::frame::{Token, TokenKey};
use std::collections::{HashMap, VecDeque};
use tokio::sync::watch;

/// Requests that a client may have unanswered.
const MAX_OPEN: usize = 64;
/// Requests that are over without an answer and whose late one is still told apart.
const MAX_SPENT: usize = 64;

/// How a request went to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// On the answer of the call with this id upstream.
    Call(u64),
    /// On this stream of the client's.
    Stream(u64),
}

/// A request that is being answered. `C` is a connection.
#[derive(Debug)]
pub(crate) struct Asked<C> {
    /// Where the answer goes.
    pub connection: C,
    /// Number of that connection.
    pub epoch: u64,
    /// Its id there, raw.
    pub id: Box<str>,
    /// What the id is compared by.
    pub key: TokenKey,
    pub via: Via,
    /// The call whose clock stands meanwhile.
    _out: Option<Out>,
}

impl<C> Asked<C> {
    /// The request `id`, of the connection `connection` that has the number `epoch`.
    pub(crate) fn new((connection, epoch): (C, u64), id: &Token<'_>, via: Via, out: Option<Out>) -> Self {
        Self { connection, epoch, id: id.raw().into(), key: id.key(), via, _out: out }
    }
}

/// A request that keeps a call waiting for its client, until this is dropped.
#[derive(Debug)]
pub(crate) struct Out(watch::Sender<u32>);

impl Out {
    pub(crate) fn new(count: &watch::Sender<u32>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[derive(Debug)]
enum Entry<C> {
    Open(Asked<C>),
    /// Over without an answer. One that comes late must not be taken for that of another request.
    Spent,
}

/// A client has too many requests unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client has {MAX_OPEN} requests unanswered already")]
pub(crate) struct TooMany;

/// The requests of one client, by the ids that it was given.
#[derive(Debug)]
pub(crate) struct Book<C> {
    entries: HashMap<TokenKey, Entry<C>>,
    spent: VecDeque<TokenKey>,
    renamed: u64,
}

impl<C> Default for Book<C> {
    fn default() -> Self {
        Self { entries: HashMap::new(), spent: VecDeque::new(), renamed: 0 }
    }
}

impl<C> Book<C> {
    /// Notes a request; gives the raw id for the client. It is the server's own, unless the client still has another request
    /// of that id: servers count from 0 on each connection.
    pub(crate) fn hand(&mut self, asked: Asked<C>) -> Result<Box<str>, TooMany> {
        if self.entries.len() - self.spent.len() >= MAX_OPEN {
            return Err(TooMany);
        }
        let (mut key, mut id) = (asked.key.clone(), asked.id.clone());
        while self.entries.contains_key(&key) {
            self.renamed += 1;
            let name = format!("berth-{}", self.renamed);
            id = format!("\"{name}\"").into();
            key = TokenKey::Text(name);
        }
        self.entries.insert(key, Entry::Open(asked));
        Ok(id)
    }

    /// Takes out the request that the client answers under `key`.
    pub(crate) fn answer(&mut self, key: &TokenKey) -> Option<Asked<C>> {
        let answered = match self.entries.remove(key)? {
            Entry::Open(asked) => Some(asked),
            Entry::Spent => {
                self.spent.retain(|spent| spent != key);
                None
            }
        };
        if self.entries.is_empty() {
            // Idle clients must not keep the room of their busiest moment.
            (self.entries, self.spent) = (HashMap::new(), VecDeque::new());
        }
        answered
    }

    /// Ends the requests for which `over` holds, without an answer; each with the client's key of it.
    pub(crate) fn abandon(&mut self, over: impl Fn(&Asked<C>) -> bool) -> Vec<(TokenKey, Asked<C>)> {
        let is_over = |entry: &Entry<C>| matches!(entry, Entry::Open(asked) if over(asked));
        let keys: Vec<_> =
            self.entries.iter().filter(|(_, entry)| is_over(entry)).map(|(key, _)| key.clone()).collect();
        let mut ended = Vec::new();
        for key in keys {
            if let Some(Entry::Open(asked)) = self.entries.insert(key.clone(), Entry::Spent) {
                self.spent.push_back(key.clone());
                ended.push((key, asked));
            }
        }
        while self.spent.len() > MAX_SPENT {
            if let Some(oldest) = self.spent.pop_front() {
                self.entries.remove(&oldest);
            }
        }
        ended
    }

    /// The requests that are unanswered.
    pub(crate) fn open(&mut self) -> impl Iterator<Item = &mut Asked<C>> {
        self.entries.values_mut().filter_map(|entry| match entry {
            Entry::Open(asked) => Some(asked),
            Entry::Spent => None,
        })
    }

    /// Whether the client has the request `key` unanswered.
    pub(crate) fn is_open(&self, key: &TokenKey) -> bool {
        matches!(self.entries.get(key), Some(Entry::Open(_)))
    }

    /// Whether the client has none unanswered.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.len() == self.spent.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(epoch: u64, id: &str) -> Asked<u64> {
        let key = TokenKey::Number(id.into());
        Asked { connection: epoch, epoch, id: id.into(), key, via: Via::Call(epoch), _out: None }
    }

    fn number(id: &str) -> TokenKey {
        TokenKey::Number(id.into())
    }

    #[test]
    fn a_request_is_answered_once_and_to_its_own_connection() {
        let mut book = Book::default();
        let answered = |book: &mut Book<u64>, key: &TokenKey| book.answer(key).map(|asked| asked.epoch);
        assert_eq!(&*book.hand(asked(1, "0")).unwrap(), "0");
        assert_eq!(&*book.hand(asked(2, "0")).unwrap(), "\"berth-1\"", "two servers count alike");
        assert_eq!(answered(&mut book, &TokenKey::Text("0".into())), None, "a string is no number");
        assert_eq!(answered(&mut book, &TokenKey::Text("berth-1".into())), Some(2));
        assert_eq!(answered(&mut book, &number("0")), Some(1));
        assert_eq!(answered(&mut book, &number("0")), None);
        assert!(book.is_empty() && book.entries.capacity() == 0);
    }

    #[test]
    fn the_late_answer_of_an_abandoned_one_is_not_taken_for_another() {
        let mut book = Book::default();
        book.hand(asked(1, "0")).unwrap();
        assert_eq!(book.abandon(|asked| asked.via == Via::Call(1)).len(), 1);
        assert!(book.is_empty() && book.abandon(|_| true).is_empty());
        assert_eq!(&*book.hand(asked(2, "0")).unwrap(), "\"berth-1\"");
        assert!(book.answer(&number("0")).is_none(), "late");
        assert!(book.answer(&TokenKey::Text("berth-1".into())).is_some());
    }

    #[test]
    fn what_is_unanswered_and_what_is_spent_is_bounded() {
        let mut book = Book::default();
        for id in 0..MAX_OPEN {
            book.hand(asked(1, &id.to_string())).unwrap();
        }
        assert_eq!(book.hand(asked(1, "x")), Err(TooMany));
        for round in 0..10 {
            book.abandon(|_| true);
            for id in 0..MAX_OPEN {
                book.hand(asked(1, &format!("{round}-{id}"))).unwrap();
            }
        }
        assert_eq!((book.entries.len(), book.spent.len()), (MAX_OPEN + MAX_SPENT, MAX_SPENT));
    }

    #[test]
    fn a_call_counts_its_requests_until_each_is_over() {
        let (count, seen) = watch::channel(0);
        let mut book = Book::default();
        for id in ["0", "1"] {
            book.hand(Asked { _out: Some(Out::new(&count)), ..asked(1, id) }).unwrap();
        }
        assert_eq!(*seen.borrow(), 2);
        book.answer(&number("0"));
        assert_eq!(*seen.borrow(), 1);
        book.abandon(|_| true);
        assert_eq!(*seen.borrow(), 0);
    }
}
