//! Reads a client's message, within the limit and the budget.

use crate::budget::{COPIES, Charge, NoRoom};
use axum::body::Body;
use berth_mcp::error;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;

/// Why a message was not read whole.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReadError {
    /// It is too large, or its sender left.
    #[error("the message is larger than the limit of {0} bytes, or was cut off")]
    TooLarge(usize),
    /// There is no memory for it now.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
}

impl ReadError {
    /// The status and the JSON-RPC code for the client.
    pub(super) fn codes(&self) -> (StatusCode, i32) {
        match self {
            Self::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, error::TOO_LARGE),
            Self::NoRoom(_) => (StatusCode::SERVICE_UNAVAILABLE, error::LIMIT_REACHED),
        }
    }
}

/// The whole message, of at most `limit` bytes. `charge` covers it twice: as it came, and as it is mapped for the upstream.
pub(super) async fn message(mut body: Body, limit: usize, charge: &mut Charge) -> Result<Bytes, ReadError> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| ReadError::TooLarge(limit))?.into_data() else { continue };
        let size = whole.len() + data.len();
        if size > limit {
            return Err(ReadError::TooLarge(limit));
        }
        charge.cover(COPIES * size)?;
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}
