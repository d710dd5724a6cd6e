//! Notifications that a tool or an admin call sends.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::session::Session;

/// Level of a log message, least first.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// `debug`.
    Debug,
    /// `info`.
    #[default]
    Info,
    /// `notice`.
    Notice,
    /// `warning`.
    Warning,
    /// `error`.
    Error,
    /// `critical`.
    Critical,
    /// `alert`.
    Alert,
    /// `emergency`.
    Emergency,
}

/// What happened.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// `notifications/tools/list_changed`.
    Tools,
    /// `notifications/prompts/list_changed`.
    Prompts,
    /// `notifications/resources/list_changed`.
    Resources,
    /// `notifications/resources/updated`, if the client has subscribed to the URI.
    Updated,
    /// `notifications/message`, if the client wants messages of that level.
    Log,
}

/// A notification, or many of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// What happened.
    pub kind: Kind,
    /// The resource that was updated.
    #[serde(default = "about")]
    pub uri: String,
    /// Level of a log message.
    #[serde(default)]
    pub level: Level,
    /// Text of a log message.
    #[serde(default)]
    pub text: String,
    /// How many; log messages and updates are numbered from 1.
    #[serde(default = "one")]
    pub count: u32,
    /// Also to a client that has not subscribed, or wants only higher levels.
    #[serde(default)]
    pub force: bool,
}

fn about() -> String {
    "probe://about".to_owned()
}

fn one() -> u32 {
    1
}

impl Notice {
    /// The messages for a session.
    pub fn messages(&self, session: &Session) -> Vec<String> {
        let wanted = match self.kind {
            Kind::Updated => session.subscriptions().contains(&self.uri),
            Kind::Log => session.log_level().is_none_or(|least| self.level >= least),
            Kind::Tools | Kind::Prompts | Kind::Resources => true,
        };
        if !wanted && !self.force {
            return Vec::new();
        }
        (1..=self.count).map(|number| self.message(number).to_string()).collect()
    }

    fn message(&self, number: u32) -> Value {
        match self.kind {
            Kind::Tools => json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}),
            Kind::Prompts => json!({"jsonrpc": "2.0", "method": "notifications/prompts/list_changed"}),
            Kind::Resources => json!({"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}),
            Kind::Updated => json!({"jsonrpc": "2.0", "method": "notifications/resources/updated",
                "params": {"uri": self.uri, "_meta": {"probe.test/number": number}}}),
            Kind::Log => json!({"jsonrpc": "2.0", "method": "notifications/message",
                "params": {"level": self.level, "logger": "probe", "data": {"text": self.text, "number": number}}}),
        }
    }
}
