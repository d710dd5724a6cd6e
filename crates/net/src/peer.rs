//! Which part of Berth is at the other end, by the URI in its client certificate.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use berth_wire::{GATEWAY_URI, OPERATOR_URI};
use http::StatusCode;
use rustls::pki_types::CertificateDer;

/// The part that a connection was opened by. The certificate's chain was checked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The operator: may use control.
    Operator,
    /// A gateway: may use the data path.
    Gateway,
    /// Anybody else that the CA signed for, such as a sidecar: may use nothing.
    Unknown,
}

impl Peer {
    /// Reads the peer from the chain that it showed; its first certificate counts.
    pub fn from_chain(chain: Option<&[CertificateDer<'_>]>) -> Self {
        let Some(leaf) = chain.and_then(<[_]>::first) else { return Self::Unknown };
        let Ok(certificate) = webpki::EndEntityCert::try_from(leaf) else { return Self::Unknown };
        let mut uris = certificate.valid_uri_names();
        match (uris.next(), uris.next()) {
            (Some(OPERATOR_URI), None) => Self::Operator,
            (Some(GATEWAY_URI), None) => Self::Gateway,
            _ => Self::Unknown,
        }
    }
}

/// Lets a request on to `next` only if `wanted` opened its connection; anybody else gets 403.
pub async fn only(wanted: Peer, request: Request, next: Next) -> Response {
    if request.extensions().get() == Some(&wanted) { next.run(request).await } else { refuse() }
}

/// The answer to a peer whom a path is not for.
pub fn refuse() -> Response {
    (StatusCode::FORBIDDEN, "this path is not for the peer that your certificate names\n").into_response()
}
