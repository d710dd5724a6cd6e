use super::*;
use serde_json::Value;

fn read(refusal: &Refusal) -> Value {
    serde_json::from_str(&Refused::from(refusal.clone()).body()).unwrap()
}

fn answer(refusal: &Refusal) -> Response {
    Refused::from(refusal.clone()).into_response()
}

fn blocked(reason: Reason) -> Refusal {
    Refusal::Blocked { reason, namespace: "demo".into(), session: "first".into() }
}

#[test]
fn a_session_that_is_not_there_is_answered_as_mcp_clients_know_it() {
    assert_eq!(
        Refused::from(Refusal::SessionNotFound).body(),
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#
    );
    let known = Refusal::SessionNotFound.of("github", br#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#);
    assert_eq!(known.body(), Refused::from(Refusal::SessionNotFound).body(), "whatever is known of the call");
}

#[test]
fn another_path_is_told_the_form_of_ours() {
    let body = read(&Refusal::Elsewhere);
    assert!(body["error"].as_str().unwrap().contains("/{namespace}/{session}/{server}/mcp"), "{body}");
}

#[test]
fn a_missing_token_and_a_bad_one_are_challenged_differently() {
    let challenge = |refusal: Refusal| {
        let response = answer(&refusal);
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        response.headers()[header::WWW_AUTHENTICATE].to_str().unwrap().to_owned()
    };
    assert_eq!(challenge(Refusal::NoToken), r#"Bearer realm="berth""#);
    assert_eq!(challenge(Refusal::BadToken), r#"Bearer realm="berth", error="invalid_token""#);
}

#[test]
fn what_may_succeed_later_says_when() {
    let table = [
        (Refusal::NotPlaced { reason: Reason::LimitReached }, 503, "1"),
        (Refusal::SidecarUnavailable, 503, "1"),
        (blocked(Reason::RefNotFound), 503, "5"),
        (Refusal::Starting, 503, "1"),
        (Refusal::Ending, 503, "1"),
        (Refusal::ReviewUnavailable, 503, "5"),
        (Refusal::Busy, 429, "1"),
        (Refusal::TooManyCalls, 429, "1"),
    ];
    for (refusal, status, seconds) in table {
        let response = answer(&refusal);
        assert_eq!(response.status(), status, "{refusal}");
        assert_eq!(response.headers()[header::RETRY_AFTER], seconds, "{refusal}");
    }
}

#[test]
fn the_reason_of_a_session_without_a_place_is_that_of_its_status() {
    let body = read(&Refusal::NotPlaced { reason: Reason::LimitReached });
    assert_eq!(body["error"]["data"]["reason"], "LimitReached");
}

#[test]
fn what_must_be_repaired_is_said_and_where_it_is_named() {
    let table = [
        (Reason::InvalidSpec, "names no credential"),
        (Reason::RefNotFound, "Secret or key with the credential"),
        (
            Reason::RefNotPermitted,
            "the credential for this server cannot be used: its Secret lacks the label",
        ),
        (Reason::InvalidCredential, "the credential for this server cannot be used: it is empty"),
    ];
    for (reason, problem) in table {
        let body = read(&blocked(reason));
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains(problem), "{message}");
        assert!(message.contains("`kubectl describe agentsession first -n demo`"), "{message}");
        assert_eq!(body["error"]["data"]["reason"], reason.as_str());
    }
}

#[test]
fn another_method_is_told_those_that_are_served() {
    let response = answer(&Refusal::Method);
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(response.headers()[header::ALLOW], "GET, POST, DELETE");
}

#[test]
fn the_answer_to_a_call_that_was_read_has_its_id_and_server() {
    let id = |body: &[u8]| {
        let body: Value = serde_json::from_str(&Refusal::OutcomeUnknown.of("github", body).body()).unwrap();
        assert_eq!(body["error"]["data"]["server"], "github");
        body["id"].to_string()
    };
    assert_eq!(id(br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}"#), "7");
    assert_eq!(id(br#"{"method":"ping","id":"a\"b","jsonrpc":"2.0"}"#), r#""a\"b""#);
    for other in [
        &br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#[..],
        br#"{"jsonrpc":"2.0","id":7,"result":{}}"#,
        br#"[{"jsonrpc":"2.0","id":7,"method":"ping"}]"#,
        br#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
        b"{",
        b"\xff",
        b"",
    ] {
        assert_eq!(id(other), "null", "{other:?}");
    }
}

#[test]
fn a_limit_stands_in_the_text() {
    let body = read(&Refusal::BodyTooLarge { limit: 4_194_304 });
    assert!(body["error"]["message"].as_str().unwrap().contains("4194304"), "{body}");
    let body = read(&Refusal::HeadTooLarge);
    assert!(body["error"]["message"].as_str().unwrap().contains("65536"), "{body}");
}

#[test]
fn every_refusal_of_a_call_has_the_code_and_reason_that_clients_can_act_on() {
    let table = [
        (Refusal::Method, -32600, "MethodNotAllowed"),
        (Refusal::ForbiddenOrigin, -32600, "ForbiddenOrigin"),
        (Refusal::ForbiddenHost, -32600, "ForbiddenHost"),
        (Refusal::ManyHosts, -32600, "ManyHosts"),
        (Refusal::NoToken, -32600, "Unauthorized"),
        (Refusal::BadToken, -32600, "Unauthorized"),
        (Refusal::ReviewUnavailable, -32603, "ReviewUnavailable"),
        (Refusal::NotPlaced { reason: Reason::Unschedulable }, -32050, "Unschedulable"),
        (Refusal::SidecarUnavailable, -32050, "SidecarUnavailable"),
        (blocked(Reason::RefNotFound), -32050, "RefNotFound"),
        (Refusal::Starting, -32603, "Starting"),
        (Refusal::Ending, -32603, "Ending"),
        (Refusal::TooManyCalls, -32055, "Busy"),
        (Refusal::Busy, -32055, "Busy"),
        (Refusal::HeadTooLarge, -32054, "TooLarge"),
        (Refusal::BodyTooLarge { limit: 1 }, -32054, "TooLarge"),
        (Refusal::BodyIncomplete, -32600, "BodyIncomplete"),
        (Refusal::BodyMalformed, -32600, "BodyMalformed"),
        (Refusal::OutcomeUnknown, -32051, "OutcomeUnknown"),
    ];
    for (refusal, code, reason) in table {
        let body = read(&refusal);
        assert_eq!(body["error"]["code"], code, "{refusal:?}");
        assert_eq!(body["error"]["data"]["reason"], reason, "{refusal:?}");
    }
}
