//! The tools.

mod messages;
mod raw;

use std::{sync::Arc, time::Duration};

use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time};
use tokio_util::sync::CancellationToken;

use self::messages::Via;
use crate::{
    Probe, mcp,
    methods::Asked,
    rpc::{CANCELLED, INVALID_PARAMS, RpcError, SESSION_NOT_FOUND, result_text},
    session::{RunningCall, Session},
    sse,
};

/// Messages that may wait for a slow reader of a call's stream.
const STREAM_CAPACITY: usize = 64;
/// Largest answer of `big`, and most steps of `progress`.
const BIG_LIMIT: u64 = 64 << 20;
const STEPS_LIMIT: u64 = 100_000;

/// Names of all tools, as in `tools.json`.
const TOOLS: &[&str] = &[
    "echo", "whoami", "remember", "recall", "count", "sleep", "progress", "big", "fail", "effect", "ask",
    "notify", "raw", "reply",
];
/// Tools whose answer is always a stream.
const STREAMS: &[&str] = &["progress", "ask", "notify"];

/// Whether a tool is one of `tools.json`.
pub fn is_real(tool: &str) -> bool {
    TOOLS.contains(&tool)
}

/// One call of a tool.
struct Call {
    probe: Arc<Probe>,
    session: Arc<Session>,
    tool: String,
    arguments: Value,
    progress_token: Option<Value>,
    asked: Asked,
    /// Where messages before the answer go, if the answer is a stream.
    stream: Option<mpsc::Sender<String>>,
}

/// How a tool ended: its result, or why its arguments were no good.
type Outcome = Result<Value, String>;

/// `tools/call`. The tool runs in a task of its own: a caller who goes away does not stop it, since
/// in this era only `notifications/cancelled` does.
pub async fn call(probe: &Arc<Probe>, session: &Arc<Session>, asked: Asked) -> Response {
    let tool = asked.params.get("name").and_then(Value::as_str).filter(|name| probe.catalogue.knows(name));
    let Some(tool) = tool.map(str::to_owned) else {
        let error = RpcError::new(INVALID_PARAMS, "Unknown tool");
        return mcp::json(StatusCode::OK, error.text(Some(&asked.id)));
    };
    probe.books.called(&session.id, &tool);
    let arguments = asked.params.get("arguments").cloned().unwrap_or_default();
    let streams = STREAMS.contains(&tool.as_str()) || arguments.get("stream") == Some(&Value::Bool(true));
    let (sender, receiver) = mpsc::channel(STREAM_CAPACITY);
    let running = session.start_call(&asked.id);
    let call = Call {
        probe: Arc::clone(probe),
        session: Arc::clone(session),
        tool,
        arguments,
        progress_token: asked.params.pointer("/_meta/progressToken").cloned(),
        asked,
        stream: streams.then(|| sender.clone()),
    };
    let task = tokio::spawn(call.answer(running));
    if streams {
        let forward = async move {
            // A cancelled call ends its stream without an answer, as the protocol asks.
            if let Ok(Ok(text)) = task.await {
                // Line breaks in JSON are only between tokens, and would end the event.
                let _ = sender.send(text.replace(['\r', '\n'], " ")).await;
            }
        };
        tokio::spawn(forward);
        // The end of the session stops the call, and so ends the stream.
        let ends = [CancellationToken::new(), probe.shutdown.clone()];
        return sse::response(receiver, ends, probe.settings.keep_alive);
    }
    match task.await {
        Ok(Ok(text) | Err(text)) => mcp::json(StatusCode::OK, text),
        Err(_) => mcp::json(StatusCode::INTERNAL_SERVER_ERROR, String::new()),
    }
}

impl Call {
    /// The message to answer with; as an error if the call was stopped.
    async fn answer(self, running: RunningCall) -> Result<String, String> {
        let id = &self.asked.id;
        tokio::select! {
            biased;
            () = running.cancel.cancelled() => {
                let error = if self.session.ended.is_cancelled() {
                    RpcError::new(SESSION_NOT_FOUND, "Session ended")
                } else {
                    RpcError::new(CANCELLED, "Request cancelled")
                };
                Err(error.text(Some(id)))
            }
            answer = self.whole_answer() => Ok(answer),
        }
    }

    async fn whole_answer(&self) -> String {
        if self.tool == "reply" {
            return raw::reply(&self.asked);
        }
        let result = self.run().await.unwrap_or_else(|error| failure(&error));
        result_text(&self.asked.id, &result.to_string())
    }

    async fn run(&self) -> Outcome {
        match self.tool.as_str() {
            "echo" => Ok(text(self.string("message")?)),
            "whoami" => Ok(structured(&json!({
                "sessionId": self.session.id,
                "authorizationSha256AtInitialize": self.session.authorization_at_initialize,
                "authorizationSha256": self.asked.authorization,
            }))),
            "remember" => {
                self.session.remember(self.string("value")?.to_owned());
                Ok(text("remembered"))
            }
            "recall" => Ok(structured(&json!({ "value": self.session.recall() }))),
            "count" => Ok(structured(&json!({ "count": self.session.count() }))),
            "sleep" => {
                let ms = self.number("ms", None)?;
                time::sleep(Duration::from_millis(ms)).await;
                Ok(text(&format!("slept {ms} ms")))
            }
            "progress" => self.progress().await,
            "big" => {
                let bytes = self.number("bytes", None)?;
                let length = usize::try_from(bytes).ok().filter(|_| bytes <= BIG_LIMIT);
                Ok(text(&"x".repeat(length.ok_or("bytes is too large")?)))
            }
            "fail" => Ok(failure(self.string("message")?)),
            "effect" => Ok(structured(&json!({ "effects": self.probe.books.effect() }))),
            "ask" => self.ask().await,
            "notify" => self.notify().await,
            "raw" => Ok(text(&String::from_utf8_lossy(&self.asked.body))),
            invented => Ok(text(&format!("called {invented}"))),
        }
    }

    async fn progress(&self) -> Outcome {
        let steps = self.number("steps", None)?;
        if steps > STEPS_LIMIT {
            return Err("steps is too large".to_owned());
        }
        let interval = Duration::from_millis(self.number("intervalMs", Some(0))?);
        for step in 1..=steps {
            if !interval.is_zero() {
                time::sleep(interval).await;
            }
            if let Some(token) = &self.progress_token {
                let params = json!({"progressToken": token, "progress": step, "total": steps,
                    "message": format!("step {step}")});
                self.send(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
                    .await;
            }
        }
        Ok(text(&format!("{steps} steps")))
    }

    /// A reader who is gone is not the tool's business.
    async fn send(&self, message: &Value) {
        self.send_all(&[message.to_string()], Via::Call).await;
    }

    /// How many went out.
    async fn send_all(&self, messages: &[String], via: Via) -> usize {
        if via == Via::Stream {
            return self.session.push_all(messages).await;
        }
        let mut sent = 0;
        for message in messages {
            if let Some(stream) = &self.stream {
                sent += usize::from(stream.send(message.clone()).await.is_ok());
            }
        }
        sent
    }

    fn string(&self, name: &str) -> Result<&str, String> {
        self.arguments.get(name).and_then(Value::as_str).ok_or_else(|| format!("{name} must be a string"))
    }

    fn number(&self, name: &str, absent: Option<u64>) -> Result<u64, String> {
        match (self.arguments.get(name), absent) {
            (None, Some(number)) => Ok(number),
            (value, _) => {
                value.and_then(Value::as_u64).ok_or_else(|| format!("{name} must be a whole number"))
            }
        }
    }
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn structured(value: &Value) -> Value {
    json!({"content": [{"type": "text", "text": value.to_string()}], "structuredContent": value})
}

fn failure(message: &str) -> Value {
    json!({"content": [{"type": "text", "text": message}], "isError": true})
}
