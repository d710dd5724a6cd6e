//! What a sidecar is asked to hold for a session.

use crate::name;
use crate::server::validate::{Auth, ValidServer};
use crate::session::validate::Refusal;
use berth_api::AgentSession;
use berth_wire::{
    EndRequest, Generation, Header, ScopeKey, SessionReport, SessionSpec, Subject, Timeouts, Upstream,
    UpstreamTls, Withheld,
};
use std::time::Duration;

/// What a session brings to a server beside what the two objects say.
#[derive(Clone)]
pub struct Access {
    /// Go with every request to the upstream.
    pub headers: Vec<Header>,
    /// How the upstream's certificate is checked.
    pub tls: Option<UpstreamTls>,
    /// Seals the session ids of clients.
    pub scope_key: ScopeKey,
}

/// The body of the PUT for `session` at `server`.
pub fn spec(session: &AgentSession, server: &ValidServer, access: Access) -> SessionSpec {
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
        upstream: Upstream {
            url: server.url.clone(),
            tls: access.tls,
            headers: access.headers,
            own_credential: matches!(server.auth, Auth::Session(_)),
            withheld: None,
        },
        timeouts: Timeouts {
            drain_millis: drain_millis(session, server.timeouts.drain_millis),
            ..server.timeouts
        },
        on_state_lost: server.on_state_lost,
        limits: server.limits,
        scope_key: Some(access.scope_key),
    }
}

/// The body of the PUT for a session whose credential cannot be had, to the pod of `pod_revision` that holds it: nothing is sent
/// to the upstream from then on, so that a pod of an older revision can take it as well. Callers read its text, who need not know
/// which Secrets there are: those are named in the status alone.
pub fn withheld(
    session: &AgentSession,
    server: &ValidServer,
    pod_revision: &str,
    refusal: &Refusal,
    scope_key: ScopeKey,
) -> SessionSpec {
    let mut spec = spec(session, server, Access { headers: Vec::new(), tls: None, scope_key });
    pod_revision.clone_into(&mut spec.server.revision);
    let reason = refusal.failure();
    let message = format!(
        "{} for server {:?} cannot be used ({}); the status of the AgentSession says why",
        refusal.subject(),
        server.key.name,
        reason.as_str()
    );
    spec.upstream.withheld = Some(Withheld { reason, message });
    spec
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
    use crate::server::credential::{self, Unusable, User};
    use crate::server::fixture::valid;
    use crate::session::validate::fixture::session;
    use berth_wire::{Activity, SessionState};
    use serde_json::json;

    fn access() -> Access {
        Access { headers: Vec::new(), tls: None, scope_key: ScopeKey("a2V5".into()) }
    }

    #[test]
    fn what_applies_live_goes_over_with_the_next_put() {
        let server = valid("{onStateLost: Fail, limits: {concurrentCalls: 3}}");
        let tls = UpstreamTls { ca_pem: Some("pem".into()), server_name: Some("a.test".into()) };
        let built = spec(&session("{}"), &server, Access { tls: Some(tls.clone()), ..access() });
        assert_eq!((built.limits.concurrent_calls, built.on_state_lost), (3, berth_wire::OnStateLost::Fail));
        assert_eq!(built.upstream.tls, Some(tls));
        let before = spec(&session("{}"), &server, access());
        assert_ne!(fingerprint(&before), fingerprint(&built), "certificates that change are sent");
        assert_eq!(before.generation, built.generation);
    }

    #[test]
    fn missing_certificates_are_called_so_and_not_named() {
        let refusal = crate::server::authorities::Refusal::NotFound {
            object: "configmap \"hidden\"".into(),
            key: "ca.crt".into(),
            label: "",
        };
        let refusal = Refusal::Server { server: "everything".into(), refusal: refusal.into() };
        let spec = withheld(&session("{}"), &valid("{}"), "r", &refusal, access().scope_key);
        assert_eq!(
            spec.upstream.withheld.unwrap().message,
            "the CA certificates for server \"everything\" cannot be used (RefNotFound); the status of the AgentSession says why"
        );
    }

    #[test]
    fn a_spec_is_exactly_this() {
        let built = spec(&session("{drainTimeout: 2s}"), &valid("{}"), access());
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
                "limits": {
                    "requestBytes": 4_194_304, "responseBytes": 16_777_216, "concurrentCalls": 16, "queuedCalls": 64,
                },
                "scopeKey": "a2V5",
            })
        );
    }

    #[test]
    fn a_changed_credential_is_sent_although_no_generation_changed() {
        let spec = |value: &str| {
            let header = Header { name: "Authorization".into(), value: value.into() };
            spec(&session("{}"), &valid("{}"), Access { headers: vec![header], ..access() })
        };
        let (first, second) = (spec("Bearer first"), spec("Bearer second"));
        let report = SessionReport {
            uid: first.uid.clone(),
            generation: first.generation,
            state: SessionState::Connected,
            failure: None,
            message: None,
            next_retry_unix_millis: None,
            activity: Activity::default(),
            end: None,
        };
        let sent = fingerprint(&first);
        let revision = &first.server.revision;
        assert!(!is_to_be_sent(&first, revision, Some(&report), Some(&sent)));
        assert!(is_to_be_sent(&second, revision, Some(&report), Some(&sent)));
        assert!(!sent.contains("first") && first.server.revision == second.server.revision);
    }

    #[test]
    fn a_withheld_credential_is_told_to_the_pod_that_holds_the_session_whatever_its_revision() {
        let refusal = Refusal::NoCredential { index: 0, server: "everything".into() };
        let message = "the credential for server \"everything\" cannot be used (InvalidSpec); the status of the AgentSession says why";
        let spec = withheld(&session("{}"), &valid("{}"), "older", &refusal, access().scope_key);
        let upstream = serde_json::to_value(&spec.upstream).unwrap();
        assert_eq!(upstream["headers"], json!([]));
        assert_eq!(upstream["withheld"], json!({"reason": "InvalidSpec", "message": message}));
        assert_eq!(spec.server.revision, "older");
        assert!(is_to_be_sent(&spec, "older", None, None));
    }

    #[test]
    fn callers_are_told_the_reason_and_never_the_secret() {
        let (secret, key, field) = ("hidden-a".to_owned(), "hidden-b".to_owned(), "hidden-c".to_owned());
        let refusals = [
            credential::Refusal::SecretNotFound {
                secret: secret.clone(),
                key: key.clone(),
                user: User::Session,
            },
            credential::Refusal::KeyNotFound { secret: secret.clone(), key: key.clone(), field },
            credential::Refusal::NotPermitted { secret: secret.clone(), user: User::Session },
            credential::Refusal::Invalid { secret, key, problem: Unusable::Empty },
        ];
        for refusal in refusals {
            let refusal = Refusal::Credential { server: "everything".into(), refusal };
            assert!(refusal.to_string().contains("hidden-"), "{refusal}");
            let sent = serde_json::to_string(&withheld(
                &session("{}"),
                &valid("{}"),
                "r",
                &refusal,
                access().scope_key,
            ))
            .unwrap();
            assert!(sent.contains(refusal.failure().as_str()) && !sent.contains("hidden-"), "{sent}");
        }
    }

    #[test]
    fn a_subject_goes_over_byte_for_byte() {
        for name in ["日本@example.test", "CORP\\u1", "caf\u{e9}", "cafe\u{301}", &"é".repeat(512)] {
            let mut session = session("{}");
            session.spec.subject.name = name.to_owned();
            let sent = serde_json::to_string(&spec(&session, &valid("{}"), access())).unwrap();
            let read: SessionSpec = serde_json::from_str(&sent).unwrap();
            assert_eq!(read.subject.name.as_bytes(), name.as_bytes());
            assert!(!read.display_name.contains(name) && !read.uid.contains(name));
        }
    }

    #[test]
    fn the_servers_drain_holds_where_the_session_says_nothing() {
        assert_eq!(spec(&session("{}"), &valid("{}"), access()).timeouts.drain_millis, 30_000);
    }
}
