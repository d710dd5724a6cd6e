//! What a session that lives still holds at servers which its spec does not name any more: it ends there.

use crate::end::Holding;
use crate::time::Moment;
use berth_api::{AgentSession, BindingState, BindingStatus};
use std::time::Duration;

/// Pause before a sidecar whose end of the session is not over is asked again.
const AGAIN: Duration = Duration::from_secs(2);

/// Those of `holdings` that are at a server which `spec.servers` does not name.
pub fn removed(session: &AgentSession, holdings: Vec<Holding>) -> Vec<Holding> {
    let named = |holding: &Holding| session.spec.servers.iter().any(|server| server.name == holding.server);
    holdings.into_iter().filter(|holding| !named(holding)).collect()
}

/// The entries of status that stay, as `Ending`, while something is `left` there: an operator that starts anew then knows
/// whom to ask.
pub fn entries(session: &AgentSession, left: &[Holding]) -> Vec<BindingStatus> {
    let before = session.status.iter().flat_map(|status| &status.servers);
    let stays = |entry: &&BindingStatus| {
        left.iter().any(|holding| !holding.is_over() && holding.server == entry.name)
    };
    let ending = |entry: &BindingStatus| BindingStatus {
        state: BindingState::Ending,
        reason: None,
        last_error: None,
        next_retry_time: None,
        url: None,
        ..entry.clone()
    };
    before.filter(stays).map(ending).collect()
}

/// When to ask again; none when nothing is left.
pub fn next_look(left: &[Holding], now: Moment) -> Option<Moment> {
    left.iter().any(|holding| !holding.is_over()).then(|| now.plus(AGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::end::State;
    use crate::session::validate::fixture;
    use serde_json::json;

    fn holding(server: &str, state: State) -> Holding {
        Holding {
            server: server.into(),
            pod: format!("{server}-x-0"),
            pod_uid: format!("pod-{server}"),
            state,
            taken: true,
            restarted: false,
        }
    }

    #[test]
    fn only_what_is_held_at_servers_that_the_spec_does_not_name_has_to_end() {
        let held = vec![holding("everything", State::Unasked), holding("gone", State::Unasked)];
        let removed = removed(&fixture::session("{}"), held);
        assert_eq!(removed, [holding("gone", State::Unasked)]);
    }

    #[test]
    fn its_entry_stays_as_ending_until_it_is_over_there() {
        let mut session = fixture::session("{}");
        let pod = json!({"name": "gone-x-0", "uid": "pod-gone", "address": "10.0.0.1", "serverUid": "s"});
        session.status = serde_json::from_value(json!({"servers": [
            {"name": "everything", "state": "Bound"},
            {"name": "gone", "state": "Bound", "url": "http://gateway.test/x", "podRef": pod},
        ]}))
        .unwrap();
        let kept = serde_json::to_value(entries(&session, &[holding("gone", State::Silent)])).unwrap();
        assert_eq!(kept, json!([{"name": "gone", "state": "Ending", "podRef": pod}]));
        assert_eq!(entries(&session, &[holding("gone", State::Gone)]), []);
        assert_eq!(entries(&session, &[]), []);
    }

    #[test]
    fn it_is_looked_at_again_until_it_is_over_there() {
        let now = Moment(1_000);
        assert_eq!(next_look(&[holding("gone", State::Silent)], now), Some(Moment(3_000)));
        assert_eq!(next_look(&[holding("gone", State::Gone)], now), None);
    }
}
