//! The clocks of a session: how long a slot may be looked for, and how long an end may take.

use crate::condition::find;
use crate::time::Moment;
use berth_api::{AgentSession, ConditionType};
use std::time::Duration;

/// Time that an end may take beyond drain and close.
const END_SLACK: Duration = Duration::from_secs(10);
/// How long a slot is looked for when the spec's text cannot be read.
const DEFAULT_BIND: Duration = Duration::from_mins(5);

/// The longest that an end may take: by then its finalizer goes, whatever is left.
pub fn end_bound(drain: Duration, close: Duration) -> Duration {
    drain.saturating_add(close).saturating_add(END_SLACK)
}

/// Until when a slot is looked for before the reason becomes `BindTimeout`. The clock starts when the session is created, and
/// anew whenever it stops being Ready.
pub fn bind_deadline(session: &AgentSession, now: Moment) -> Moment {
    let created = session.metadata.creation_timestamp.as_ref().map_or(now, Moment::from_api);
    let ready = session.status.as_ref().and_then(|status| find(&status.conditions, ConditionType::Ready));
    let since = match ready {
        Some(ready) if ready.status == "True" => now,
        Some(ready) => Moment::from_api(&ready.last_transition_time),
        None => created,
    };
    since.max(created).plus(session.spec.bind_timeout.to_std().unwrap_or(DEFAULT_BIND))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::validate::fixture::session;
    use serde_json::json;

    fn ready(status: &str, at: &str) -> serde_json::Value {
        json!({"conditions": [{"type": "Ready", "status": status, "reason": "x", "message": "", "lastTransitionTime": at}]})
    }

    #[test]
    fn the_bind_clock_starts_with_the_session_and_anew_when_it_loses_its_slot() {
        let mut session = session("{bindTimeout: 10s}");
        session.metadata.creation_timestamp = Some(Moment(100_000).to_api());
        assert_eq!(bind_deadline(&session, Moment(500_000)), Moment(110_000));
        session.status = serde_json::from_value(ready("False", "1970-01-01T00:03:20Z")).unwrap();
        assert_eq!(bind_deadline(&session, Moment(500_000)), Moment(210_000));
        session.status = serde_json::from_value(ready("True", "1970-01-01T00:03:20Z")).unwrap();
        assert_eq!(bind_deadline(&session, Moment(500_000)), Moment(510_000));
    }

    #[test]
    fn an_end_is_bounded_by_drain_close_and_ten_seconds() {
        assert_eq!(end_bound(Duration::from_secs(30), Duration::from_secs(5)), Duration::from_secs(45));
    }
}
