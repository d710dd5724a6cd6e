//! Names and values of HTTP headers, lower case as HTTP libraries want them.

/// Names the session of a legacy client or of a legacy upstream (revisions 2025-03-26 to 2025-11-25).
pub const MCP_SESSION_ID: &str = "mcp-session-id";
/// The negotiated revision; on each request after `initialize` since 2025-06-18.
pub const MCP_PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// The last event seen, when a client resumes a stream.
pub const LAST_EVENT_ID: &str = "last-event-id";
/// The JSON-RPC method again; modern era (2026-07-28).
pub const MCP_METHOD: &str = "mcp-method";
/// The name of the tool, resource or prompt again; modern era (2026-07-28).
pub const MCP_NAME: &str = "mcp-name";

/// Media type of one JSON-RPC message.
pub const JSON: &str = "application/json";
/// Media type of a stream of them.
pub const EVENT_STREAM: &str = "text/event-stream";
/// What a client must accept on each POST.
pub const ACCEPT_BOTH: &str = "application/json, text/event-stream";

/// Whether a value names `media_type`, whatever its case and parameters.
pub fn is_media_type(value: impl AsRef<[u8]>, media_type: &str) -> bool {
    let essence = value.as_ref().split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(media_type.as_bytes())
}

/// Whether a `Content-Type`, if there is one, is that of one JSON-RPC message.
pub fn is_json(content_type: Option<impl AsRef<[u8]>>) -> bool {
    content_type.is_some_and(|value| is_media_type(value, JSON))
}

/// Whether a `Content-Type`, if there is one, is that of a stream of them.
pub fn is_event_stream(content_type: Option<impl AsRef<[u8]>>) -> bool {
    content_type.is_some_and(|value| is_media_type(value, EVENT_STREAM))
}

/// Whether a client that sends these values of `Accept` takes an event stream. Who does not say takes what it gets.
pub fn accepts_stream<'a>(accept: impl IntoIterator<Item = &'a [u8]>) -> bool {
    let takes =
        |range: &[u8]| ["*/*", "text/*", EVENT_STREAM].iter().any(|taken| is_media_type(range, taken));
    let mut values = accept.into_iter().peekable();
    values.peek().is_none() || values.any(|value| value.split(|byte| *byte == b',').any(takes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_and_case_of_a_media_type_do_not_matter() {
        assert!(is_event_stream(Some("Text/Event-Stream; charset=utf-8")));
        assert!(is_json(Some("application/json")));
        for other in ["application/jsonl", "", "text/plain"] {
            assert!(!is_json(Some(other)) && !is_event_stream(Some(other)), "{other}");
        }
        assert!(!is_json(None::<&str>) && !is_event_stream(None::<&str>));
    }

    #[test]
    fn who_takes_an_event_stream_says_so_or_says_nothing() {
        let takes = |values: &[&'static str]| accepts_stream(values.iter().map(|value| value.as_bytes()));
        let both = &["application/json", "Text/Event-Stream; q=0.9"];
        for values in [&[][..], &[ACCEPT_BOTH], &["*/*;q=0.1"], &["TEXT/*"], both] {
            assert!(takes(values), "{values:?}");
        }
        for values in [&["application/json"][..], &[""], &["text/html, application/*"]] {
            assert!(!takes(values), "{values:?}");
        }
    }
}
