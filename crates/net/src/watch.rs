//! The serving side of a watch: everything there is, a line that says so, then what changes, as JSON lines.

use crate::feed::{Feed, Watcher};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use http::header::CONTENT_TYPE;
use serde::Serialize;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Silence after which a stream says that it is alive; well below the ten seconds that are promised.
const QUIET: Duration = Duration::from_secs(5);

/// What is watched.
pub trait Source: Send + Sync + 'static {
    /// One line.
    type Line: Serialize + Send;

    /// Tells of changes.
    fn feed(&self) -> &Feed;
    /// Everything there is, and the line that says so.
    fn all(&self) -> Vec<Self::Line>;
    /// What changed, as it is now; nothing when there is nothing to say of it.
    fn one(&self, uid: &str) -> Option<Self::Line>;
    /// The line that says that nothing happened.
    fn alive() -> Self::Line;
}

/// The stream, until `stop`. What a reader does not take is not queued: the next line of a thing is its newest state.
pub fn respond<S: Source>(source: Arc<S>, stop: CancellationToken) -> Response {
    let watcher = source.feed().watch();
    let watch = Watch { source, watcher, synced: false, last: Instant::now() };
    let lines = stream::unfold((watch, stop), async |(mut watch, stop)| {
        let lines = tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            lines = watch.next() => lines,
        };
        Some((Ok::<_, Infallible>(lines), (watch, stop)))
    });
    ([(CONTENT_TYPE, "application/jsonl")], Body::from_stream(lines)).into_response()
}

struct Watch<S> {
    source: Arc<S>,
    watcher: Arc<Watcher>,
    synced: bool,
    last: Instant,
}

impl<S: Source> Watch<S> {
    /// The next lines.
    async fn next(&mut self) -> Bytes {
        let lines = loop {
            let lines = if self.synced { self.changes().await } else { self.source.all() };
            self.synced = true;
            if !lines.is_empty() {
                break lines;
            }
        };
        self.last = Instant::now();
        Bytes::from(lines.iter().fold(String::new(), |text, line| text + &render(line)))
    }

    async fn changes(&mut self) -> Vec<S::Line> {
        let changed = self.watcher.changed().await;
        let mut lines: Vec<_> = changed.iter().filter_map(|uid| self.source.one(uid)).collect();
        if lines.is_empty() && self.last.elapsed() >= QUIET {
            lines.push(S::alive());
        }
        lines
    }
}

fn render(line: &impl Serialize) -> String {
    let mut text = serde_json::to_string(line).unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::Urgency;
    use http_body_util::BodyExt;
    use std::sync::Mutex;

    /// A thing with one number, whose UID is "n".
    #[derive(Default)]
    struct Number(Feed, Mutex<u32>);

    impl Source for Number {
        type Line = String;

        fn feed(&self) -> &Feed {
            &self.0
        }
        fn all(&self) -> Vec<String> {
            vec![self.one("n").unwrap(), "synced".to_owned()]
        }
        fn one(&self, uid: &str) -> Option<String> {
            (uid == "n").then(|| self.1.lock().unwrap().to_string())
        }
        fn alive() -> String {
            "alive".to_owned()
        }
    }

    async fn text(body: &mut Body) -> Option<String> {
        let data = body.frame().await?.unwrap().into_data().unwrap();
        Some(String::from_utf8(data.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_tells_all_then_the_newest_then_that_it_lives_and_ends_when_asked_to() {
        let (source, stop) = (Arc::new(Number::default()), CancellationToken::new());
        let mut body = respond(source.clone(), stop.clone()).into_body();
        assert_eq!(text(&mut body).await.unwrap(), "\"0\"\n\"synced\"\n");
        for n in 1..=100 {
            *source.1.lock().unwrap() = n;
            source.0.mark(&"n".into(), Urgency::Now);
            source.0.mark(&"unknown".into(), Urgency::Now);
        }
        assert_eq!(text(&mut body).await.unwrap(), "\"100\"\n");
        assert_eq!(text(&mut body).await.unwrap(), "\"alive\"\n");
        stop.cancel();
        assert_eq!(text(&mut body).await, None);
    }
}
