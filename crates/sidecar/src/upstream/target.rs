//! Where an upstream is, read from its URL.

use super::trust::Trust;
use http::uri::PathAndQuery;
use http::{HeaderValue, Uri};
use rustls::pki_types::ServerName;
use std::net::IpAddr;
use std::sync::Arc;

/// An MCP endpoint to dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Host to dial: a name to resolve, or an address.
    pub host: Host,
    /// Port to dial.
    pub port: u16,
    /// The name that the certificate must have; none for plain HTTP.
    pub tls_name: Option<ServerName<'static>>,
    /// Whom the certificate may be from, if not from a public authority alone.
    pub trust: Option<Arc<Trust>>,
    /// Value of the `Host` header: always the upstream's own, never a client's.
    pub authority: HeaderValue,
    /// What is asked for.
    pub path: PathAndQuery,
}

/// A host of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// To be resolved.
    Name(String),
    /// To be dialled as it is.
    Address(IpAddr),
}

/// Why a URL cannot be dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// It does not parse.
    #[error("the upstream's URL is not a valid absolute URL")]
    Invalid,
    /// Neither `http` nor `https`.
    #[error("the upstream's URL must begin with http:// or https://")]
    Scheme,
    /// It holds a user or password.
    #[error("the upstream's URL must not hold a user or password: put credentials into a header")]
    UserInfo,
    /// Its port is no number from 0 to 65535.
    #[error("the port of the upstream's URL is not a number up to 65535")]
    Port,
    /// No certificate can name such a host.
    #[error("the host of the upstream's URL is not a valid name")]
    Host,
    /// Plain HTTP has no certificate.
    #[error("transport.http.tls needs a URL that begins with https://")]
    NoTls,
    /// No certificate can name it.
    #[error("transport.http.tls.serverName is not a valid name")]
    ServerName,
}

impl Target {
    /// Reads an absolute `http` or `https` URL. Errors never quote it: it may hold a secret in its query.
    pub fn parse(url: &str) -> Result<Self, TargetError> {
        let uri: Uri = url.parse().map_err(|_| TargetError::Invalid)?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(TargetError::Scheme),
        };
        let authority = uri.authority().ok_or(TargetError::Invalid)?;
        if authority.as_str().contains('@') {
            return Err(TargetError::UserInfo);
        }
        // `port_u16` alone would take such a port for none, and the credential would go to another service.
        let port = authority.as_str().get(authority.host().len()..).unwrap_or_default();
        if !matches!(port, "" | ":") && authority.port_u16().is_none() {
            return Err(TargetError::Port);
        }
        let name = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if name.is_empty() {
            return Err(TargetError::Host);
        }
        // A name with its final dot is resolved as it stands, but certificates are written without.
        let tls_name =
            ServerName::try_from(name.trim_end_matches('.').to_owned()).map_err(|_| TargetError::Host)?;
        let host = name.parse().map_or(Host::Name(name), Host::Address);
        Ok(Self {
            host,
            port: authority.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            tls_name: tls.then_some(tls_name),
            trust: None,
            authority: HeaderValue::try_from(authority.as_str()).map_err(|_| TargetError::Invalid)?,
            path: uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")),
        })
    }

    /// The same, where the certificate is checked against `server_name`, if one is given, and may be from whom `trust` says.
    pub fn checked(self, server_name: Option<&str>, trust: Option<Arc<Trust>>) -> Result<Self, TargetError> {
        let Some(usual) = self.tls_name.clone() else { return Err(TargetError::NoTls) };
        let named = |name: &str| ServerName::try_from(name.to_owned()).map_err(|_| TargetError::ServerName);
        let tls_name = server_name.map_or(Ok(usual), named)?;
        Ok(Self { tls_name: Some(tls_name), trust, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_hosts_and_paths_are_read() {
        let target = Target::parse("http://probe.demo.svc:3001/mcp?x=1").unwrap();
        assert_eq!((&target.host, target.port), (&Host::Name("probe.demo.svc".into()), 3001));
        assert_eq!(
            (target.authority.to_str().unwrap(), target.path.as_str()),
            ("probe.demo.svc:3001", "/mcp?x=1")
        );
        assert_eq!(target.tls_name, None);
        assert_eq!(Target::parse("http://h:/").unwrap().port, 80);
        assert_eq!(Target::parse("http://h:65535/").unwrap().port, 65535);

        let target = Target::parse("https://[::1]").unwrap();
        assert_eq!((target.host, target.port), (Host::Address("::1".parse().unwrap()), 443));
        assert_eq!((target.authority.to_str().unwrap(), target.path.as_str()), ("[::1]", "/"));
        assert!(target.tls_name.is_some());
    }

    #[test]
    fn what_cannot_be_dialled_is_refused() {
        assert_eq!(Target::parse("ftp://a/"), Err(TargetError::Scheme));
        assert_eq!(Target::parse("/mcp"), Err(TargetError::Scheme));
        assert_eq!(Target::parse("http://u:p@a/"), Err(TargetError::UserInfo));
        assert_eq!(Target::parse("http:// a/"), Err(TargetError::Invalid));
        for port in ["99999", "65536", "abc", "-1", "80a"] {
            for url in [format!("http://h:{port}/"), format!("https://[::1]:{port}/mcp")] {
                assert!(
                    matches!(Target::parse(&url), Err(TargetError::Port | TargetError::Invalid)),
                    "{url}"
                );
            }
        }
        assert_eq!(Target::parse("http://h:99999/"), Err(TargetError::Port));
        assert_eq!(Target::parse("https://a_b..c/"), Err(TargetError::Host));
    }

    #[test]
    fn another_name_is_checked_than_is_dialled_and_only_with_tls() {
        let target = Target::parse("https://10.0.0.1/mcp").unwrap().checked(Some("a.test"), None).unwrap();
        assert_eq!(target.tls_name, Some(ServerName::try_from("a.test").unwrap()));
        assert_eq!((target.host, target.port), (Host::Address("10.0.0.1".parse().unwrap()), 443));
        assert_eq!(target.authority, "10.0.0.1", "the Host header stays");
        let checked = |url: &str, name| Target::parse(url).unwrap().checked(name, None);
        assert_eq!(checked("https://a.test/", None), Ok(Target::parse("https://a.test/").unwrap()));
        assert_eq!(checked("http://a.test/", None), Err(TargetError::NoTls));
        assert_eq!(checked("https://a.test/", Some("a b")), Err(TargetError::ServerName));
    }
}
