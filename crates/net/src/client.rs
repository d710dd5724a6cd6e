//! Requests to sidecars and to the operator over mutual TLS, with connections that are used again.

use crate::connector;
use crate::error::chain;
use crate::identity::Identity;
use crate::pool::{Pool, Sender};
use axum::body::Body;
use http::header::HOST;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// One peer: where it is and what its certificate must name. Two pods of one server never share a connection, and a pod's
/// address reused by another server fails the check of the name.
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

/// A client to peers; clones share its connections.
#[derive(Clone)]
pub struct PeerClient {
    identity: Identity,
    pool: Arc<Pool>,
}

/// What became of sending a request over one connection.
enum Sent {
    Answered(Response<Incoming>),
    /// No byte of it was written.
    Unsent(Box<Request<Body>>, hyper::Error),
}

impl PeerClient {
    /// A client that shows `identity`.
    pub fn new(identity: Identity) -> Self {
        Self { identity, pool: Arc::default() }
    }

    /// Sends `request`, whose URI is path and query only, to `target`. Bounds on time are the caller's. Only a request of which no
    /// byte was written is tried on another connection, so none is sent twice.
    pub async fn request(
        &self,
        target: &Target,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, PeerError> {
        let host =
            HeaderValue::try_from(&target.name).map_err(|error| PeerError::Invalid(error.to_string()))?;
        request.headers_mut().insert(HOST, host);
        while let Some(sender) = self.pool.take(target) {
            match self.send(target, sender, request).await? {
                Sent::Answered(answer) => return Ok(answer),
                Sent::Unsent(again, _) => request = *again,
            }
        }
        let address = target.address;
        let unreachable = |message| PeerError::Unreachable { address, message };
        let sender = self.open(target).await.map_err(|error| unreachable(chain(&error)))?;
        match self.send(target, sender, request).await? {
            Sent::Answered(answer) => Ok(answer),
            Sent::Unsent(_, error) => Err(unreachable(chain(&error))),
        }
    }

    async fn send(
        &self,
        target: &Target,
        mut sender: Sender,
        request: Request<Body>,
    ) -> Result<Sent, PeerError> {
        let mut error = match sender.try_send_request(request).await {
            Ok(answer) => {
                self.pool.put(target, sender);
                return Ok(Sent::Answered(answer));
            }
            Err(error) => error,
        };
        // hyper gives back only what it has not begun to write.
        if let Some(request) = error.take_message() {
            return Ok(Sent::Unsent(Box::new(request), error.into_error()));
        }
        let (address, message) = (target.address, chain(error.error()));
        Err(PeerError::NoAnswer { address, message })
    }

    async fn open(&self, target: &Target) -> io::Result<Sender> {
        let stream = connector::dial(target.address, &target.name, &self.identity).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = chain(&error), "a connection to a peer ended early");
            }
        });
        Ok(sender)
    }
}
