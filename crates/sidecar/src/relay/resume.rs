//! Takes up an answer's stream again that ended before its result, where its last event left off. Servers end streams of long
//! calls on purpose, and say by an event's id that the rest can be had.

use crate::upstream::{Body, Connection};
use berth_mcp::header;
use berth_mcp::sse::Event;
use berth_net::backoff::Doubling;
use http::header::CONTENT_TYPE;
use std::time::Duration;
use tokio::time::sleep;

/// Shortest pause before the stream is asked for again; doubled each time that nothing came.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Where a stream is.
#[derive(Debug)]
pub(super) struct Resume {
    last: Option<String>,
    retry: Option<Duration>,
    pauses: Doubling,
}

impl Default for Resume {
    fn default() -> Self {
        Self { last: None, retry: None, pauses: Doubling::new(FIRST_PAUSE, MAX_PAUSE) }
    }
}

impl Resume {
    /// An event came.
    pub(super) fn note(&mut self, event: &Event) {
        if let Some(id) = &event.id {
            // An empty id takes the last one back.
            self.last = Some(id.clone()).filter(|id| !id.is_empty());
        }
        self.retry = event.retry_millis.map(Duration::from_millis).or(self.retry);
        self.pauses.start_anew();
    }

    fn pause(&mut self) -> Duration {
        self.pauses.pause().max(self.retry.unwrap_or_default()).min(MAX_PAUSE)
    }

    /// The rest of the stream, if it can be had.
    pub(super) async fn resume(&mut self, connection: &Connection) -> Option<Body> {
        let last = self.last.clone()?;
        sleep(self.pause()).await;
        let response = connection.listen(Some(&last)).await.ok()?;
        let is_stream = header::is_event_stream(response.headers().get(CONTENT_TYPE));
        (response.status().is_success() && is_stream).then(|| response.into_body())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_as_asked_within_bounds_and_grow_while_nothing_comes() {
        let mut resume = Resume::default();
        for whole in [1, 2, 4, 8].map(|times| FIRST_PAUSE * times) {
            let pause = resume.pause();
            assert!((whole / 2..=whole).contains(&pause), "{pause:?} of {whole:?}");
        }
        resume.note(&Event { retry_millis: Some(1_500), ..Event::default() });
        assert_eq!(resume.pause(), Duration::from_millis(1_500));
        resume.note(&Event { retry_millis: Some(u64::MAX), ..Event::default() });
        assert_eq!(resume.pause(), MAX_PAUSE);
        resume.note(&Event { retry_millis: Some(0), ..Event::default() });
        assert!(resume.pause() >= FIRST_PAUSE / 2, "a server cannot ask for a storm");
    }

    #[test]
    fn the_last_id_counts_and_an_empty_one_takes_it_back() {
        let mut resume = Resume::default();
        let id = |id: &str| Event { id: Some(id.into()), ..Event::default() };
        resume.note(&id("a"));
        resume.note(&Event::default());
        assert_eq!(resume.last.as_deref(), Some("a"));
        resume.note(&id(""));
        assert_eq!(resume.last, None);
    }
}
