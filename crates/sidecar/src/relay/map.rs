//! Between a client's ids and the upstream's. Pure; only the spans of ids and tokens change, every other byte stays.

use berth_mcp::frame::{Frame, Outcome, Token, splice};
use berth_mcp::method;

/// The ids of one call on both sides. Upstream, the id is the progress token too.
#[derive(Clone, Debug)]
pub(super) struct Ids {
    /// The client's id, raw.
    pub client: Box<str>,
    /// The client's progress token, raw, if it wants progress.
    pub token: Option<Box<str>>,
    /// The id upstream, raw.
    pub upstream: Box<str>,
}

/// What to do with a message of the upstream's that arrives on a call's answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Inbound {
    /// The call's result or error, for the client.
    Last {
        /// The message, mapped.
        text: String,
        /// Whether it is a result.
        is_result: bool,
    },
    /// Goes to the client. `alive` if the call goes on by it.
    Forward {
        /// The message, mapped.
        text: String,
        /// Whether it is progress.
        alive: bool,
    },
    /// Goes to the client, and to others of the session's whom it concerns as well.
    News(String),
    /// A request that waits for the client.
    Ask(String),
    /// The server wants no answer any more to a request that it made.
    Withdraw(String),
    /// A ping: the sidecar answers it, whatever the client does. Holds its raw id.
    Ping(String),
    /// Not for this client, with the reason.
    Drop(&'static str),
}

impl Ids {
    /// The ids of a request whose id upstream is to be `upstream_id`.
    pub(super) fn new(id: &Token<'_>, token: Option<&Token<'_>>, upstream_id: u64) -> Self {
        Self {
            client: id.raw().into(),
            token: token.map(|token| token.raw().into()),
            upstream: upstream_id.to_string().into(),
        }
    }

    /// The client's request `text`, for the upstream.
    pub(super) fn outbound(&self, text: &str, id: &Token<'_>, token: Option<&Token<'_>>) -> String {
        match token {
            Some(token) => splice(text, [(id.span(), &self.upstream), (token.span(), &self.upstream)]),
            None => splice(text, [(id.span(), &self.upstream)]),
        }
    }

    /// The upstream's message `text`.
    pub(super) fn inbound(&self, text: String) -> Inbound {
        match Frame::parse(&text) {
            Err(_) => Inbound::Drop("it is not a JSON-RPC message"),
            Ok(Frame::Response { id: Some(id), outcome }) if *id.raw() == *self.upstream => {
                let is_result = matches!(outcome, Outcome::Result(_));
                Inbound::Last { text: splice(&text, [(id.span(), &self.client)]), is_result }
            }
            Ok(Frame::Response { id: Some(_), .. }) => Inbound::Drop("it answers another request"),
            // An error about a request that the upstream could not read: on this answer it can only be this one.
            Ok(Frame::Response { id: None, outcome }) => match outcome {
                Outcome::Error(error) => {
                    let text = format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, self.client);
                    Inbound::Last { text, is_result: false }
                }
                Outcome::Result(_) => Inbound::Drop("it is a result without an id"),
            },
            Ok(Frame::Request { id, method, .. }) if method == method::PING => {
                Inbound::Ping(id.raw().to_owned())
            }
            Ok(Frame::Request { .. }) => Inbound::Ask(text),
            Ok(Frame::Notification { method, subject }) if method == method::PROGRESS => {
                match (subject, &self.token) {
                    (Some(subject), Some(token)) if *subject.raw() == *self.upstream => {
                        Inbound::Forward { text: splice(&text, [(subject.span(), token)]), alive: true }
                    }
                    _ => Inbound::Drop("it is progress of another request"),
                }
            }
            Ok(Frame::Notification { method, .. }) => match method.as_ref() {
                method::CANCELLED => Inbound::Withdraw(text),
                method::RESOURCE_UPDATED => Inbound::News(text),
                changed if changed.ends_with(method::LIST_CHANGED) => Inbound::News(text),
                _ => Inbound::Forward { text, alive: false },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &str = r#"{"id": "a" ,"jsonrpc":"2.0","method":"tools/call","x":1.0,"params":{"_meta":{"progressToken":"t"}}}"#;

    fn ids() -> Ids {
        Ids { client: "\"a\"".into(), token: Some("\"t\"".into()), upstream: "7".into() }
    }

    #[test]
    fn a_request_goes_up_under_the_upstream_id_as_id_and_token() {
        let Ok(Frame::Request { id, progress_token, .. }) = Frame::parse(REQUEST) else { panic!() };
        let ids = Ids::new(&id, progress_token.as_ref(), 7);
        assert_eq!(
            ids.outbound(REQUEST, &id, progress_token.as_ref()),
            r#"{"id": 7 ,"jsonrpc":"2.0","method":"tools/call","x":1.0,"params":{"_meta":{"progressToken":7}}}"#
        );
    }

    #[test]
    fn a_result_and_progress_come_back_under_the_clients_own() {
        let result = r#"{"jsonrpc":"2.0","id":7,"result":{"content":[] , "x":1.0}}"#;
        let expected = r#"{"jsonrpc":"2.0","id":"a","result":{"content":[] , "x":1.0}}"#;
        let last = Inbound::Last { text: expected.into(), is_result: true };
        assert_eq!(ids().inbound(result.into()), last);
        let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1}}"#;
        let text = progress.replace(":7", ":\"t\"");
        assert_eq!(ids().inbound(progress.into()), Inbound::Forward { text, alive: true });
    }

    #[test]
    fn messages_of_other_calls_are_dropped() {
        for text in [
            r#"{"jsonrpc":"2.0","id":8,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"7","result":{}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":8,"progress":1}}"#,
            "nonsense",
        ] {
            assert!(matches!(ids().inbound(text.into()), Inbound::Drop(_)), "{text}");
        }
        let silent = Ids { token: None, ..ids() };
        let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7}}"#;
        assert!(matches!(silent.inbound(progress.into()), Inbound::Drop(_)));
    }

    #[test]
    fn what_the_server_says_of_its_own_is_told_apart() {
        let ask = r#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{"_meta":{"progressToken":7}}}"#;
        assert_eq!(ids().inbound(ask.into()), Inbound::Ask(ask.into()));
        let cancelled = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}"#;
        assert_eq!(ids().inbound(cancelled.into()), Inbound::Withdraw(cancelled.into()));
        for method in
            ["tools/list_changed", "prompts/list_changed", "resources/updated", "vendor/list_changed"]
        {
            let news = format!(r#"{{"jsonrpc":"2.0","method":"notifications/{method}"}}"#);
            assert_eq!(ids().inbound(news.clone()), Inbound::News(news));
        }
        let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#;
        assert_eq!(ids().inbound(log.into()), Inbound::Forward { text: log.into(), alive: false });
        let ping = r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#;
        assert_eq!(ids().inbound(ping.into()), Inbound::Ping("\"p\"".into()));
    }

    #[test]
    fn an_error_without_id_ends_the_call() {
        let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}"#;
        let expected = r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32700,"message":"m"}}"#;
        let last = Inbound::Last { text: expected.into(), is_result: false };
        assert_eq!(ids().inbound(error.into()), last);
    }
}
