//! JSON-RPC error codes and bodies.

use serde::Serialize;
use serde_json::value::RawValue;

/// The text is not JSON.
pub const PARSE_ERROR: i32 = -32700;
/// The JSON is not a JSON-RPC message.
pub const INVALID_REQUEST: i32 = -32600;
/// The method is unknown.
pub const METHOD_NOT_FOUND: i32 = -32601;
/// Parameters are wrong.
pub const INVALID_PARAMS: i32 = -32602;
/// The party that answers has a fault of its own.
pub const INTERNAL: i32 = -32603;
/// A request that needs a session came without one. Dual-era clients then fall back to `initialize`.
pub const NOT_INITIALIZED: i32 = -32000;
/// The session is unknown or over. Legacy clients then open a new one.
pub const SESSION_UNKNOWN: i32 = -32001;

// Codes of Berth's own follow. They keep clear of -32020 to -32022 and -32042, which MCP uses.

/// The upstream could not be reached or refused; the request was not carried out. `data.reason` says why.
pub const UPSTREAM_TROUBLE: i32 = -32050;
/// The request was sent, and the connection was lost or the answer does not tell whether it was carried out; it was not sent again.
pub const OUTCOME_UNKNOWN: i32 = -32051;
/// The session ended while the request ran; it was cancelled.
pub const CANCELLED: i32 = -32052;
/// The request took longer than the server's timeouts allow; it was cancelled.
pub const TIMED_OUT: i32 = -32053;
/// The message is larger than the limit, which the text states.
pub const TOO_LARGE: i32 = -32054;
/// Too much is asked at once; the text names the limit.
pub const LIMIT_REACHED: i32 = -32055;

/// The reason in `data.reason` of an error of `code` that names no other.
fn usual_reason(code: i32) -> Option<&'static str> {
    match code {
        OUTCOME_UNKNOWN => Some("OutcomeUnknown"),
        CANCELLED => Some("Cancelled"),
        TIMED_OUT => Some("TimedOut"),
        TOO_LARGE => Some("TooLarge"),
        LIMIT_REACHED => Some("Busy"),
        _ => None,
    }
}

/// A JSON-RPC error to be rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorBody {
    code: i32,
    message: String,
    server: Option<String>,
    reason: Option<&'static str>,
    retry_after_millis: Option<u64>,
}

impl ErrorBody {
    /// An error of `code`; `message` names the thing and the remedy.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), server: None, reason: None, retry_after_millis: None }
    }

    /// Names the `McpServer` in `data.server`.
    #[must_use]
    pub fn server(mut self, name: impl Into<String>) -> Self {
        self.server = Some(name.into());
        self
    }

    /// Names the reason in `data.reason`; one of the API's reasons. Codes of Berth's own that have one meaning need none.
    #[must_use]
    pub fn reason(mut self, reason: &'static str) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Says in `data.retryAfterMillis` how long not to ask again.
    #[must_use]
    pub fn retry_after_millis(mut self, millis: u64) -> Self {
        self.retry_after_millis = Some(millis);
        self
    }

    /// The error's code.
    pub fn code(&self) -> i32 {
        self.code
    }

    /// The whole message. `id` is the raw JSON of the request's id; none, or what is not JSON, becomes `null`.
    pub fn render(&self, id: Option<&str>) -> String {
        let id = id.and_then(|raw| serde_json::from_str::<&RawValue>(raw).ok()).unwrap_or(RawValue::NULL);
        let data = Data {
            server: self.server.as_deref(),
            reason: self.reason.or_else(|| usual_reason(self.code)),
            retry_after_millis: self.retry_after_millis,
        };
        let data = (data != Data::default()).then_some(data);
        let error = Detail { code: self.code, message: &self.message, data };
        serde_json::to_string(&Message { jsonrpc: "2.0", id, error }).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct Message<'a> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    error: Detail<'a>,
}

#[derive(Serialize)]
struct Detail<'a> {
    code: i32,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Data<'a>>,
}

#[derive(Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Data<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_millis: Option<u64>,
}

/// An answer with `result`, a raw JSON value, to the request whose raw id is `id`.
pub fn render_result(id: &str, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_carries_the_raw_id_and_its_data() {
        let body =
            ErrorBody::new(UPSTREAM_TROUBLE, "server \"a\" refused").server("a").reason("Unauthorized");
        assert_eq!(
            body.render(Some("1.0")),
            r#"{"jsonrpc":"2.0","id":1.0,"error":{"code":-32050,"message":"server \"a\" refused","data":{"server":"a","reason":"Unauthorized"}}}"#
        );
    }

    #[test]
    fn an_error_says_when_to_ask_again() {
        let body = ErrorBody::new(UPSTREAM_TROUBLE, "down").reason("RateLimited").retry_after_millis(1_500);
        assert_eq!(
            body.render(Some("1")),
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32050,"message":"down","data":{"reason":"RateLimited","retryAfterMillis":1500}}}"#
        );
    }

    #[test]
    fn an_error_of_one_meaning_says_its_reason_itself() {
        let told = |body: ErrorBody| {
            let read: serde_json::Value = serde_json::from_str(&body.render(None)).unwrap();
            read["error"]["data"]["reason"].clone()
        };
        for (code, reason) in [
            (OUTCOME_UNKNOWN, "OutcomeUnknown"),
            (CANCELLED, "Cancelled"),
            (TIMED_OUT, "TimedOut"),
            (TOO_LARGE, "TooLarge"),
            (LIMIT_REACHED, "Busy"),
        ] {
            assert_eq!(told(ErrorBody::new(code, "x").server("a")), reason);
            assert_eq!(told(ErrorBody::new(code, "x").reason("Other")), "Other");
        }
        assert!(told(ErrorBody::new(SESSION_UNKNOWN, "x").server("a")).is_null());
    }

    #[test]
    fn an_error_without_id_or_data_leaves_them_out() {
        let expected = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not JSON"}}"#;
        assert_eq!(ErrorBody::new(PARSE_ERROR, "not JSON").render(None), expected);
        assert_eq!(ErrorBody::new(PARSE_ERROR, "not JSON").render(Some("not json")), expected);
    }
}
