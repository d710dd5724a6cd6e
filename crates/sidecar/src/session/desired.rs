//! What the operator wants of a session, checked and ready for use.

use crate::bounds::millis;
use crate::upstream::{Target, TargetError};
use berth_wire::{Generation, Header, ServerKey, SessionSpec, Timeouts};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;

/// A [`SessionSpec`] whose URL and headers are usable.
pub(crate) struct Desired {
    pub display_name: String,
    pub server: ServerKey,
    pub generation: Generation,
    pub target: Target,
    /// Headers for every request, credentials among them.
    pub headers: HeaderMap,
    pub timeouts: Timeouts,
}

/// Why a spec cannot be used. Never quotes a value.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The URL cannot be dialled.
    #[error(transparent)]
    Url(#[from] TargetError),
    /// A header has a name that HTTP does not allow, or one that the sidecar sets itself.
    #[error("upstream header {0:?} has a name that cannot be sent")]
    HeaderName(String),
    /// A header has a value that HTTP does not allow.
    #[error("upstream header {0:?} has a value that a header cannot carry")]
    HeaderValue(String),
}

impl Desired {
    /// Checks `spec`.
    pub(crate) fn new(spec: SessionSpec) -> Result<Self, SpecError> {
        let target = Target::parse(&spec.upstream.url)?;
        let headers = spec.upstream.headers.into_iter().map(read_header).collect::<Result<_, _>>()?;
        Ok(Self {
            display_name: spec.display_name,
            server: spec.server,
            generation: spec.generation,
            target,
            headers,
            timeouts: spec.timeouts,
        })
    }

    /// Bound of a connect.
    pub(crate) fn connect(&self) -> Duration {
        millis(self.timeouts.connect_millis)
    }

    /// Bound of running calls once the session ends.
    pub(crate) fn drain(&self) -> Duration {
        millis(self.timeouts.drain_millis)
    }

    /// Bound of the upstream's confirmation of an end.
    pub(crate) fn close(&self) -> Duration {
        millis(self.timeouts.close_millis)
    }
}

fn read_header(header: Header) -> Result<(HeaderName, HeaderValue), SpecError> {
    let Ok(name) = HeaderName::try_from(header.name.as_str()) else {
        return Err(SpecError::HeaderName(header.name));
    };
    // These frame the message; a second one would let a value smuggle in another request.
    if [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING].contains(&name) {
        return Err(SpecError::HeaderName(header.name));
    }
    let Ok(mut value) = HeaderValue::try_from(header.value) else {
        return Err(SpecError::HeaderValue(header.name));
    };
    value.set_sensitive(true);
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, value: &str) -> Header {
        Header { name: name.into(), value: value.into() }
    }

    #[test]
    fn header_values_are_kept_out_of_debug_output() {
        let (name, value) = read_header(header("Authorization", "Bearer hunter2")).unwrap();
        assert_eq!(name, http::header::AUTHORIZATION);
        assert!(!format!("{value:?}").contains("hunter2"));
    }

    #[test]
    fn headers_that_would_break_the_message_are_refused_by_name() {
        for (name, value) in [("a b", "x"), ("Content-Length", "3"), ("transfer-encoding", "chunked")] {
            assert_eq!(read_header(header(name, value)), Err(SpecError::HeaderName(name.into())));
        }
        assert_eq!(read_header(header("x-a", "a\r\nx-admin: 1")), Err(SpecError::HeaderValue("x-a".into())));
    }
}
