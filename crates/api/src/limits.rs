//! What bounds a session at a server, and what its clients see when the server forgot it.

use crate::ByteSize;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a client sees when the upstream forgot its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnStateLost {
    /// A new upstream session is opened, and the next result is marked.
    #[default]
    Reinitialize,
    /// Its session is over: it gets 404 and starts anew.
    Fail,
}

/// How much one session may ask at once.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Largest message of a client in bytes, for example 512Ki; from 1Ki to 4Mi, which is the most that a gateway takes.
    #[serde(default = "Limits::default_request_bytes")]
    #[x_kube(
        validation = Rule::new("type(self) == string ? quantity(self).compareTo(quantity('1Ki')) >= 0 && quantity(self).compareTo(quantity('4Mi')) <= 0 : self >= 1024 && self <= 4194304")
            .message("limits.requestBytes must be from 1Ki to 4Mi")
    )]
    pub request_bytes: ByteSize,
    /// Largest answer of the upstream, or event of an answer, in bytes, for example 16Mi; from 1Ki to 32Mi. Answers that are held at once share 72Mi in each pod.
    #[serde(default = "Limits::default_response_bytes")]
    #[x_kube(
        validation = Rule::new("type(self) == string ? quantity(self).compareTo(quantity('1Ki')) >= 0 && quantity(self).compareTo(quantity('32Mi')) <= 0 : self >= 1024 && self <= 33554432")
            .message("limits.responseBytes must be from 1Ki to 32Mi")
    )]
    pub response_bytes: ByteSize,
    /// Calls that run at once. One whose client does not read its answer gives its place to another for good, and goes on upstream among those that wait.
    #[serde(default = "Limits::default_concurrent_calls")]
    #[schemars(range(min = 1, max = 1000))]
    pub concurrent_calls: i32,
    /// Calls that wait for one of those to end, in the order in which they came; more are refused.
    #[serde(default = "Limits::default_queued_calls")]
    #[schemars(range(min = 0, max = 10_000))]
    pub queued_calls: i32,
}

impl Limits {
    fn default_request_bytes() -> ByteSize {
        ByteSize::from_text("4Mi")
    }
    fn default_response_bytes() -> ByteSize {
        ByteSize::from_text("16Mi")
    }
    fn default_concurrent_calls() -> i32 {
        16
    }
    fn default_queued_calls() -> i32 {
        64
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_bytes: Self::default_request_bytes(),
            response_bytes: Self::default_response_bytes(),
            concurrent_calls: Self::default_concurrent_calls(),
            queued_calls: Self::default_queued_calls(),
        }
    }
}
