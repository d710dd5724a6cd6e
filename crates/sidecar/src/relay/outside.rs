//! What the upstream says on its own stream, outside of any call. Pure.

use berth_mcp::frame::Frame;
use berth_mcp::method;
use serde::Deserialize;
use std::borrow::Cow;

/// What to do with such a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outside {
    /// A ping: the sidecar answers it. Holds its raw id.
    Ping(String),
    /// A request, for one client; with its method.
    Ask(String),
    /// The server wants no answer any more to a request that it made.
    Withdraw,
    /// Progress of the call with this id upstream.
    Progress(u64),
    /// The resource of this URI changed, for those who subscribed.
    Updated(String),
    /// The list of which this method tells changed, for all clients that listen.
    Changed(&'static str),
    /// For all clients that listen.
    News,
    /// For nobody, with the reason.
    Drop(&'static str),
}

/// Reads such a message.
pub(super) fn read(text: &str) -> Outside {
    match Frame::parse(text) {
        Err(_) => Outside::Drop("it is not a JSON-RPC message"),
        Ok(Frame::Response { .. }) => Outside::Drop("it answers a request on another stream"),
        Ok(Frame::Request { id, method, .. }) if method == method::PING => Outside::Ping(id.raw().to_owned()),
        Ok(Frame::Request { method, .. }) => Outside::Ask(method.into_owned()),
        Ok(Frame::Notification { method, subject }) => match method.as_ref() {
            method::CANCELLED => Outside::Withdraw,
            method::PROGRESS => match subject.and_then(|token| token.raw().parse().ok()) {
                Some(call) => Outside::Progress(call),
                None => Outside::Drop("it is progress of no request of ours"),
            },
            method::RESOURCE_UPDATED => match uri(text) {
                Some(uri) => Outside::Updated(uri),
                None => Outside::Drop("it names no resource"),
            },
            // Others that end so may be any number.
            method => method::LISTS_CHANGED
                .into_iter()
                .find(|known| *known == method)
                .map_or(Outside::News, Outside::Changed),
        },
    }
}

/// `params.uri` of a message.
pub(super) fn uri(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        params: Params<'a>,
    }
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        uri: Cow<'a, str>,
    }
    serde_json::from_str::<Message<'_>>(text).ok().map(|message| message.params.uri.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_goes_where_it_belongs() {
        let notification = |method: &str, params: &str| {
            read(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/{method}","params":{params}}}"#))
        };
        assert_eq!(notification("progress", r#"{"progressToken":7}"#), Outside::Progress(7));
        for foreign in
            [r#"{"progressToken":"7"}"#, r#"{"progressToken":-1}"#, r#"{"progressToken":7.5}"#, "{}"]
        {
            assert!(matches!(notification("progress", foreign), Outside::Drop(_)), "{foreign}");
        }
        assert_eq!(
            notification("resources/updated", r#"{"uri":"a\u003a//b"}"#),
            Outside::Updated("a://b".into())
        );
        assert!(matches!(notification("resources/updated", "{}"), Outside::Drop(_)));
        assert_eq!(notification("cancelled", r#"{"requestId":1}"#), Outside::Withdraw);
        for news in ["message", "vendor/unknown", "vendor/list_changed"] {
            assert_eq!(notification(news, "{}"), Outside::News);
        }
        for list in method::LISTS_CHANGED {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"{list}"}}"#);
            assert_eq!(read(&text), Outside::Changed(list));
        }
        assert_eq!(read(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#), Outside::Ping("\"p\"".into()));
        assert_eq!(
            read(r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#),
            Outside::Ask("roots/list".into())
        );
        for nothing in [r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "nonsense", "[]"] {
            assert!(matches!(read(nothing), Outside::Drop(_)), "{nothing}");
        }
    }
}
