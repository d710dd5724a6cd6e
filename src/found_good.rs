//! What was found good is trusted for a while, and no longer than until a watch tells of another version of it.
//!
//! The operator's own writes are told by the watch as well, often before the answer to the write is there. So an event during
//! a look does not end it: when the look is over, its own version is compared with the last one that was told.

use berth_plan::time::Moment;
use kube::{Resource, ResourceExt};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long what was found good is not looked at again.
pub const TRUST: Duration = Duration::from_mins(10);

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// Where `object` is.
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        Self { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

/// The resource version of an object; nothing for one that is not there, which can be what is wanted.
pub type Version = Option<String>;

/// The objects of one kind that were found good; clones share them.
#[derive(Clone, Default)]
pub struct FoundGood {
    book: Arc<Mutex<Book>>,
}

#[derive(Default)]
struct Book {
    entries: HashMap<Key, Entry>,
    /// Looks that have begun.
    looks: u64,
}

enum Entry {
    /// The look of that number is under way; what the watch told of last since it began.
    Looking { number: u64, told: Option<Version> },
    /// It was good then, in that version.
    Good { seen: Moment, version: Version },
}

impl FoundGood {
    /// Whether that object was found good a while ago and nothing was told of it since.
    pub fn trusts(&self, key: &Key, now: Moment) -> bool {
        matches!(self.book().entries.get(key), Some(Entry::Good { seen, .. }) if seen.plus(TRUST) > now)
    }

    /// Begins a look at an object. It has to begin before anything is read that it depends on.
    pub fn begin(&self, key: Key) -> Look {
        let mut book = self.book();
        book.looks += 1;
        let number = book.looks;
        book.entries.insert(key.clone(), Entry::Looking { number, told: None });
        drop(book);
        Look { found: self.clone(), key, number }
    }

    /// Takes in what a watch tells: the object is there in that version, or is not there. Whether somebody has to look at it;
    /// asked for during a look that makes it good, that costs no request.
    pub fn changed(&self, key: &Key, version: Option<&str>) -> bool {
        let mut book = self.book();
        match book.entries.get_mut(key) {
            Some(Entry::Good { version: good, .. }) if good.as_deref() == version => false,
            Some(Entry::Looking { told, .. }) => {
                *told = Some(version.map(str::to_owned));
                true
            }
            _ => {
                book.entries.remove(key);
                true
            }
        }
    }

    /// Trusts nothing any more, whatever looks are under way.
    pub fn clear(&self) {
        self.book().entries.clear();
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A look at an object. One that is given up leaves nothing behind.
pub struct Look {
    found: FoundGood,
    key: Key,
    number: u64,
}

impl Look {
    /// The object is good in that version, or was made so. It is trusted unless the watch has told of another one meanwhile.
    pub fn keep(self, version: Version, now: Moment) {
        let mut book = self.found.book();
        // The book is small, and one of objects that are gone is cleared here.
        book.entries.retain(|_, entry| match entry {
            Entry::Good { seen, .. } => seen.plus(TRUST) > now,
            Entry::Looking { .. } => true,
        });
        if let Some(Entry::Looking { number, told }) = book.entries.get(&self.key)
            && *number == self.number
            && told.as_ref().is_none_or(|told| *told == version)
        {
            book.entries.insert(self.key.clone(), Entry::Good { seen: now, version });
        }
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        let mut book = self.found.book();
        if matches!(book.entries.get(&self.key), Some(Entry::Looking { number, .. }) if *number == self.number)
        {
            book.entries.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment(1_800_000_000_000);

    fn key(name: &str) -> Key {
        Key { namespace: "demo".into(), name: name.into() }
    }

    #[test]
    fn what_was_found_good_is_trusted_for_a_while() {
        let found = FoundGood::default();
        assert!(!found.trusts(&key("a"), NOW));
        found.begin(key("a")).keep(Some("1".into()), NOW);
        assert!(found.trusts(&key("a"), Moment(NOW.plus(TRUST).0 - 1)));
        assert!(!found.trusts(&key("a"), NOW.plus(TRUST)) && !found.trusts(&key("b"), NOW));
        found.begin(key("b")).keep(Some("1".into()), NOW.plus(TRUST));
        assert_eq!(found.book().entries.len(), 1, "what is trusted no more takes no room");
    }

    #[test]
    fn another_version_or_none_is_news_and_the_one_that_was_found_is_not() {
        let found = FoundGood::default();
        for (told, news) in [(Some("1"), false), (Some("2"), true), (None, true)] {
            found.begin(key("a")).keep(Some("1".into()), NOW);
            assert_eq!(found.changed(&key("a"), told), news, "{told:?}");
            assert_eq!(found.trusts(&key("a"), NOW), !news, "{told:?}");
        }
        assert!(found.changed(&key("b"), Some("1")), "one that nobody has looked at");
        // That there is none can be right as well.
        found.begin(key("a")).keep(None, NOW);
        assert!(!found.changed(&key("a"), None) && found.trusts(&key("a"), NOW));
        assert!(found.changed(&key("a"), Some("3")) && !found.trusts(&key("a"), NOW));
    }

    #[test]
    fn what_is_told_during_a_look_counts_when_it_is_over() {
        let found = FoundGood::default();
        for (told, trusted) in
            [(&["2"][..], true), (&["1", "2"], true), (&["2", "3"], false), (&["1"], false)]
        {
            let look = found.begin(key("a"));
            for version in told {
                assert!(found.changed(&key("a"), Some(version)));
            }
            look.keep(Some("2".into()), NOW);
            assert_eq!(found.trusts(&key("a"), NOW), trusted, "{told:?}");
            found.clear();
        }
    }

    #[test]
    fn a_look_that_was_given_up_or_overtaken_makes_nothing_trusted() {
        let found = FoundGood::default();
        drop(found.begin(key("a")));
        assert!(found.book().entries.is_empty());
        let (first, second) = (found.begin(key("a")), found.begin(key("a")));
        first.keep(Some("1".into()), NOW);
        assert!(!found.trusts(&key("a"), NOW));
        second.keep(Some("2".into()), NOW);
        assert!(found.trusts(&key("a"), NOW));
        let look = found.begin(key("b"));
        found.clear();
        look.keep(Some("1".into()), NOW);
        assert!(!found.trusts(&key("a"), NOW) && !found.trusts(&key("b"), NOW));
    }
}
