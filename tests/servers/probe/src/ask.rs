//! Requests that the server makes of its client.

use serde::Deserialize;
use serde_json::{Value, json};

/// What is asked.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// `elicitation/create` with a form.
    #[default]
    Elicitation,
    /// `elicitation/create` with a URL.
    ElicitationUrl,
    /// `sampling/createMessage`.
    Sampling,
    /// `roots/list`.
    Roots,
    /// `ping`.
    Ping,
}

impl Kind {
    /// The JSON-RPC method.
    pub fn method(self) -> &'static str {
        match self {
            Self::Elicitation | Self::ElicitationUrl => "elicitation/create",
            Self::Sampling => "sampling/createMessage",
            Self::Roots => "roots/list",
            Self::Ping => "ping",
        }
    }

    /// The capability that a client has to declare, as it is called and as a pointer.
    fn capability(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Elicitation => Some(("elicitation", "/elicitation")),
            Self::ElicitationUrl => Some(("elicitation.url", "/elicitation/url")),
            Self::Sampling => Some(("sampling", "/sampling")),
            Self::Roots => Some(("roots", "/roots")),
            Self::Ping => None,
        }
    }

    /// An error if a client with these capabilities cannot be asked.
    pub fn check(self, capabilities: &Value) -> Result<(), String> {
        match self.capability() {
            Some((name, pointer)) if capabilities.pointer(pointer).is_none() => {
                Err(format!("the client did not declare {name}"))
            }
            _ => Ok(()),
        }
    }

    /// The whole request.
    pub fn request(self, id: u64, message: Option<&str>) -> String {
        let text = message.unwrap_or("What is your name?");
        let params = match self {
            Self::Elicitation => json!({"message": text, "requestedSchema": {"type": "object",
                "properties": {"name": {"type": "string"}}, "required": ["name"]}}),
            Self::ElicitationUrl => json!({"mode": "url", "message": text,
                "elicitationId": format!("e{id}"), "url": "https://probe.test/consent"}),
            Self::Sampling => json!({"maxTokens": 100,
                "messages": [{"role": "user", "content": {"type": "text", "text": text}}]}),
            Self::Roots | Self::Ping => {
                return json!({"jsonrpc": "2.0", "id": id, "method": self.method()}).to_string();
            }
        };
        json!({"jsonrpc": "2.0", "id": id, "method": self.method(), "params": params}).to_string()
    }
}
