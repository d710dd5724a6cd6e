//! Trouble with an upstream, in words that name server and step and hold no secret.

use super::body::BodyError;
use super::dial::DialError;
use super::status::failure_of;
use super::transport::SendError;
use berth_mcp::frame::{Frame, Outcome as Answer};
use berth_wire::{Failure, Outcome, Withheld};
use http::StatusCode;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Longest message, in bytes.
const MESSAGE_LIMIT: usize = 256;

/// Why the upstream could not be reached or refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its kind.
    pub failure: Failure,
    /// Names server and step; no secret; at most 256 bytes.
    pub message: String,
    /// Raw JSON of the upstream's own JSON-RPC error, for the client.
    pub rpc_error: Option<Arc<str>>,
    /// Whether an upstream session may have been left behind: `Unconfirmed` if one may exist that nobody can name.
    pub leftover: Outcome,
    /// The status that it was, if it was one.
    pub status: Option<StatusCode>,
    /// How long not to ask again: as the upstream said, or until the next attempt to connect.
    pub retry_after: Option<Duration>,
}

impl Trouble {
    /// The trouble of a session whose credential cannot be had; the text is the operator's own.
    pub(crate) fn withheld(withheld: &Withheld) -> Self {
        let message = shorten(withheld.message.clone());
        Self {
            failure: withheld.reason,
            message,
            rpc_error: None,
            leftover: Outcome::NotNeeded,
            status: None,
            retry_after: None,
        }
    }

    /// Whether it would meet every session of the server. An error that the upstream answers by JSON-RPC, or by a status that blames
    /// the request, is about what this client sent, one about a credential is about this session.
    pub(crate) fn is_the_servers(&self) -> bool {
        match self.failure {
            Failure::UpstreamUnreachable
            | Failure::InitializeTimeout
            | Failure::TLSUntrusted
            | Failure::RateLimited => true,
            Failure::ProtocolError => {
                let blames =
                    |status: StatusCode| status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT;
                self.rpc_error.is_none() && !self.status.is_some_and(blames)
            }
            Failure::Unauthorized
            | Failure::InvalidSpec
            | Failure::RefNotFound
            | Failure::RefNotPermitted
            | Failure::InvalidCredential => false,
        }
    }

    /// Whether a call that met it says more of the session than that the call failed. That a credential is withheld the session
    /// knows without calls.
    pub(crate) fn outlasts_a_call(&self) -> bool {
        // What one tool broke on, or does not know, servers that are well answer so too.
        let is_one_calls =
            |status| matches!(status, StatusCode::INTERNAL_SERVER_ERROR | StatusCode::NOT_IMPLEMENTED);
        let is_refused = self.failure == Failure::Unauthorized;
        is_refused || self.is_the_servers() && !self.status.is_some_and(is_one_calls)
    }
}

/// What was being done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Step {
    /// The host's name was being resolved.
    #[default]
    Resolve,
    /// A socket was being opened.
    Connect,
    /// TLS was being negotiated.
    Tls,
    /// `initialize` was under way.
    Initialize,
    /// `notifications/initialized` was under way.
    Initialized,
    /// A client's message was under way.
    Request,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Tls => "TLS",
            Self::Initialize => "initialize",
            Self::Initialized => "notifications/initialized",
            Self::Request => "request",
        })
    }
}

/// Where trouble arose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'a> {
    /// Name of the `McpServer`.
    pub server: &'a str,
    /// What was being done.
    pub step: Step,
}

impl Site<'_> {
    pub(crate) fn trouble(self, failure: Failure, text: impl fmt::Display) -> Trouble {
        let message = shorten(format!("server {:?}, {}: {text}", self.server, self.step));
        Trouble {
            failure,
            message,
            rpc_error: None,
            leftover: Outcome::NotNeeded,
            status: None,
            retry_after: None,
        }
    }

    /// Trouble after which nobody knows what the upstream did. If it was `initialize`, a session may have been opened whose id
    /// never came.
    pub(crate) fn lost(self, failure: Failure, text: impl fmt::Display) -> Trouble {
        let leftover = if self.step == Step::Initialize { Outcome::Unconfirmed } else { Outcome::NotNeeded };
        Trouble { leftover, ..self.trouble(failure, text) }
    }

    pub(crate) fn dial(self, error: &DialError) -> Trouble {
        let failure = match error {
            DialError::Untrusted(_) => Failure::TLSUntrusted,
            DialError::Redirected(_) => Failure::ProtocolError,
            DialError::Resolve(_)
            | DialError::Connect { .. }
            | DialError::Proxy { .. }
            | DialError::Tls(_) => Failure::UpstreamUnreachable,
        };
        self.trouble(failure, error)
    }

    pub(crate) fn send(self, error: &SendError) -> Trouble {
        match error {
            SendError::NotSent(error) => self.dial(error),
            SendError::Lost(_) => self.lost(Failure::UpstreamUnreachable, error),
            SendError::HeadTooLarge => self.lost(Failure::ProtocolError, error),
            SendError::Withheld(withheld) => Trouble::withheld(withheld),
        }
    }

    pub(crate) fn body(self, error: &BodyError) -> Trouble {
        match error {
            BodyError::Lost(error) => self.send(error),
            BodyError::TooLarge(_) | BodyError::NotText | BodyError::NoRoom(_) => {
                self.trouble(Failure::ProtocolError, error)
            }
        }
    }

    pub(crate) fn status(self, status: StatusCode) -> Trouble {
        let (failure, remedy) = failure_of(status);
        let trouble = self.trouble(failure, format_args!("the upstream answered {status}; {remedy}"));
        Trouble { status: Some(status), ..trouble }
    }

    /// A status with its body. A JSON-RPC error in it is kept for the client, unless the trouble is of HTTP itself.
    pub(crate) fn refusal(self, status: StatusCode, body: &str) -> Trouble {
        let mut trouble = self.status(status);
        if let (Failure::ProtocolError, Ok(Frame::Response { outcome: Answer::Error(error), .. })) =
            (trouble.failure, Frame::parse(body))
        {
            trouble.rpc_error = Some(error.into());
        }
        trouble
    }
}

/// Cuts at a character's boundary.
fn shorten(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MESSAGE_LIMIT));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_server_and_step() {
        let trouble = Site { server: "github", step: Step::Initialize }.status(StatusCode::UNAUTHORIZED);
        assert_eq!(trouble.failure, Failure::Unauthorized);
        assert!(
            trouble.message.starts_with("server \"github\", initialize: the upstream answered 401"),
            "{trouble:?}"
        );
    }

    #[test]
    fn only_what_was_sent_and_lost_may_leave_a_session_behind() {
        let leftover = |step, error: SendError| Site { server: "s", step }.send(&error).leftover;
        let lost = || SendError::Lost("reset".into());
        let not_sent = SendError::NotSent(DialError::Resolve("no such name".into()));
        assert_eq!(leftover(Step::Initialize, lost()), Outcome::Unconfirmed);
        assert_eq!(leftover(Step::Initialize, not_sent), Outcome::NotNeeded);
        // By then the id is known, if there is one.
        assert_eq!(leftover(Step::Initialized, lost()), Outcome::NotNeeded);
    }

    #[test]
    fn only_trouble_that_other_calls_meet_outlasts_a_call() {
        let site = Site { server: "s", step: Step::Request };
        for (status, outlasts) in [
            (400, false),
            (401, true),
            (403, true),
            (413, false),
            (429, true),
            (500, false),
            (501, false),
            (502, true),
            (503, true),
            (504, true),
        ] {
            let trouble = site.refusal(StatusCode::from_u16(status).unwrap(), "");
            assert_eq!(trouble.outlasts_a_call(), outlasts, "{status}");
        }
        let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}"#;
        assert!(!site.refusal(StatusCode::BAD_REQUEST, error).outlasts_a_call());
        assert!(site.send(&SendError::Lost("reset".into())).outlasts_a_call());
        assert!(site.trouble(Failure::ProtocolError, "no MCP").outlasts_a_call());
        assert!(!site.trouble(Failure::RefNotFound, "withheld").outlasts_a_call(), "the session knows");
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let trouble =
            Site { server: "s", step: Step::Connect }.trouble(Failure::ProtocolError, "é".repeat(300));
        assert!(trouble.message.len() <= MESSAGE_LIMIT && trouble.message.ends_with('é'));
    }
}
