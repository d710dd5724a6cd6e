//! `GET /v1/sessions?watch=true`: every session, `Synced`, then what changes, as JSON lines.

use crate::registry::Registry;
use berth_net::feed::Feed;
use berth_net::watch::Source;
use berth_wire::WatchLine;

impl Source for Registry {
    type Line = WatchLine;

    fn feed(&self) -> &Feed {
        &self.shared.feed
    }

    fn all(&self) -> Vec<WatchLine> {
        let sessions = self.reports().into_iter().map(WatchLine::Session);
        let synced = WatchLine::Synced { server: self.server.clone(), slots: self.slots };
        sessions.chain([synced]).collect()
    }

    fn one(&self, uid: &str) -> Option<WatchLine> {
        self.report(uid).map(WatchLine::Session)
    }

    fn alive() -> WatchLine {
        WatchLine::Alive
    }
}
