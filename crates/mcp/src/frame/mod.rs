//! Raw framing: which kind of JSON-RPC message a text is, and where in it the members are that a relay must map.
//!
//! A relay that reads messages into types and writes them again loses unknown fields, their order and the spelling of
//! numbers. So the text itself is kept; [`Frame::parse`] only finds byte spans in it and [`splice`] replaces them.

mod envelope;
mod mark;
mod splice;
mod token;

pub use mark::{REINITIALIZED, mark_reinitialized};
pub use splice::splice;
pub use token::{MAX_TOKEN, Token, TokenKey};

use crate::{error, method};
use envelope::{Cancelled, Envelope, Params, Progress, RequestParams, read_id, read_method};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// One JSON-RPC message of a text that is kept beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Wants an answer.
    Request {
        /// Its id.
        id: Token<'a>,
        /// Its method.
        method: Cow<'a, str>,
        /// Raw JSON of its parameters.
        params: Option<&'a str>,
        /// `params._meta.progressToken`: the sender wants progress under this token.
        progress_token: Option<Token<'a>>,
    },
    /// Wants none.
    Notification {
        /// Its method.
        method: Cow<'a, str>,
        /// The request that it is about: `params.requestId` of `notifications/cancelled`, `params.progressToken` of
        /// `notifications/progress`, else none.
        subject: Option<Token<'a>>,
    },
    /// Answers a request.
    Response {
        /// Id of that request; none only in an error about a request that could not be read.
        id: Option<Token<'a>>,
        /// What it says.
        outcome: Outcome<'a>,
    },
}

/// What a response says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// Raw JSON of `result`.
    Result(&'a str),
    /// Raw JSON of `error`.
    Error(&'a str),
}

/// Why a text is not one JSON-RPC message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Not JSON at all.
    #[error("the message is not JSON: {0}")]
    NotJson(serde_json::Error),
    /// JSON, but a member is missing, doubled or of the wrong type.
    #[error("the message is not JSON-RPC: {0}")]
    NotJsonRpc(serde_json::Error),
    /// An array of messages.
    #[error("batches are not supported: send one message a request")]
    Batch,
    /// Neither object nor array.
    #[error("the message is not a JSON object")]
    NotAnObject,
    /// `jsonrpc` is missing or another version.
    #[error("member \"jsonrpc\" must be \"2.0\"")]
    Version,
    /// An id or token of another type.
    #[error("member {0:?} must be a string or a number")]
    TokenType(&'static str),
    /// An id or token longer than [`MAX_TOKEN`].
    #[error("member {0:?} must have at most {MAX_TOKEN} bytes")]
    TokenTooLong(&'static str),
    /// `method` is not a string.
    #[error("member \"method\" must be a string")]
    MethodType,
    /// Members that do not belong together.
    #[error("the message must have a \"method\", or an \"id\" and one of \"result\" and \"error\"")]
    Shape,
}

impl FrameError {
    /// The JSON-RPC code to answer with.
    pub fn code(&self) -> i32 {
        match self {
            Self::NotJson(_) => error::PARSE_ERROR,
            _ => error::INVALID_REQUEST,
        }
    }
}

impl<'a> Frame<'a> {
    /// Reads `text`, which must be exactly one message.
    pub fn parse(text: &'a str) -> Result<Self, FrameError> {
        let mut envelope = Envelope::parse(text)?;
        // Libraries of older days send the other member too, as null. It is passed on; clients differ in whether they take it.
        if let (Some(result), Some(error)) = (envelope.result, envelope.error) {
            match (result.get(), error.get()) {
                (_, "null") => envelope.error = None,
                ("null", _) => envelope.result = None,
                _ => {}
            }
        }
        match (envelope.method, envelope.id, envelope.result, envelope.error) {
            (Some(method), Some(id), None, None) => request(text, method, id, envelope.params),
            (Some(method), None, None, None) => notification(text, method, envelope.params),
            (None, Some(id), Some(result), None) => {
                let id = read_id(text, id, "id")?;
                Ok(Self::Response { id: Some(id), outcome: Outcome::Result(result.get()) })
            }
            (None, id, None, Some(error)) => {
                let id = id.filter(|id| id.get() != "null").map(|id| read_id(text, id, "id")).transpose()?;
                Ok(Self::Response { id, outcome: Outcome::Error(error.get()) })
            }
            _ => Err(FrameError::Shape),
        }
    }
}

fn request<'a>(
    text: &'a str,
    method: &'a RawValue,
    id: &'a RawValue,
    params: Option<&'a RawValue>,
) -> Result<Frame<'a>, FrameError> {
    let RequestParams { progress_token } =
        RequestParams::read(params.filter(|raw| may_have_meta(raw.get())))?;
    Ok(Frame::Request {
        id: read_id(text, id, "id")?,
        method: read_method(method)?,
        params: params.map(RawValue::get),
        progress_token: progress_token.map(|token| read_id(text, token, "progressToken")).transpose()?,
    })
}

/// Whether parameters may have a member `_meta`, however it is spelled. Nearly all have none, and need not be read a second time.
fn may_have_meta(params: &str) -> bool {
    params.contains("_meta") || params.contains("\\u")
}

fn notification<'a>(
    text: &'a str,
    method: &'a RawValue,
    params: Option<&'a RawValue>,
) -> Result<Frame<'a>, FrameError> {
    let method = read_method(method)?;
    let subject = match method.as_ref() {
        method::CANCELLED => Cancelled::read(params)?.request_id.map(|id| read_id(text, id, "requestId")),
        method::PROGRESS => {
            Progress::read(params)?.progress_token.map(|id| read_id(text, id, "progressToken"))
        }
        _ => None,
    };
    Ok(Frame::Notification { subject: subject.transpose()?, method })
}

#[cfg(test)]
mod tests;
