//! Each kind of server with each kind of binding.

use super::fixture::session;
use super::*;
use crate::server::fixture::{secret, server, valid};

const SHARED: &str = "{auth: {type: Shared, shared: {secretKeyRef: {name: token, key: value}}}}";
const SESSION: &str = "{auth: {type: Session, session: {}}}";
const OWN: &str = "{servers: [{name: everything, credential: {secretKeyRef: {name: token, key: value}}}]}";

/// The first binding of the session `yaml` at the server `at`.
fn judged(yaml: &str, at: &str, secret: SecretState<'_>) -> Binding {
    let session = session(yaml);
    binding(&session, (0, &session.spec.servers[0]), Some((&server(at), secret, CaState::Missing))).unwrap()
}

fn refused(yaml: &str, at: &str, secret: SecretState<'_>) -> Refusal {
    judged(yaml, at, secret).headers.unwrap_err()
}

fn one(name: &str, value: &str) -> Vec<Header> {
    vec![Header { name: name.into(), value: value.into() }]
}

#[test]
fn a_missing_server_is_named_with_its_namespace_and_the_remedy() {
    let session = session("{servers: [{name: gone}]}");
    let refusal = binding(&session, (0, &session.spec.servers[0]), None).unwrap_err();
    assert_eq!((refusal.reason(), refusal.concerns()), (Reason::RefNotFound, ConditionType::ResolvedRefs));
    assert_eq!(
        refusal.to_string(),
        "server \"gone\" does not exist in namespace \"demo\"; create the McpServer or remove it from spec.servers"
    );
}

#[test]
fn a_refused_server_passes_its_reason_on() {
    let session = session("{}");
    let bad = server("{timeouts: {drain: abc}}");
    let refusal = binding(
        &session,
        (0, &session.spec.servers[0]),
        Some((&bad, SecretState::Missing, CaState::Missing)),
    )
    .unwrap_err();
    assert_eq!((refusal.reason(), refusal.concerns()), (Reason::InvalidSpec, ConditionType::ResolvedRefs));
    assert!(refusal.to_string().starts_with("server \"everything\": spec.timeouts.drain"), "{refusal}");
    let refusal = refused("{}", SHARED, SecretState::Unlabelled);
    assert_eq!(refusal.reason(), Reason::RefNotPermitted);
    assert!(refusal.to_string().starts_with("server \"everything\": secret \"token\""), "{refusal}");
}

#[test]
fn each_type_sends_its_own_credential_and_no_other() {
    let (server, own) =
        (secret("server", "value", "of-server\n"), secret("session", "value", "of-session\n"));
    let headers = |yaml: &str, at: &str, secret| judged(yaml, at, SecretState::Present(secret)).headers;
    assert_eq!(headers("{}", SHARED, &server), Ok(one("Authorization", "Bearer of-server")));
    assert_eq!(headers(OWN, SESSION, &own), Ok(one("Authorization", "Bearer of-session")));
    let bare = "{auth: {type: Session, session: {header: X-Api-Key, scheme: ''}}}";
    assert_eq!(headers(OWN, bare, &own), Ok(one("X-Api-Key", "of-session")));
    assert_eq!(
        judged("{}", "{}", SecretState::Missing),
        Binding { server: valid("{}"), headers: Ok(vec![]), tls: Ok(None) }
    );
}

#[test]
fn a_credential_that_the_server_does_not_ask_for_is_neither_read_nor_sent() {
    let session = session(OWN);
    let named = |at: &str| secret_ref(&server(at), &session.spec.servers[0]).map(|named| named.name.clone());
    assert_eq!(named("{}"), None);
    let other = "{auth: {type: Shared, shared: {secretKeyRef: {name: shared, key: value}}}}";
    assert_eq!((named(other), named(SESSION)), (Some("shared".into()), Some("token".into())));
    assert_eq!(judged(OWN, "{}", SecretState::Missing).headers, Ok(vec![]));
    let secret = secret("server", "value", "of-server");
    assert_eq!(
        judged(OWN, SHARED, SecretState::Present(&secret)).headers,
        Ok(one("Authorization", "Bearer of-server"))
    );
}

#[test]
fn a_session_without_the_credential_that_its_server_asks_for_is_not_accepted() {
    let refusal = refused("{}", SESSION, SecretState::Missing);
    assert_eq!(
        (refusal.reason(), refusal.concerns(), refusal.is_unseen()),
        (Reason::InvalidSpec, ConditionType::Accepted, false)
    );
    assert_eq!(
        refusal.to_string(),
        "spec.servers[0].credential is required, since server \"everything\" has auth.type Session; set its secretKeyRef to a Secret with the label berth.dev/credential=session"
    );
}

#[test]
fn a_credential_that_cannot_be_had_has_its_reason_and_never_its_value() {
    let of_server = secret("server", "value", "hunter2");
    let no_key = secret("session", "other", "hunter2");
    let table = [
        (SecretState::Missing, Failure::RefNotFound, true),
        (SecretState::Unlabelled, Failure::RefNotPermitted, true),
        (SecretState::Present(&of_server), Failure::RefNotPermitted, true),
        (SecretState::Present(&no_key), Failure::RefNotFound, false),
    ];
    for (state, failure, unseen) in table {
        let refusal = refused(OWN, SESSION, state);
        assert_eq!((refusal.failure(), refusal.is_unseen()), (failure, unseen), "{refusal}");
        assert_eq!(
            (refusal.reason().as_str(), refusal.concerns()),
            (failure.as_str(), ConditionType::ResolvedRefs)
        );
        assert!(refusal.to_string().starts_with("server \"everything\": secret \"token\""), "{refusal}");
    }
    // A byte order mark, a line break in the middle, a control character, nothing at all.
    for value in ["\u{feff}hunter2", "hunter2\r\nX-Admin: 1", "hunter2\u{1}", "\n"] {
        let bad = secret("session", "value", value);
        let refusal = refused(OWN, SESSION, SecretState::Present(&bad));
        assert_eq!(refusal.failure(), Failure::InvalidCredential, "{value:?}");
        let shown = format!("{refusal} {refusal:?}");
        assert!(shown.contains("token") && shown.contains("value") && !shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn a_binding_never_shows_its_credential() {
    let own = secret("session", "value", "hunter2");
    let shown = format!("{:?}", judged(OWN, SESSION, SecretState::Present(&own)));
    assert!(shown.contains("Authorization") && !shown.contains("hunter2"), "{shown}");
}
