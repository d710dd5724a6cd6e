//! JSON-RPC 2.0 as text: what came in is kept raw, what goes out is written by hand.

use serde::Deserialize;
use serde_json::value::RawValue;

/// The body was not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The body was not one JSON-RPC message.
pub const INVALID_REQUEST: i64 = -32600;
/// The method does not exist.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters do not fit the method.
pub const INVALID_PARAMS: i64 = -32602;
/// A request without a session.
pub const NO_SESSION: i64 = -32000;
/// A request with a session that does not exist (any more).
pub const SESSION_NOT_FOUND: i64 = -32001;
/// The request was cancelled by its caller.
pub const CANCELLED: i64 = -32800;

/// One message as it came.
#[derive(Debug, Default, Deserialize)]
pub struct Message {
    /// The id, as raw JSON; `null` counts as absent.
    pub id: Option<Box<RawValue>>,
    /// The method of a request or notification.
    pub method: Option<String>,
    /// The parameters of a request or notification.
    pub params: Option<Box<RawValue>>,
    /// The result of a response.
    pub result: Option<Box<RawValue>>,
    /// The error of a response.
    pub error: Option<Box<RawValue>>,
}

impl Message {
    /// Reads one message; the error says which code it deserves.
    pub fn parse(body: &[u8]) -> Result<Self, RpcError> {
        let raw: &RawValue = serde_json::from_slice(body)
            .map_err(|error| RpcError::new(PARSE_ERROR, format!("Parse error: {error}")))?;
        serde_json::from_str(raw.get())
            .map_err(|error| RpcError::new(INVALID_REQUEST, format!("Invalid request: {error}")))
    }

    /// The parameters as a value; absent ones are `null`.
    pub fn params(&self) -> serde_json::Value {
        let raw = self.params.as_deref().map_or("null", RawValue::get);
        serde_json::from_str(raw).unwrap_or_default()
    }
}

/// An error to answer with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcError {
    /// JSON-RPC code.
    pub code: i64,
    /// Text for people.
    pub message: String,
}

impl RpcError {
    /// An error with this code and text.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The whole message that answers request `id`.
    pub fn text(&self, id: Option<&RawValue>) -> String {
        let id = id.map_or("null", RawValue::get);
        let message = serde_json::Value::from(self.message.as_str());
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{},"message":{message}}}}}"#, self.code)
    }
}

/// The whole message that answers request `id` with the raw JSON `result`.
pub fn result_text(id: &RawValue, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, id.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stay_as_they_were_written() {
        let message = Message::parse(br#"{"jsonrpc":"2.0","id":1.50e2,"method":"ping"}"#).unwrap();
        let id = message.id.unwrap();
        assert_eq!(result_text(&id, "{}"), r#"{"jsonrpc":"2.0","id":1.50e2,"result":{}}"#);
    }

    #[test]
    fn broken_json_and_batches_differ() {
        assert_eq!(Message::parse(b"{").unwrap_err().code, PARSE_ERROR);
        assert_eq!(Message::parse(b"[1]").unwrap_err().code, INVALID_REQUEST);
    }

    #[test]
    fn errors_quote_their_text() {
        let text = RpcError::new(-1, "say \"no\"\n").text(None);
        assert_eq!(text, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"say \"no\"\n"}}"#);
    }
}
