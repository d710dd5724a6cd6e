//! Faults while a request's body is read.

use std::time::Duration;

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt as _;
use tokio::time;

use super::{Fault, strike::abort};

/// Largest body that is read.
const LIMIT: usize = 64 << 20;
/// What `dripMs` is for.
const STEP: usize = 1024;

/// The whole body, or the answer to give because it could not be had. May never return.
pub async fn body(mut body: Body, fault: Option<&Fault>) -> Result<Bytes, Response> {
    let struck = match fault {
        Some(fault) => fault.strike(None).await,
        None => None,
    };
    if let Some(response) = struck {
        return Err(response);
    }
    let drip = fault.and_then(|fault| fault.drip_ms).map(Duration::from_millis);
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        // The client went away in the middle.
        let frame = frame.map_err(|_| abort())?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + data.len() > LIMIT {
            return Err((StatusCode::PAYLOAD_TOO_LARGE, "the body is too large").into_response());
        }
        if let Some(drip) = drip {
            let steps = u32::try_from(data.len().div_ceil(STEP)).unwrap_or(u32::MAX);
            time::sleep(drip.saturating_mul(steps)).await;
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}
