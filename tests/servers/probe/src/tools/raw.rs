//! The tool that answers what it is told to, byte for byte.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    methods::Asked,
    rpc::{INVALID_PARAMS, RpcError, result_text},
};

#[derive(Deserialize)]
struct Params {
    #[serde(default)]
    arguments: BTreeMap<String, Box<RawValue>>,
}

/// `reply`: the whole message.
pub(super) fn reply(asked: &Asked) -> String {
    let raw = asked.raw.as_deref().map_or("{}", RawValue::get);
    let arguments = serde_json::from_str(raw).map(|params: Params| params.arguments).unwrap_or_default();
    if let Some(result) = arguments.get("result") {
        return result_text(&asked.id, result.get());
    }
    match arguments.get("error") {
        Some(error) => format!(r#"{{"jsonrpc":"2.0","id":{},"error":{}}}"#, asked.id.get(), error.get()),
        None => RpcError::new(INVALID_PARAMS, "result or error is required").text(Some(&asked.id)),
    }
}
