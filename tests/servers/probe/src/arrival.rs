//! One request to `/mcp` as it arrived, before anything is done about it.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    Probe, digest,
    ports::Port,
    rpc::{Message, RpcError},
    session::Session,
};

/// What a request's session header led to.
#[derive(Clone, Debug)]
pub enum Claim {
    /// It carried none.
    None,
    /// No such session lives.
    Unknown(String),
    /// A live session.
    Live(Arc<Session>),
}

impl Claim {
    /// The id that the request carried.
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Unknown(id) => Some(id),
            Self::Live(session) => Some(&session.id),
        }
    }
}

/// One request to `/mcp`.
#[derive(Debug)]
pub struct Arrival {
    /// HTTP method.
    pub verb: Method,
    /// Message of a POST.
    pub message: Option<Result<Message, RpcError>>,
    /// The session it belongs to.
    pub claim: Claim,
    /// Digest of its credential.
    pub authorization: String,
    /// Its headers, safe to show.
    pub headers: Vec<(String, String)>,
    /// Its `MCP-Protocol-Version`.
    pub version: Option<String>,
    /// Its `Last-Event-ID`.
    pub last_event_id: Option<String>,
    /// The body, byte for byte.
    pub body: Bytes,
    /// Where it came to.
    pub place: Place,
}

/// Where a request came to.
#[derive(Clone, Debug)]
pub struct Place {
    /// The port.
    pub port: Port,
    /// The path.
    pub path: String,
    /// Its Host.
    pub host: String,
}

impl Arrival {
    /// Puts together what arrived.
    pub fn new(probe: &Probe, place: Place, verb: Method, headers: &HeaderMap, body: Bytes) -> Self {
        let text =
            |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let claim = text("mcp-session-id").map_or(Claim::None, |id| {
            probe.sessions.get(&id).map_or_else(|| Claim::Unknown(id), Claim::Live)
        });
        Self {
            message: (verb == Method::POST).then(|| Message::parse(&body)),
            verb,
            claim,
            authorization: digest::authorization(headers),
            headers: digest::shown_headers(headers, &probe.settings.show_headers),
            version: text("mcp-protocol-version"),
            last_event_id: text("last-event-id"),
            body,
            place,
        }
    }

    fn parsed(&self) -> Option<&Message> {
        self.message.as_ref()?.as_ref().ok()
    }

    /// The name under which the books have it: the JSON-RPC method, `response`, `invalid`, or the
    /// HTTP method if that is not POST.
    pub fn name(&self) -> &str {
        match (&self.message, self.parsed()) {
            (None, _) => self.verb.as_str(),
            (_, Some(Message { method: Some(method), .. })) => method,
            (_, Some(Message { id: Some(_), .. })) => "response",
            _ => "invalid",
        }
    }

    /// The raw JSON-RPC id.
    pub fn id(&self) -> Option<&RawValue> {
        self.parsed()?.id.as_deref()
    }

    /// The raw parameters.
    pub fn params(&self) -> Option<&RawValue> {
        self.parsed()?.params.as_deref()
    }

    /// The raw progress token.
    pub fn progress_token(&self) -> Option<Box<RawValue>> {
        #[derive(Deserialize)]
        struct Params {
            #[serde(rename = "_meta")]
            meta: Meta,
        }
        #[derive(Deserialize)]
        struct Meta {
            #[serde(rename = "progressToken")]
            progress_token: Box<RawValue>,
        }
        let params: Params = serde_json::from_str(self.params()?.get()).ok()?;
        Some(params.meta.progress_token)
    }

    /// The tool of a `tools/call`.
    pub fn tool(&self) -> Option<String> {
        let message = self.parsed().filter(|_| self.name() == "tools/call")?;
        message.params().get("name")?.as_str().map(str::to_owned)
    }
}
