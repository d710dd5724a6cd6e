//! What a sidecar is asked to hold for a session.

use crate::name;
use crate::server::validate::ValidServer;
use berth_api::AgentSession;
use berth_wire::{EndRequest, Generation, SessionReport, SessionSpec, Subject, Timeouts, Upstream};
use std::time::Duration;

/// The body of the PUT for `session` at `server`.
pub fn spec(session: &AgentSession, server: &ValidServer) -> SessionSpec {
    let meta = &session.metadata;
    let subject = &session.spec.subject;
    SessionSpec {
        uid: meta.uid.clone().unwrap_or_default(),
        display_name: format!(
            "{}/{}",
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default()
        ),
        server: server.key.clone(),
        generation: Generation { session: meta.generation.unwrap_or_default(), server: server.generation },
        subject: Subject { issuer: subject.issuer.clone(), name: subject.name.clone() },
        upstream: Upstream { url: server.url.clone(), headers: server.headers.clone() },
        timeouts: Timeouts {
            drain_millis: drain_millis(session, server.timeouts.drain_millis),
            ..server.timeouts
        },
    }
}

/// Whether `spec` has to be sent to the pod that holds the session: it holds something older, or this process has not sent
/// this very spec. Nothing is sent to a pod of another revision, which would refuse it.
pub fn is_to_be_sent(
    spec: &SessionSpec,
    pod_revision: &str,
    report: Option<&SessionReport>,
    sent: Option<&str>,
) -> bool {
    let current = pod_revision == spec.server.revision;
    let known = report.is_some_and(|report| report.generation == spec.generation);
    current && !(known && sent == Some(fingerprint(spec).as_str()))
}

/// A hash of a spec that changes with the credential too, which generations do not.
pub fn fingerprint(spec: &SessionSpec) -> String {
    // The type has string keys only, so writing it as JSON cannot fail.
    name::hash(&[&serde_json::to_string(spec).unwrap_or_default()], 32)
}

/// The query of the DELETE for a session whose end may drain and close for so long.
pub fn end_request(drain: Duration, close: Duration, wait: Duration) -> EndRequest {
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    EndRequest { drain_millis: millis(drain), close_millis: millis(close), wait_millis: millis(wait) }
}

/// How long running calls of `session` may go on, where its server says `server_millis`.
pub fn drain_millis(session: &AgentSession, server_millis: u64) -> u64 {
    let own = session.spec.drain_timeout.as_ref().and_then(berth_api::Duration::to_std);
    own.map_or(server_millis, |span| u64::try_from(span.as_millis()).unwrap_or(server_millis))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::fixture::valid;
    use crate::session::validate::fixture::session;
    use serde_json::json;

    #[test]
    fn a_spec_is_exactly_this() {
        let built = spec(&session("{drainTimeout: 2s}"), &valid("{}"));
        assert_eq!(
            serde_json::to_value(&built).unwrap(),
            json!({
                "uid": "77-session",
                "displayName": "demo/chat",
                "server": {"uid": "0a1b-server", "name": "everything", "revision": valid("{}").key.revision},
                "generation": {"session": 2, "server": 3},
                "subject": {"issuer": "", "name": "alice@corp.example"},
                "upstream": {"url": "http://everything.demo.svc:3001/mcp", "headers": []},
                "timeouts": {
                    "connectMillis": 30_000, "requestMillis": 300_000, "requestMaxMillis": 1_800_000,
                    "drainMillis": 2_000, "closeMillis": 5_000,
                },
            })
        );
    }

    #[test]
    fn the_servers_drain_holds_where_the_session_says_nothing() {
        assert_eq!(spec(&session("{}"), &valid("{}")).timeouts.drain_millis, 30_000);
    }
}
