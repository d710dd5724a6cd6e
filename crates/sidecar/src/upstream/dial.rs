//! Opens sockets to upstreams: name, TCP, TLS, each with an error of its own.

use super::families;
use super::proxy::{self, Proxies, Proxy};
use super::target::{Host, Target};
use super::trouble::Step;
use super::trust::{Trust, TrustError, Untrusted, connector};
use crate::fault;
use crate::sync::lock;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;
use hickory_resolver::{ResolverBuilder, TokioResolver};
use rustls::{CertificateError, InvalidMessage, RootCertStore};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Pauses between rounds over addresses that all refuse. A Service whose endpoints have just changed refuses for a moment, as
/// kube-proxy writes its rules at most once a second; nothing was sent, so that trying again is safe.
const REFUSED_PAUSES: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];

/// A byte stream to an upstream.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Why no socket was opened. Nothing was sent of any request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// The name could not be resolved.
    #[error("cannot resolve the upstream's host name: {0}")]
    Resolve(String),
    /// No address took the connection.
    #[error("cannot connect to the upstream's port {port}: {message}")]
    Connect {
        /// The port.
        port: u16,
        /// What the system said about the last address.
        message: String,
    },
    /// The proxy opened no way.
    #[error("the proxy {proxy} opens no way to the upstream: {message}")]
    Proxy {
        /// Host and port of the proxy.
        proxy: String,
        /// What went wrong.
        message: String,
    },
    /// The upstream answered with a redirect that is not followed; it is taken to have done nothing else.
    #[error("the upstream redirects {0}")]
    Redirected(String),
    /// The certificate was refused.
    #[error("the upstream's certificate is not trusted: {0}")]
    Untrusted(String),
    /// TLS failed for another reason.
    #[error("the TLS handshake with the upstream failed: {0}")]
    Tls(String),
}

/// Opens sockets; shared by all sessions, remembers nothing between them.
pub struct Dialer {
    resolver: TokioResolver,
    proxies: Proxies,
    /// The public authorities.
    roots: RootCertStore,
    tls: TlsConnector,
    /// Other sets of authorities that are in use.
    trusts: Mutex<Vec<Weak<Trust>>>,
}

/// Why there is no dialer.
#[derive(Debug, thiserror::Error)]
pub enum DialerError {
    /// `/etc/resolv.conf` cannot be used.
    #[error("cannot read the resolver's configuration: {0}")]
    Resolver(String),
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

impl Dialer {
    /// A dialer that resolves as `/etc/resolv.conf` says and trusts the roots of Mozilla's program.
    pub fn system() -> Result<Self, DialerError> {
        Self::with_roots(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() })
    }

    /// The same with roots of the caller's choice.
    pub fn with_roots(roots: RootCertStore) -> Result<Self, DialerError> {
        Self::build(TokioResolver::builder_tokio().map_err(|error| unusable(&error))?, roots)
    }

    /// The same, but names are asked for at `name_server` alone, by UDP.
    pub fn with_name_server(name_server: SocketAddr, roots: RootCertStore) -> Result<Self, DialerError> {
        let mut server = NameServerConfig::udp(name_server.ip());
        for connection in &mut server.connections {
            connection.port = name_server.port();
        }
        let config = ResolverConfig::from_name_servers(vec![server]);
        Self::build(TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()), roots)
    }

    fn build(
        mut builder: ResolverBuilder<TokioRuntimeProvider>,
        roots: RootCertStore,
    ) -> Result<Self, DialerError> {
        let options = builder.options_mut();
        // Connects are rare, and one after a loss must see where the upstream is now.
        options.cache_size = 0;
        options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
        let resolver = builder.build().map_err(|error| unusable(&error))?;
        let (proxies, tls) = (Proxies::default(), connector(roots.clone())?);
        Ok(Self { resolver, proxies, roots, tls, trusts: Mutex::default() })
    }

    /// The same, by way of `proxies`.
    #[must_use]
    pub fn through(self, proxies: Proxies) -> Self {
        Self { proxies, ..self }
    }

    /// Trust in the authorities of `pem` beside the public ones. Sessions with the same share one.
    pub fn trust(&self, pem: &str) -> Result<Arc<Trust>, TrustError> {
        let mut trusts = lock(&self.trusts);
        trusts.retain(|trust| trust.strong_count() > 0);
        if let Some(held) = trusts.iter().filter_map(Weak::upgrade).find(|held| held.is_of(pem)) {
            return Ok(held);
        }
        let trust = Arc::new(Trust::new(&self.roots, pem)?);
        trusts.push(Arc::downgrade(&trust));
        Ok(trust)
    }

    /// Opens a socket to `target`, and says at `reached` how far it is. Bounds on time are the caller's.
    pub async fn dial(
        &self,
        target: &Target,
        reached: &(dyn Fn(Step) + Send + Sync),
    ) -> Result<Box<dyn Stream>, DialError> {
        let stream = match self.proxies.of(target) {
            Some(proxy) => self.tunnel(proxy, target, reached).await?,
            None => self.open(&target.host, target.port, reached).await?,
        };
        let Some(name) = &target.tls_name else { return Ok(Box::new(stream)) };
        reached(Step::Tls);
        fault::point("tls");
        let tls = target.trust.as_ref().map_or(&self.tls, |trust| trust.connector());
        let stream = tls.connect(name.clone(), stream).await.map_err(|error| refused(&error))?;
        Ok(Box::new(stream))
    }

    async fn open(
        &self,
        host: &Host,
        port: u16,
        reached: &(dyn Fn(Step) + Send + Sync),
    ) -> Result<TcpStream, DialError> {
        reached(Step::Resolve);
        fault::point("resolve");
        let addresses = self.resolve(host).await?;
        reached(Step::Connect);
        fault::point("connect");
        connect(&addresses, port, REFUSED_PAUSES).await
    }

    async fn tunnel(
        &self,
        proxy: &Proxy,
        target: &Target,
        reached: &(dyn Fn(Step) + Send + Sync),
    ) -> Result<TcpStream, DialError> {
        let failed = |message: String| DialError::Proxy { proxy: proxy.to_string(), message };
        let opened = self.open(&proxy.host, proxy.port, reached).await;
        let stream = opened.map_err(|error| {
            failed(match error {
                DialError::Resolve(_) => "its name cannot be resolved".to_owned(),
                DialError::Connect { message, .. } => message,
                other => other.to_string(),
            })
        })?;
        fault::point("proxy");
        proxy::tunnel(stream, target).await.map_err(failed)
    }

    async fn resolve(&self, host: &Host) -> Result<Vec<IpAddr>, DialError> {
        match host {
            Host::Address(address) => Ok(vec![*address]),
            Host::Name(name) => {
                // Relaxed, as names of machines have underscores that names of the web have not.
                let name = Name::from_str_relaxed(name)
                    .map_err(|_| DialError::Resolve("it is not a valid DNS name".to_owned()))?;
                let found = self.resolver.lookup_ip(name).await;
                found
                    .map(|found| found.iter().collect())
                    .map_err(|error| DialError::Resolve(unresolved(&error)))
            }
        }
    }
}

/// Rounds over the addresses, with one of `pauses` after each in which the last refused.
async fn connect(
    addresses: &[IpAddr],
    port: u16,
    pauses: impl IntoIterator<Item = Duration>,
) -> Result<TcpStream, DialError> {
    let mut pauses = pauses.into_iter();
    loop {
        let error = match families::connect_any(addresses, port).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        match pauses.next() {
            Some(pause) if error.kind() == io::ErrorKind::ConnectionRefused => {
                tokio::time::sleep(pause).await;
            }
            _ => return Err(DialError::Connect { port, message: error.to_string() }),
        }
    }
}

fn unusable(error: &NetError) -> DialerError {
    DialerError::Resolver(error.to_string())
}

/// In words for people: the resolver's own text of the commonest case prints its data structures.
fn unresolved(error: &NetError) -> String {
    if error.is_no_records_found() {
        return "there is no such name; check transport.http.url".to_owned();
    }
    error.to_string()
}

fn refused(error: &io::Error) -> DialError {
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    if let Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) = cause {
        let text = "what it answers is no TLS; if the port takes plain HTTP, have transport.http.url begin with http://";
        return DialError::Tls(text.to_owned());
    }
    let Some(rustls::Error::InvalidCertificate(reason)) = cause else {
        return DialError::Tls(error.to_string());
    };
    let explained = match reason {
        CertificateError::Other(other) => other.0.downcast_ref::<Untrusted>(),
        _ => None,
    };
    DialError::Untrusted(explained.map_or_else(|| reason.to_string(), ToString::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tokio::net::{TcpSocket, UdpSocket};

    #[test]
    fn a_port_that_speaks_no_tls_is_told_with_the_remedy() {
        let error = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        let text = refused(&io::Error::other(error)).to_string();
        assert!(text.contains("transport.http.url") && text.contains("http://"), "{text}");
    }

    #[tokio::test]
    async fn a_host_with_an_underscore_in_its_name_is_asked_for() {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let dialer = Dialer::with_name_server(server.local_addr().unwrap(), roots).unwrap();
        let (host, mut query) = (Host::Name("tool_box.test.".to_owned()), [0; 512]);
        let length = tokio::select! {
            found = dialer.resolve(&host) => panic!("nobody has answered yet: {found:?}"),
            asked = server.recv(&mut query) => asked.unwrap(),
        };
        let asks = |label: &[u8]| label.eq_ignore_ascii_case(b"tool_box");
        assert!(query[..length].windows(8).any(asks), "{:?}", &query[..length]);
    }

    #[tokio::test]
    async fn a_port_that_refuses_for_a_moment_is_tried_again() {
        // Bound but not listening: connections are refused until `listen`.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = socket.local_addr().unwrap();
        // A pause is asked for after a refusal only: the port listens from then on.
        let (mut socket, mut listener) = (Some(socket), None);
        let pauses = std::iter::from_fn(|| {
            listener = Some(socket.take()?.listen(1).unwrap());
            Some(Duration::ZERO)
        });
        connect(&[address.ip()], address.port(), pauses).await.expect("the port listens in the second round");
        assert!(listener.is_some(), "it refused in the first");
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_that_goes_on_refusing_is_given_up() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = socket.local_addr().unwrap();
        let error = connect(&[address.ip()], address.port(), REFUSED_PAUSES).await.unwrap_err();
        assert!(matches!(error, DialError::Connect { port, .. } if port == address.port()), "{error}");
    }
}
