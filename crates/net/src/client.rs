//! Requests to sidecars and to the operator over mutual TLS, with pooled connections.

use crate::connector::PeerConnector;
use crate::error::chain;
use crate::identity::Identity;
use axum::body::Body;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// How long an unused connection is kept: less than [`crate::serve`] waits for the head of a next request, so that this side
/// closes first and no request meets a closing connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// One peer: where it is and what its certificate must name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Pod address and port.
    pub address: SocketAddr,
    /// DNS name in its certificate.
    name: String,
}

impl Target {
    /// The sidecar at `address` in a pod of the `McpServer` of that UID.
    pub fn sidecar(address: SocketAddr, server_uid: &str) -> Self {
        Self { address, name: berth_wire::server_dns_name(server_uid) }
    }

    /// The operator at `address`.
    pub fn operator(address: SocketAddr) -> Self {
        Self { address, name: berth_wire::OPERATOR_DNS_NAME.to_owned() }
    }

    /// The pool's key for this peer, in the form of a URI authority: the address in hexadecimal, a dot, the name to check.
    /// Two pods of one server never share a connection, and a pod's address reused by another server fails the name check.
    fn authority(&self) -> String {
        let address = match self.address.ip() {
            IpAddr::V4(ip) => format!("{:08x}", u32::from(ip)),
            IpAddr::V6(ip) => format!("{:032x}", u128::from(ip)),
        };
        format!("{address}.{}:{}", self.name, self.address.port())
    }

    /// The address and the name to check of an authority made by [`Target::authority`].
    pub(crate) fn parse_authority(authority: &str) -> Option<(SocketAddr, String)> {
        let (host, port) = authority.rsplit_once(':')?;
        let (address, name) = host.split_once('.')?;
        let ip = match address.len() {
            8 => IpAddr::from(u32::from_str_radix(address, 16).ok()?.to_be_bytes()),
            32 => IpAddr::from(u128::from_str_radix(address, 16).ok()?.to_be_bytes()),
            _ => return None,
        };
        Some((SocketAddr::new(ip, port.parse().ok()?), name.to_owned()))
    }
}

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// Nothing was sent: the sidecar could not be reached or failed the check of its name.
    #[error("cannot reach {address}: {message}")]
    Unreachable {
        /// Where it was looked for.
        address: SocketAddr,
        /// What went wrong.
        message: String,
    },
    /// The request may have been sent; whether it was acted on is unknown.
    #[error("{address} gave no answer: {message}")]
    NoAnswer {
        /// Which sidecar.
        address: SocketAddr,
        /// What went wrong.
        message: String,
    },
    /// The request could not be formed.
    #[error("invalid request: {0}")]
    Invalid(String),
}

impl PeerError {
    /// True when nothing was sent, so that the request may be sent elsewhere.
    pub fn is_before_send(&self) -> bool {
        !matches!(self, Self::NoAnswer { .. })
    }
}

/// A client to sidecars; clones share its connections.
#[derive(Clone)]
pub struct PeerClient {
    http: Client<PeerConnector, Body>,
}

impl PeerClient {
    /// A client that shows `identity`.
    pub fn new(identity: Identity) -> Self {
        let http = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            // Only a request of which no byte was written is tried on another connection, so none is sent twice.
            .retry_canceled_requests(true)
            .build(PeerConnector::new(identity));
        Self { http }
    }

    /// Sends `request`, whose URI is path and query only, to `target`. Bounds on time are the caller's.
    pub async fn request(
        &self,
        target: &Target,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, PeerError> {
        let path = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let uri = Uri::try_from(format!("https://{}{path}", target.authority()));
        *request.uri_mut() = uri.map_err(|error| PeerError::Invalid(error.to_string()))?;
        self.http.request(request).await.map_err(|error| {
            let (address, message) = (target.address, chain(&error));
            if error.is_connect() {
                PeerError::Unreachable { address, message }
            } else {
                PeerError::NoAnswer { address, message }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_reads_back_as_its_target() {
        for address in ["10.1.2.3:8443", "[fd00::17]:8443", "0.0.0.1:1", "[::1]:65535"] {
            let target = Target::sidecar(address.parse().unwrap(), "0b1e-uid");
            let authority = target.authority();
            assert!(authority.parse::<http::uri::Authority>().is_ok(), "{authority}");
            assert_eq!(
                Target::parse_authority(&authority),
                Some((target.address, "0b1e-uid.sidecar.berth.internal".to_owned()))
            );
        }
    }

    #[test]
    fn a_foreign_authority_is_refused() {
        for authority in ["example.test:8443", "10.1.2.3:8443", "zzzzzzzz.x:1", "0a010203.x"] {
            assert_eq!(Target::parse_authority(authority), None, "{authority}");
        }
    }
}
