//! The members that are looked at, borrowed from the text. Unknown members are skipped, doubled known ones refused.

use super::{FrameError, MAX_TOKEN, Token};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Members of a JSON-RPC message.
#[derive(Deserialize)]
pub(super) struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) error: Option<&'a RawValue>,
}

impl<'a> Envelope<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, FrameError> {
        // The derived reader would take an array as the members in order, so the first byte decides.
        match text.trim_start_matches([' ', '\t', '\r', '\n']).as_bytes().first() {
            Some(b'[') => return Err(FrameError::Batch),
            Some(b'{') | None => {}
            Some(_) => {
                serde_json::from_str::<&RawValue>(text).map_err(not_json_rpc)?;
                return Err(FrameError::NotAnObject);
            }
        }
        let envelope: Self = serde_json::from_str(text).map_err(not_json_rpc)?;
        let version: Option<Cow<'_, str>> =
            envelope.jsonrpc.and_then(|raw| serde_json::from_str(raw.get()).ok());
        if version.as_deref() == Some("2.0") { Ok(envelope) } else { Err(FrameError::Version) }
    }
}

/// What is read of the parameters of one kind of message.
pub(super) trait Params<'a>: Default + Deserialize<'a> {
    /// Reads parameters if they are an object; whatever else they are, it is for the receiver to refuse.
    fn read(params: Option<&'a RawValue>) -> Result<Self, FrameError> {
        match params {
            Some(raw) if raw.get().starts_with('{') => serde_json::from_str(raw.get()).map_err(not_json_rpc),
            _ => Ok(Self::default()),
        }
    }
}

/// Parameters of a request.
#[derive(Default)]
pub(super) struct RequestParams<'a> {
    pub(super) progress_token: Option<&'a RawValue>,
}

impl<'a> Params<'a> for RequestParams<'a> {}

impl<'de: 'a, 'a> Deserialize<'de> for RequestParams<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Outer<'a> {
            #[serde(borrow, default, rename = "_meta", deserialize_with = "present")]
            meta: Option<&'a RawValue>,
        }
        let outer = Outer::deserialize(deserializer)?;
        let meta = Progress::read(outer.meta).map_err(serde::de::Error::custom)?;
        Ok(Self { progress_token: meta.progress_token })
    }
}

/// Parameters of `notifications/cancelled`.
#[derive(Default, Deserialize)]
pub(super) struct Cancelled<'a> {
    #[serde(borrow, default, rename = "requestId", deserialize_with = "present")]
    pub(super) request_id: Option<&'a RawValue>,
}

impl<'a> Params<'a> for Cancelled<'a> {}

/// Parameters of `notifications/progress`, and `_meta` of a request.
#[derive(Default, Deserialize)]
pub(super) struct Progress<'a> {
    #[serde(borrow, default, rename = "progressToken", deserialize_with = "present")]
    pub(super) progress_token: Option<&'a RawValue>,
}

impl<'a> Params<'a> for Progress<'a> {}

/// Tells `null` from absent: a member that is there is `Some`, whatever it holds.
pub(super) fn present<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

pub(super) fn read_id<'a>(
    text: &'a str,
    raw: &'a RawValue,
    member: &'static str,
) -> Result<Token<'a>, FrameError> {
    let token = Token::within(text, raw.get()).ok_or(FrameError::TokenType(member))?;
    if token.raw().len() > MAX_TOKEN { Err(FrameError::TokenTooLong(member)) } else { Ok(token) }
}

pub(super) fn read_method(raw: &RawValue) -> Result<Cow<'_, str>, FrameError> {
    // An escaped name has no text of its own to borrow.
    serde_json::from_str::<&str>(raw.get())
        .map(Cow::Borrowed)
        .or_else(|_| serde_json::from_str::<String>(raw.get()).map(Cow::Owned))
        .map_err(|_| FrameError::MethodType)
}

fn not_json_rpc(error: serde_json::Error) -> FrameError {
    match error.classify() {
        Category::Data => FrameError::NotJsonRpc(error),
        Category::Io | Category::Syntax | Category::Eof => FrameError::NotJson(error),
    }
}
