//! Faults that take the place of an answer.

use std::{
    future::pending,
    str::FromStr as _,
    time::{Duration, SystemTime},
};

use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::RETRY_AFTER};
use tokio::time;

use super::Fault;
use crate::accept::Abort;

impl Fault {
    pub(super) fn header_map(&self) -> Result<HeaderMap, String> {
        self.headers
            .iter()
            .map(|(name, value)| {
                let bad = |_| format!("header {name} has an illegal value");
                let name = HeaderName::from_str(name).map_err(|_| format!("illegal header name {name}"))?;
                Ok((name, HeaderValue::from_str(value).map_err(bad)?))
            })
            .collect()
    }

    /// Goes wrong: the answer to give to the request of that JSON-RPC id, or `None` if it is to go on. May never return.
    pub async fn strike(&self, id: Option<&str>) -> Option<Response> {
        if let Some(delay) = self.delay_ms {
            time::sleep(Duration::from_millis(delay)).await;
        }
        if self.hang {
            return pending().await;
        }
        if self.close {
            return Some(abort());
        }
        let status = StatusCode::from_u16(self.status?).ok()?;
        let body = self.body.clone().unwrap_or_default().replace("{id}", id.unwrap_or("null"));
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        *response.headers_mut() = self.header_map().unwrap_or_default();
        if let Some(seconds) = self.retry_after_date {
            let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(seconds));
            response.headers_mut().extend(HeaderValue::from_str(&date).ok().map(|date| (RETRY_AFTER, date)));
        }
        Some(response)
    }
}

/// The answer that drops the connection.
pub(super) fn abort() -> Response {
    let mut response = Response::new(Body::empty());
    response.extensions_mut().insert(Abort);
    response
}
