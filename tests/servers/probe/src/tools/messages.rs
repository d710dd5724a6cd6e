//! The tools that send the client more than an answer.

use std::time::Duration;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};
use tokio::time;

use super::{Call, Outcome, structured};
use crate::{ask, notify::Notice, rpc::Message};

/// Where a message goes.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(super) enum Via {
    /// The stream of the call.
    #[default]
    Call,
    /// The GET stream of the session.
    Stream,
}

impl Call {
    pub(super) async fn ask(&self) -> Outcome {
        let kind: ask::Kind = self.argument("kind")?;
        let via = self.argument("via")?;
        if self.arguments.get("force") != Some(&Value::Bool(true)) {
            kind.check(&self.session.capabilities)?;
        }
        let wait = Duration::from_millis(self.number("timeoutMs", Some(60_000))?);
        let cancel = match self.arguments.get("cancelAfterMs") {
            Some(_) => Some(Duration::from_millis(self.number("cancelAfterMs", None)?)),
            None => None,
        };
        let (id, answer) = self.session.ask(kind.method());
        let message = self.arguments.get("message").and_then(Value::as_str);
        if self.send_all(&[kind.request(id, message)], via).await == 0 {
            return Err("nobody took the question".to_owned());
        }
        let answer = async {
            if let Some(cancel) = cancel {
                time::sleep(cancel).await;
                let params = json!({"requestId": id, "reason": "the probe changed its mind"});
                let cancelled =
                    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
                self.send_all(&[cancelled.to_string()], via).await;
            }
            answer.await
        };
        let answer = time::timeout(wait, answer).await.map_err(|_| "the client did not answer")?;
        let Message { result, error, .. } = answer.map_err(|_| "the question was lost")?;
        let value = |raw: Box<RawValue>| serde_json::from_str(raw.get()).unwrap_or(Value::Null);
        Ok(structured(&json!({ "answer": result.map(value), "error": error.map(value) })))
    }

    pub(super) async fn notify(&self) -> Outcome {
        let notice: Notice =
            serde_json::from_value(self.arguments.clone()).map_err(|error| error.to_string())?;
        let sent = self.send_all(&notice.messages(&self.session), self.argument("via")?).await;
        Ok(structured(&json!({ "sent": sent })))
    }

    /// An argument; absent, it is what it is by default.
    fn argument<T: DeserializeOwned + Default>(&self, name: &str) -> Result<T, String> {
        match self.arguments.get(name) {
            Some(value) => serde_json::from_value(value.clone()).map_err(|error| format!("{name}: {error}")),
            None => Ok(T::default()),
        }
    }
}
