//! `GET /v1/sessions?watch=true`: every session, `Synced`, then what changes, as JSON lines.

use crate::registry::{Registry, Watcher};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use berth_wire::WatchLine;
use bytes::Bytes;
use futures::stream;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Silence after which the stream says that it is alive; well below the ten seconds that are promised.
const QUIET: Duration = Duration::from_secs(5);

/// The stream. What a reader does not take is not queued: the next line of a session is its newest state.
pub(super) fn respond(registry: Arc<Registry>, stop: CancellationToken) -> Response {
    let watcher = registry.shared.feed.watch();
    let watch = Watch { registry, watcher, synced: false, last: Instant::now() };
    let lines = stream::unfold((watch, stop), async |(mut watch, stop)| {
        let lines = tokio::select! {
            () = stop.cancelled() => return None,
            lines = watch.next() => lines,
        };
        Some((Ok::<_, Infallible>(lines), (watch, stop)))
    });
    ([(http::header::CONTENT_TYPE, "application/jsonl")], Body::from_stream(lines)).into_response()
}

struct Watch {
    registry: Arc<Registry>,
    watcher: Arc<Watcher>,
    synced: bool,
    last: Instant,
}

impl Watch {
    /// The next lines.
    async fn next(&mut self) -> Bytes {
        let lines = loop {
            let lines = if self.synced { self.changes().await } else { self.snapshot() };
            if !lines.is_empty() {
                break lines;
            }
        };
        self.last = Instant::now();
        Bytes::from(lines.iter().fold(String::new(), |text, line| text + &render(line)))
    }

    fn snapshot(&mut self) -> Vec<WatchLine> {
        self.synced = true;
        let sessions = self.registry.reports().into_iter().map(WatchLine::Session);
        let synced = WatchLine::Synced { server: self.registry.server.clone(), slots: self.registry.slots };
        sessions.chain([synced]).collect()
    }

    async fn changes(&mut self) -> Vec<WatchLine> {
        let changed = self.watcher.changed().await;
        let reports = changed.iter().filter_map(|uid| self.registry.report(uid)).map(WatchLine::Session);
        let mut lines: Vec<_> = reports.collect();
        if lines.is_empty() && self.last.elapsed() >= QUIET {
            lines.push(WatchLine::Alive);
        }
        lines
    }
}

fn render(line: &WatchLine) -> String {
    let mut text = serde_json::to_string(line).unwrap_or_default();
    text.push('\n');
    text
}
