//! News that a list of the upstream's changed: of a storm clients hear the first at once, and after each pause only the newest, as
//! a client may read the list again for each (CASES.md 24).

use super::Scope;
use crate::budget::Charge;
use crate::sync::lock;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Between two news of one list.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Such news.
pub(crate) struct News {
    /// The notification, as the upstream spelled it.
    pub text: String,
    /// Covers it.
    pub held: Charge,
    /// The client that has it already.
    pub except: Option<Arc<Scope>>,
}

/// The lists of which there was news within the last pause, by the method of the news, with the newest that waits.
pub(crate) struct Storms<T = News>(Mutex<Vec<(&'static str, Option<T>)>>);

impl<T> Default for Storms<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Storms<T> {
    /// Gives news back that are to be told now; whoever tells them asks [`Self::newest`] after each [`PAUSE`] until there are none.
    pub(crate) fn hear(&self, list: &'static str, news: T) -> Option<T> {
        let mut lists = lock(&self.0);
        if let Some((_, waiting)) = lists.iter_mut().find(|(known, _)| *known == list) {
            *waiting = Some(news);
            return None;
        }
        lists.push((list, None));
        Some(news)
    }

    /// The pause after news of `list` is over: what came meanwhile, the newest alone.
    pub(crate) fn newest(&self, list: &'static str) -> Option<T> {
        let mut lists = lock(&self.0);
        let newest = lists.iter_mut().find(|(known, _)| *known == list)?.1.take();
        if newest.is_none() {
            lists.retain(|(known, _)| *known != list);
        }
        newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_storm_the_first_and_the_newest_are_told_and_nothing_is_kept() {
        let storms = Storms::default();
        assert_eq!(storms.hear("tools", 1), Some(1));
        assert_eq!((2..1_000).find_map(|news| storms.hear("tools", news)), None);
        assert_eq!(storms.hear("prompts", 7), Some(7), "another list");
        assert_eq!(storms.newest("tools"), Some(999));
        assert_eq!(storms.hear("tools", 1_000), None, "the next pause has begun");
        assert_eq!((storms.newest("tools"), storms.newest("tools")), (Some(1_000), None));
        assert_eq!(storms.newest("prompts"), None);
        assert!(lock(&storms.0).is_empty());
        assert_eq!(storms.hear("tools", 1_001), Some(1_001), "it is calm again");
    }
}
