//! Faults: what is to go wrong. `accept`, `read` and `strike` happen before there is an answer; `answer` spoils the answer.

mod answer;
mod named;
pub mod read;
mod set;
mod strike;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::{answer::AnswerFault, named::named, set::Faults};

/// Key of what goes wrong before a byte of HTTP is read, and its form for one port, as `accept:good`.
const ACCEPT: &str = "accept";
/// Key of what goes wrong while a request's body is read.
const READ: &str = "read";

/// One fault. Its parts add up: first the delay, then the first of hang, close and status. A mere
/// delay lets the request go on, and so does `answer`, which spoils whatever answer there is.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Fault {
    /// Never answer.
    #[serde(skip_serializing_if = "is_false")]
    pub hang: bool,
    /// Wait first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Answer with this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Headers that go with `status`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// A `Retry-After` that goes with `status`, as the HTTP date so many seconds from then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_date: Option<u64>,
    /// Body that goes with `status`; `{id}` in it becomes the JSON-RPC id of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Drop the connection without an answer.
    #[serde(skip_serializing_if = "is_false")]
    pub close: bool,
    /// Do the work first and only then go wrong, so that the caller cannot know.
    #[serde(skip_serializing_if = "is_false")]
    pub after: bool,
    /// Only at `accept` (every byte that is written) and `read` (every KiB of the body): a pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drip_ms: Option<u64>,
    /// How the answer is spoilt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerFault>,
    /// Only for requests to this path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Only for requests whose Host is none of these; `name:*` stands for every port, and for none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unless_host: Vec<String>,
    /// How many requests this is for; without it, all until it is taken away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// How long it is set; without it, until it is taken away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn is_false(value: &bool) -> bool {
    !*value
}

impl Fault {
    /// Whether it can be set under that key.
    fn check(&self, key: &str) -> Result<(), String> {
        if let Some(status) = self.status
            && !(200..=599).contains(&status)
        {
            return Err(format!("status {status} is not a final one"));
        }
        self.header_map().map(drop)?;
        let accept = key == ACCEPT || key.starts_with("accept:");
        let never_http = self.status.is_some() || self.path.is_some() || !self.unless_host.is_empty();
        match (accept, key == READ) {
            (true, _) if never_http => Err("there is no HTTP yet at accept".to_owned()),
            (true, _) | (_, true) if self.after || self.answer.is_some() => {
                Err("there is no answer yet at accept and read".to_owned())
            }
            (false, false) if self.drip_ms.is_some() => {
                Err("dripMs is for accept and read; answer.dripMs is for an answer".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Whether it is for requests to that path under that Host.
    fn is_for(&self, path: &str, host: &str) -> bool {
        let named = |allowed: &String| match allowed.strip_suffix(":*") {
            Some(name) => host == name || host.rsplit_once(':').is_some_and(|(before, _)| before == name),
            None => host == allowed,
        };
        self.path.as_deref().is_none_or(|only| only == path) && !self.unless_host.iter().any(named)
    }

    /// A word for the journal.
    pub fn name(&self) -> String {
        let kind = match self {
            Self { hang: true, .. } => "hang".to_owned(),
            Self { close: true, .. } => "close".to_owned(),
            Self { status: Some(status), .. } => format!("status {status}"),
            Self { answer: Some(_), .. } => "answer".to_owned(),
            _ => "delay".to_owned(),
        };
        if self.after { format!("{kind} after") } else { kind }
    }
}
