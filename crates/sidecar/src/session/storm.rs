//! News that a list of the upstream's changed: of a storm clients hear the first at once, and after each pause only the newest, as
//! a client may read the list again for each (CASES.md 24).

use super::Scope;
use crate::budget::Charge;
use crate::sync::lock;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Between two news of one list.
pub(crate) const LIST_NEWS_PAUSE: Duration = Duration::from_secs(1);

/// Such news.
pub(crate) struct ListNews {
    /// The notification, as the upstream spelled it.
    pub text: String,
    /// Covers it.
    pub held: Charge,
    /// The client that has it already.
    pub except: Option<Arc<Scope>>,
}

/// The lists of which there was news within the last pause, by the method of the news, with the newest that waits.
#[derive(Default)]
pub(crate) struct Storms(Mutex<Vec<(&'static str, Option<ListNews>)>>);

impl Storms {
    /// Gives news back that are to be told now; whoever tells them asks [`Self::newest`] after each [`LIST_NEWS_PAUSE`] until there are none.
    pub(crate) fn hear(&self, list: &'static str, news: ListNews) -> Option<ListNews> {
        let mut lists = lock(&self.0);
        if let Some((_, waiting)) = lists.iter_mut().find(|(known, _)| *known == list) {
            // Whoever has the newest already may have missed one that it stands for.
            let except = if waiting.is_none() { news.except } else { None };
            *waiting = Some(ListNews { except, ..news });
            return None;
        }
        lists.push((list, None));
        Some(news)
    }

    /// The pause after news of `list` is over: what came meanwhile, the newest alone.
    pub(crate) fn newest(&self, list: &'static str) -> Option<ListNews> {
        let mut lists = lock(&self.0);
        let newest = lists.iter_mut().find(|(known, _)| *known == list)?.1.take();
        if newest.is_none() {
            lists.retain(|(known, _)| *known != list);
        }
        newest
    }

    /// Nobody listens any more: what waits of `list` is given up.
    pub(crate) fn forget(&self, list: &'static str) {
        lock(&self.0).retain(|(known, _)| *known != list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    #[test]
    fn of_a_storm_the_first_and_the_newest_are_told_and_nothing_is_kept() {
        let (storms, budget) = (Storms::default(), Budget::mebibytes(1));
        let hear = |list, number: u32| {
            let news = ListNews { text: number.to_string(), held: budget.charge(), except: None };
            storms.hear(list, news).map(|news| news.text)
        };
        let newest = |list| storms.newest(list).map(|news| news.text);
        assert_eq!(hear("tools", 1).as_deref(), Some("1"));
        assert_eq!((2..1_000).find_map(|number| hear("tools", number)), None);
        assert_eq!(hear("prompts", 7).as_deref(), Some("7"), "another list");
        assert_eq!(newest("tools").as_deref(), Some("999"));
        assert_eq!(hear("tools", 1_000), None, "the next pause has begun");
        assert_eq!((newest("tools").as_deref(), newest("tools")), (Some("1000"), None));
        assert_eq!(newest("prompts"), None);
        assert!(lock(&storms.0).is_empty());
        assert_eq!(hear("tools", 1_001).as_deref(), Some("1001"), "it is calm again");
        assert_eq!((hear("tools", 1_002), hear("prompts", 8).as_deref()), (None, Some("8")));
        storms.forget("tools");
        assert_eq!(lock(&storms.0).len(), 1, "nothing of it is kept, and the other list is");
    }
}
