use super::*;
use proptest::prelude::*;

fn request_of(text: &str) -> (Token<'_>, Option<Token<'_>>) {
    match Frame::parse(text) {
        Ok(Frame::Request { id, progress_token, .. }) => (id, progress_token),
        other => panic!("{text} is {other:?}"),
    }
}

fn code_of(text: &str) -> i32 {
    Frame::parse(text).expect_err(text).code()
}

#[test]
fn each_kind_of_message_is_told_apart() {
    let request = r#"{"id":"a","jsonrpc":"2.0","method":"tools/call","params":{"x":1}}"#;
    assert!(matches!(
        Frame::parse(request),
        Ok(Frame::Request { method, params: Some(r#"{"x":1}"#), progress_token: None, .. }) if method == "tools/call"
    ));
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert!(matches!(Frame::parse(notification), Ok(Frame::Notification { subject: None, .. })));
    let result = r#"{"jsonrpc":"2.0","id":7,"result":null}"#;
    assert!(matches!(
        Frame::parse(result),
        Ok(Frame::Response { id: Some(_), outcome: Outcome::Result("null") })
    ));
    for (both, is_result) in [(r#""result":{},"error":null"#, true), (r#""error":{},"result":null"#, false)] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":7,{both}}}"#);
        let Ok(Frame::Response { outcome, .. }) = Frame::parse(&text) else { panic!("{text}") };
        assert_eq!(matches!(outcome, Outcome::Result("{}")), is_result, "{text}");
        assert_eq!(matches!(outcome, Outcome::Error("{}")), !is_result, "{text}");
    }
    let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":1}}"#;
    assert!(matches!(
        Frame::parse(error),
        Ok(Frame::Response { id: None, outcome: Outcome::Error(r#"{"code":1}"#) })
    ));
}

#[test]
fn the_request_that_a_notification_is_about_is_found() {
    let cancelled =
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":12,"reason":"x"}}"#;
    let Ok(Frame::Notification { subject: Some(subject), .. }) = Frame::parse(cancelled) else { panic!() };
    assert_eq!(subject.raw(), "12");
    let progress =
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":"t"}}"#;
    let Ok(Frame::Notification { subject: Some(subject), .. }) = Frame::parse(progress) else { panic!() };
    assert_eq!((subject.raw(), &progress[subject.span()]), (r#""t""#, r#""t""#));
}

#[test]
fn escaped_member_names_and_methods_are_understood() {
    let text = r#"{"jsonrpc":"2.0","\u0069d":1,"method":"p\u0069ng"}"#;
    assert!(matches!(Frame::parse(text), Ok(Frame::Request { method, .. }) if method == "ping"));
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"\u005fmeta":{"progressToken":7}}}"#;
    let Ok(Frame::Request { progress_token: Some(token), .. }) = Frame::parse(text) else { panic!() };
    assert_eq!(token.raw(), "7");
}

#[test]
fn what_is_not_one_message_is_refused_with_its_code() {
    for text in ["", "  ", "{", "nonsense", r#"{"jsonrpc":"2.0","id":1,"method":"x"} {}"#] {
        assert_eq!(code_of(text), error::PARSE_ERROR, "{text}");
    }
    for text in [
        "[]",
        r#" [{"jsonrpc":"2.0","id":1,"method":"x"}]"#,
        "42",
        r#""text""#,
        "{}",
        r#"{"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"x"}"#,
        r#"{"id":1,"method":"x"}"#,
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"x","result":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#,
        r#"{"jsonrpc":"2.0","result":1}"#,
    ] {
        assert_eq!(code_of(text), error::INVALID_REQUEST, "{text}");
    }
}

#[test]
fn doubled_members_are_refused_by_name() {
    for (text, name) in [
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}"#, "id"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"x","method":"y"}"#, "method"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{},"_meta":{}}}"#, "_meta"),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"progressToken":1,"progressToken":2}}}"#,
            "progressToken",
        ),
    ] {
        let error = Frame::parse(text).expect_err(text);
        assert!(error.to_string().contains(&format!("duplicate field `{name}`")), "{error}");
        assert_eq!(error.code(), error::INVALID_REQUEST);
    }
}

#[test]
fn ids_and_tokens_are_strings_or_numbers() {
    for id in ["null", "true", "{}", "[1]"] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x"}}"#);
        assert!(matches!(Frame::parse(&text), Err(FrameError::TokenType("id"))), "{text}");
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"_meta":{{"progressToken":{id}}}}}}}"#
        );
        assert!(matches!(Frame::parse(&text), Err(FrameError::TokenType("progressToken"))), "{text}");
    }
}

#[test]
fn ids_and_tokens_have_a_bound() {
    let (longest, longer) =
        (format!("\"{}\"", "x".repeat(MAX_TOKEN - 2)), format!("\"{}\"", "x".repeat(MAX_TOKEN - 1)));
    let digits = "1".repeat(MAX_TOKEN + 1);
    for (name, message) in [
        ("id", r#"{"jsonrpc":"2.0","id":TOKEN,"method":"x"}"#),
        ("id", r#"{"jsonrpc":"2.0","id":TOKEN,"result":{}}"#),
        ("id", r#"{"jsonrpc":"2.0","id":TOKEN,"error":{}}"#),
        (
            "progressToken",
            r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"progressToken":TOKEN}}}"#,
        ),
        (
            "progressToken",
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":TOKEN}}"#,
        ),
        ("requestId", r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":TOKEN}}"#),
    ] {
        let whole = message.replace("TOKEN", &longest);
        assert!(Frame::parse(&whole).is_ok(), "{message}");
        for token in [&longer, &digits] {
            let whole = message.replace("TOKEN", token);
            let error = Frame::parse(&whole).expect_err(message);
            assert_eq!(error.to_string(), format!("member {name:?} must have at most 1024 bytes"));
            assert_eq!(error.code(), error::INVALID_REQUEST);
        }
    }
}

#[test]
fn parameters_that_are_no_object_pass() {
    for params in ["[1,2]", "null", "3"] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{params}}}"#);
        assert_eq!(request_of(&text).1, None, "{text}");
    }
}

#[test]
fn strings_are_compared_by_characters_and_never_equal_numbers() {
    let key = |raw| request_of(&format!(r#"{{"jsonrpc":"2.0","id":{raw},"method":"x"}}"#)).0.key();
    assert_eq!(key(r#""\u0061""#), key(r#""a""#));
    assert_ne!(key(r#""1""#), key("1"));
}

#[test]
fn a_span_outside_the_text_is_left_alone() {
    assert_eq!(splice("abc", [(1..2, "X"), (9..12, "Y")]), "aXc");
    assert_eq!(splice("abc", [(0..2, "X"), (1..3, "Y")]), "Xc");
}

/// A raw id or token: numbers in every spelling, strings with escapes.
fn token() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        Just("1e2".to_owned()),
        Just("-0.10".to_owned()),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        Just(r#""\u00e9\/""#.to_owned()),
    ]
}

/// Any JSON value as text.
pub(super) fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("1.000".to_owned()),
        Just("1E+2".to_owned()),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(|items| format!("[ {} ]", items.join(" ,"))),
            prop::collection::vec(inner, 0..3).prop_map(|items| {
                let members: Vec<_> =
                    items.iter().enumerate().map(|(n, item)| format!("\"k{n}\" : {item}")).collect();
                format!("{{{}}}", members.join(",\n"))
            }),
        ]
    })
}

prop_compose! {
    /// A request with a progress token, unknown members at each level, in any order and spacing.
    fn request()(
        id in token(), progress in token(), unknown in json(), argument in json(), meta in json(),
        order in Just([0_usize, 1, 2, 3, 4]).prop_shuffle(), space in prop::sample::select(vec!["", " ", "\n\t"]),
    ) -> (String, String, String) {
        let members = [
            format!("\"jsonrpc\"{space}:{space}\"2.0\""),
            format!("\"id\":{space}{id}{space}"),
            "\"method\":\"tools/call\"".to_owned(),
            format!("\"params\":{{\"arguments\":{argument},\"_meta\":{{\"x/y\":{meta},\"progressToken\":{space}{progress}}}}}"),
            format!("\"x-vendor\":{unknown}"),
        ];
        let text: Vec<_> = order.iter().map(|&n| members[n].clone()).collect();
        (format!("{space}{{{}}}{space}", text.join(&format!(",{space}"))), id, progress)
    }
}

proptest! {
    #[test]
    fn mapping_there_and_back_gives_the_identical_bytes((text, id, progress) in request(), fresh in any::<u64>()) {
        let (found_id, found_progress) = request_of(&text);
        let found_progress = found_progress.expect("a progress token");
        prop_assert_eq!((found_id.raw(), found_progress.raw()), (id.as_str(), progress.as_str()));
        let fresh = fresh.to_string();
        let mapped = splice(&text, [(found_id.span(), &fresh), (found_progress.span(), &fresh)]);
        let (mapped_id, mapped_progress) = request_of(&mapped);
        prop_assert_eq!(mapped_id.raw(), fresh.as_str());
        let mapped_progress = mapped_progress.expect("a progress token");
        let back = splice(&mapped, [(mapped_progress.span(), progress.as_str()), (mapped_id.span(), id.as_str())]);
        prop_assert_eq!(back, text);
    }

    #[test]
    fn mapping_the_id_of_a_result_keeps_every_other_byte(id in token(), fresh in token(), before in json(), result in json()) {
        let render = |id: &str| format!("{{\"x\": {before},\"id\":{id} ,\"jsonrpc\":\"2.0\",\"result\":{result}}}");
        let text = render(&id);
        let Ok(Frame::Response { id: Some(found), .. }) = Frame::parse(&text) else { panic!("{text}") };
        prop_assert_eq!(splice(&text, [(found.span(), fresh.as_str())]), render(&fresh));
    }

    #[test]
    fn no_text_makes_it_panic(text in any::<String>()) {
        let _ = Frame::parse(&text);
    }
}
