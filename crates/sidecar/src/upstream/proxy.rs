//! Proxies between sidecar and upstream: which upstream goes through one, and how.
//!
//! The usual variables are read in both letter cases. Both `https` and `http` upstreams are reached by CONNECT, so that what an
//! upstream sees is the same with a proxy as without. What is in the cluster is always reached directly.

use super::target::{Host, Target};
use exempt::{Exempt, cluster_domain};
use http::Uri;
use std::fmt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

mod exempt;

/// Longest answer to CONNECT, in bytes.
const ANSWER_LIMIT: usize = 8 * 1024;

/// The proxies, and what goes through none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    https: Option<Proxy>,
    http: Option<Proxy>,
    exempt: Exempt,
}

/// An HTTP proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proxy {
    pub host: Host,
    pub port: u16,
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&authority(&self.host, self.port))
    }
}

/// Why a variable names no proxy. Never quotes it: it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// It is no URL of an HTTP proxy.
    #[error("{0} is not the URL of an HTTP proxy; write it like http://proxy.example:3128")]
    Url(&'static str),
    /// It holds a user or password, which would be open to all who may read pods.
    #[error("{0} must not hold a user or password; let the proxy take sidecars by their addresses")]
    UserInfo(&'static str),
}

impl Proxies {
    /// The proxies that the environment names. `get` gives a variable, `resolv_conf` tells the cluster's domain.
    pub fn read(get: impl Fn(&str) -> Option<String>, resolv_conf: &str) -> Result<Self, ProxyError> {
        let either = |lower: &str, upper: &str| {
            let set = |name: &str| get(name).filter(|value| !value.trim().is_empty());
            set(lower).or_else(|| set(upper))
        };
        let proxy =
            |lower, upper| either(lower, upper).map(|url| Proxy::parse(url.trim(), upper)).transpose();
        let no = either("no_proxy", "NO_PROXY").unwrap_or_default();
        Ok(Self {
            https: proxy("https_proxy", "HTTPS_PROXY")?,
            http: proxy("http_proxy", "HTTP_PROXY")?,
            exempt: Exempt::parse(&no, cluster_domain(resolv_conf)),
        })
    }

    /// What is in the list of exempt hosts and cannot be understood.
    pub fn not_understood(&self) -> &[String] {
        self.exempt.not_understood()
    }

    /// The proxy through which `target` is reached, if one is.
    pub(super) fn of(&self, target: &Target) -> Option<&Proxy> {
        let proxy = if target.tls_name.is_some() { &self.https } else { &self.http };
        proxy.as_ref().filter(|_| !self.exempt.holds(&target.host, target.port))
    }
}

impl Proxy {
    fn parse(url: &str, variable: &'static str) -> Result<Self, ProxyError> {
        let whole = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = whole.parse().map_err(|_| ProxyError::Url(variable))?;
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(ProxyError::UserInfo(variable));
        }
        // The rules for hosts and ports are those of upstreams.
        match Target::parse(&whole) {
            Ok(Target { host, port, tls_name: None, .. }) => Ok(Self { host, port }),
            _ => Err(ProxyError::Url(variable)),
        }
    }
}

/// Host and port as CONNECT names them.
fn authority(host: &Host, port: u16) -> String {
    match host {
        Host::Name(name) => format!("{name}:{port}"),
        Host::Address(address) => std::net::SocketAddr::new(*address, port).to_string(),
    }
}

/// Has the proxy at the other end of `stream` open a way to `target`; says what went wrong.
pub(super) async fn tunnel(mut stream: TcpStream, target: &Target) -> Result<TcpStream, String> {
    let to = authority(&target.host, target.port);
    let request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
    let lost = |error: std::io::Error| format!("the connection was lost: {error}");
    stream.write_all(request.as_bytes()).await.map_err(lost)?;
    let mut answer = Vec::with_capacity(512);
    let end = loop {
        if stream.read_buf(&mut answer).await.map_err(lost)? == 0 {
            return Err("the connection was closed without an answer".to_owned());
        }
        if let Some(at) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break at + 4;
        }
        if answer.len() > ANSWER_LIMIT {
            return Err("the answer is too long".to_owned());
        }
    };
    match status(&answer) {
        // An upstream of ours does not speak first.
        Some(200..=299) if answer.len() > end => Err("more came than an answer".to_owned()),
        Some(200..=299) => Ok(stream),
        Some(407) => {
            Err("it asks for authentication (407), which sidecars cannot give; let it take them without"
                .to_owned())
        }
        Some(status) => Err(format!("it answered {status} to CONNECT; have it let {to} through")),
        None => Err("the answer is not HTTP".to_owned()),
    }
}

/// The status of an answer's first line.
fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next().filter(|status| status.len() == 3)?.parse().ok()
}

#[cfg(test)]
mod tests;
