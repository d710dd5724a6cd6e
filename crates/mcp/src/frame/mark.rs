//! The mark on a result that comes from an upstream session that was opened anew.

use super::envelope::present;
use super::{Frame, Outcome};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Member of `_meta` of a result: what was bound to the upstream's session was lost before the request was carried out.
pub const REINITIALIZED: &str = "berth.dev/reinitialized";

/// `text`, a response, with the mark in its result's `_meta`; no other byte changes. None if it is no result that can carry one.
pub fn mark_reinitialized(text: &str) -> Option<String> {
    let Ok(Frame::Response { outcome: Outcome::Result(result), .. }) = Frame::parse(text) else {
        return None;
    };
    // The derived reader would take an array as the members in order.
    if !result.starts_with('{') {
        return None;
    }
    // A doubled member, of which nobody knows which is meant, is an error here.
    let Members { meta } = serde_json::from_str(result).ok()?;
    let (object, member) = match meta {
        Some(meta) => (meta.get(), format!(r#""{REINITIALIZED}":true"#)),
        None => (result, format!(r#""_meta":{{"{REINITIALIZED}":true}}"#)),
    };
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(object).ok()?;
    if members.contains_key(REINITIALIZED) {
        return None;
    }
    let comma = if members.is_empty() { "" } else { "," };
    let at = object.as_ptr().addr().checked_sub(text.as_ptr().addr())? + 1;
    let (before, after) = text.split_at_checked(at)?;
    Some(format!("{before}{member}{comma}{after}"))
}

/// Members of a result that are looked at.
#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow, default, rename = "_meta", deserialize_with = "present")]
    meta: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests {
    use super::super::tests::json;
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    #[test]
    fn the_mark_comes_first_in_the_results_meta() {
        for (result, marked) in [
            ("{}", r#"{"_meta":{"berth.dev/reinitialized":true}}"#),
            (r#"{ "x" : 1.0 }"#, r#"{"_meta":{"berth.dev/reinitialized":true}, "x" : 1.0 }"#),
            (
                r#"{"x":{"_meta":{}},"_meta" : { "a/b": 1}}"#,
                r#"{"x":{"_meta":{}},"_meta" : {"berth.dev/reinitialized":true, "a/b": 1}}"#,
            ),
            (r#"{"\u005fmeta":{}}"#, r#"{"\u005fmeta":{"berth.dev/reinitialized":true}}"#),
        ] {
            let response = |result: &str| format!(r#"{{"id" : 1,"result":  {result} ,"jsonrpc":"2.0"}}"#);
            assert_eq!(mark_reinitialized(&response(result)), Some(response(marked)));
        }
    }

    #[test]
    fn what_can_carry_no_mark_has_none() {
        for outcome in [
            r#""error":{"code":1,"message":"m"}"#,
            r#""result":null"#,
            r#""result":[{"x":1}]"#,
            r#""result":"text""#,
            r#""result":{"_meta":null}"#,
            r#""result":{"_meta":[]}"#,
            r#""result":{"_meta":{},"_meta":{}}"#,
            r#""result":{"_meta":{"berth.dev/reinitialized":false}}"#,
        ] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,{outcome}}}"#);
            assert_eq!(mark_reinitialized(&text), None, "{text}");
        }
        assert_eq!(mark_reinitialized(r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{}}"#), None);
    }

    proptest! {
        #[test]
        fn nothing_but_the_mark_is_added(
            before in json(), after in json(), inner in prop::option::of(json()), space in prop::sample::select(vec!["", " ", "\n\t"]),
            at_end in any::<bool>(), empty in any::<bool>(),
        ) {
            let meta = inner.map(|inner| format!("\"_meta\"{space}:{space}{{{space}\"k\":{inner}}}"));
            let members: Vec<_> = [
                (!empty).then(|| format!("\"a\":{space}{before}")),
                meta.clone().filter(|_| !at_end),
                (!empty).then(|| format!("\"b\":{after}{space}")),
                meta.filter(|_| at_end),
            ].into_iter().flatten().collect();
            let text = format!("{{\"id\":1,{space}\"result\":{{{space}{}}},\"jsonrpc\":\"2.0\"}}", members.join(","));
            let marked = mark_reinitialized(&text).expect("a mark");
            // Taken out again, as one run of bytes, it leaves the text as it was.
            let added = marked.len() - text.len();
            let start = marked.bytes().zip(text.bytes()).take_while(|(one, other)| one == other).count();
            let splits = (0..=start).rev().any(|at| marked.get(..at).zip(marked.get(at + added..)).is_some_and(|(head, tail)| format!("{head}{tail}") == text));
            prop_assert!(splits, "{} is not {} with one run of bytes added", marked, text);
            // And as JSON it is the same with the one member more.
            let mut expected: Value = serde_json::from_str(&text).unwrap();
            expected["result"]["_meta"][REINITIALIZED] = true.into();
            prop_assert_eq!(serde_json::from_str::<Value>(&marked).unwrap(), expected);
            prop_assert_eq!(mark_reinitialized(&marked), None, "once");
        }

        #[test]
        fn no_text_makes_it_panic(text in any::<String>()) {
            let _ = mark_reinitialized(&text);
        }
    }
}
