//! What the operator wants of a session, checked and ready for use.

use super::seal::Key;
use crate::bounds::millis;
use crate::upstream::{Carried, Dialer, Target, TargetError, TrustError};
use berth_mcp::header;
use berth_wire::{
    Generation, Header, Limits, OnStateLost, ServerKey, SessionSpec, Subject, Timeouts, UpstreamTls,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::sync::Arc;
use std::time::Duration;

/// Headers that HTTP, MCP or the sidecar itself sets, as in the rule of the `McpServer`. A second one would be overwritten, or
/// let a value smuggle in another request.
const RESERVED: [&str; 12] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    header::LAST_EVENT_ID,
    header::MCP_PROTOCOL_VERSION,
    header::MCP_SESSION_ID,
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A [`SessionSpec`] whose URL and headers are usable.
pub(crate) struct Desired {
    pub display_name: String,
    pub server: ServerKey,
    pub generation: Generation,
    pub subject: Subject,
    pub target: Target,
    /// What every request carries, credentials among it.
    pub carried: Carried,
    /// What it carries is this session's alone.
    pub own_credential: bool,
    pub timeouts: Timeouts,
    pub on_state_lost: OnStateLost,
    pub limits: Limits,
    /// Seals the session ids of clients.
    pub scope_key: Option<Key>,
}

/// Why a spec cannot be used. Never quotes a value.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The URL cannot be dialled.
    #[error(transparent)]
    Url(#[from] TargetError),
    /// The authorities of its certificate cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// A header has a name that HTTP does not allow.
    #[error("upstream header {0:?} has a name that cannot be sent; see auth of the McpServer")]
    HeaderName(String),
    /// A header has a name that HTTP, MCP or the sidecar itself sets.
    #[error(
        "upstream header {0:?} is set by HTTP or MCP itself; use another one for the credential, such as Authorization"
    )]
    HeaderReserved(String),
    /// A header has a value that HTTP does not allow.
    #[error("upstream header {0:?} has a value that a header cannot carry")]
    HeaderValue(String),
    /// The key for the session ids of clients is not one.
    #[error("scopeKey is not 32 bytes in base64")]
    ScopeKey,
}

impl Desired {
    /// Checks `spec`, whose upstream `dialer` will reach.
    pub(crate) fn new(spec: SessionSpec, dialer: &Dialer) -> Result<Self, SpecError> {
        let target = Target::parse(&spec.upstream.url)?;
        let target = match &spec.upstream.tls {
            Some(UpstreamTls { ca_pem, server_name }) => {
                let trust = ca_pem.as_deref().map(|pem| dialer.trust(pem)).transpose()?;
                target.checked(server_name.as_deref(), trust)?
            }
            None => target,
        };
        let carried = match spec.upstream.withheld {
            Some(withheld) => Carried::Withheld(Arc::new(withheld)),
            None => Carried::Headers(Arc::new(read_headers(spec.upstream.headers)?)),
        };
        Ok(Self {
            display_name: spec.display_name,
            server: spec.server,
            generation: spec.generation,
            subject: spec.subject,
            target,
            carried,
            own_credential: spec.upstream.own_credential,
            timeouts: spec.timeouts,
            on_state_lost: spec.on_state_lost,
            limits: spec.limits,
            scope_key: spec.scope_key.map(|key| Key::read(&key.0).ok_or(SpecError::ScopeKey)).transpose()?,
        })
    }

    /// Whether an upstream that refused `other` would be asked the same again: neither object changed, which is how people say that
    /// they have mended something, nor where it leads or what it carries.
    pub(crate) fn has_access_of(&self, other: &Self) -> bool {
        let same = match (&self.carried, &other.carried) {
            (Carried::Headers(ours), Carried::Headers(theirs)) => ours == theirs,
            (Carried::Withheld(_), Carried::Withheld(_)) => true,
            (Carried::Headers(_), Carried::Withheld(_)) | (Carried::Withheld(_), Carried::Headers(_)) => {
                false
            }
        };
        same && self.target == other.target && self.generation == other.generation
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

fn read_headers(headers: Vec<Header>) -> Result<HeaderMap, SpecError> {
    headers.into_iter().map(read_header).collect()
}

fn read_header(header: Header) -> Result<(HeaderName, HeaderValue), SpecError> {
    let Ok(name) = HeaderName::try_from(header.name.as_str()) else {
        return Err(SpecError::HeaderName(header.name));
    };
    if RESERVED.contains(&name.as_str()) {
        return Err(SpecError::HeaderReserved(header.name));
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
    use crate::fixture;

    fn header(name: &str, value: &str) -> Header {
        Header { name: name.into(), value: value.into() }
    }

    #[test]
    fn header_values_are_kept_out_of_debug_output() {
        let (name, value) = read_header(header("Authorization", "Bearer hunter2")).unwrap();
        assert_eq!(name, http::header::AUTHORIZATION);
        assert!(!format!("{value:?}").contains("hunter2"));
    }

    #[tokio::test]
    async fn authorities_are_shared_by_all_who_trust_the_same_and_another_set_is_another_access() {
        let dialer = Dialer::system().unwrap();
        let pem = |name: &str| {
            let key = rcgen::KeyPair::generate().unwrap();
            rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap().pem()
        };
        let (first, second) = (pem("a.test"), pem("b.test"));
        let desired = |ca: &str| {
            let mut spec = fixture::spec("Bearer first");
            spec.upstream.url = "https://a.test/mcp".into();
            spec.upstream.tls = Some(UpstreamTls { ca_pem: Some(ca.to_owned()), server_name: None });
            Desired::new(spec, &dialer)
        };
        let (one, same) = (desired(&first).unwrap(), desired(&first).unwrap());
        let (held, other) = (one.target.trust.clone().unwrap(), same.target.trust.clone().unwrap());
        assert!(Arc::ptr_eq(&held, &other) && one.has_access_of(&same));
        assert!(!desired(&second).unwrap().has_access_of(&one));
        let refused = desired("hunter2").err().unwrap().to_string();
        assert!(refused.contains("transport.http.tls.caRef") && !refused.contains("hunter2"), "{refused}");
        let mut plain = fixture::spec("Bearer first");
        plain.upstream.tls = Some(UpstreamTls::default());
        assert_eq!(Desired::new(plain, &dialer).err(), Some(SpecError::Url(TargetError::NoTls)));
    }

    #[test]
    fn headers_that_would_break_the_message_are_refused_by_name() {
        assert_eq!(read_header(header("a b", "x")), Err(SpecError::HeaderName("a b".into())));
        for name in RESERVED.iter().flat_map(|name| [(*name).to_owned(), name.to_ascii_uppercase()]) {
            let error = read_header(header(&name, "hunter2")).unwrap_err();
            assert_eq!(error, SpecError::HeaderReserved(name.clone()));
            assert!(error.to_string().contains(&name) && !error.to_string().contains("hunter2"), "{error}");
        }
        assert_eq!(read_header(header("x-a", "a\r\nx-admin: 1")), Err(SpecError::HeaderValue("x-a".into())));
    }
}
