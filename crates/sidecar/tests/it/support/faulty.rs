//! Upstreams that hang, each at another step of a connect.

use super::pki::Pki;
use berth_sidecar::upstream::Dialer;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};

/// Where a connect hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hang {
    /// The name server never answers.
    Resolve,
    /// The port never accepts.
    Connect,
    /// The TLS handshake is never answered.
    Tls,
    /// `initialize` is never answered.
    Head,
    /// Its answer's head comes a byte a second.
    HeadDrips,
    /// Its answer stops after the head.
    Body,
    /// Its answer's body comes a byte a second.
    BodyDrips,
    /// `notifications/initialized` is never answered.
    Initialized,
}

impl Hang {
    pub const ALL: [Self; 8] = [
        Self::Resolve,
        Self::Connect,
        Self::Tls,
        Self::Head,
        Self::HeadDrips,
        Self::Body,
        Self::BodyDrips,
        Self::Initialized,
    ];

    /// The step that the diagnostic names.
    pub fn step(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Tls => "TLS",
            Self::Head | Self::HeadDrips | Self::Body | Self::BodyDrips => "initialize",
            Self::Initialized => "notifications/initialized",
        }
    }

    /// Whether something is sent before it hangs.
    pub fn sends(self) -> bool {
        !matches!(self, Self::Resolve | Self::Connect | Self::Tls)
    }

    /// Whether the id of the upstream session is known by then.
    pub fn names_a_session(self) -> bool {
        matches!(self, Self::Body | Self::BodyDrips | Self::Initialized)
    }
}

/// What one saw.
#[derive(Default)]
pub struct Seen {
    /// Sockets, or questions for the name.
    pub reached: usize,
    /// Sessions whose ids were told.
    pub opened: Vec<String>,
    pub deletes: Vec<String>,
}

/// An upstream that hangs.
pub struct Faulty {
    pub url: String,
    seen: Arc<Mutex<Seen>>,
    name_server: Option<SocketAddr>,
    /// A port that never accepts, and the connections that fill its queue.
    _full: Option<(TcpListener, Vec<TcpStream>)>,
}

impl Faulty {
    pub async fn start(hang: Hang) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let mut faulty = Self { url: String::new(), seen: seen.clone(), name_server: None, _full: None };
        match hang {
            Hang::Resolve => {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
                faulty.name_server = Some(socket.local_addr().unwrap());
                faulty.url = "http://upstream.test/mcp".into();
                tokio::spawn(async move {
                    let mut question = [0; 512];
                    while socket.recv(&mut question).await.is_ok() {
                        seen.lock().unwrap().reached += 1;
                    }
                });
            }
            Hang::Connect => {
                let (listener, held) = full().await;
                faulty.url = format!("http://{}/mcp", listener.local_addr().unwrap());
                return Self { _full: Some((listener, held)), ..faulty };
            }
            _ => {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let scheme = if hang == Hang::Tls { "https" } else { "http" };
                faulty.url = format!("{scheme}://{}/mcp", listener.local_addr().unwrap());
                tokio::spawn(async move {
                    while let Ok((stream, _)) = listener.accept().await {
                        seen.lock().unwrap().reached += 1;
                        tokio::spawn(serve(stream, hang, seen.clone()));
                    }
                });
            }
        }
        faulty
    }

    /// A dialer that meets it.
    pub fn dialer(&self) -> Dialer {
        let roots = Pki::new().roots();
        match self.name_server {
            Some(name_server) => Dialer::with_name_server(name_server, roots).unwrap(),
            None => Dialer::with_roots(roots).unwrap(),
        }
    }

    pub fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }
}

/// A port whose queue is full: whoever connects hangs.
async fn full() -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    while let Ok(stream) = tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await
    {
        held.push(stream.unwrap());
    }
    (listener, held)
}

async fn serve(mut stream: TcpStream, hang: Hang, seen: Arc<Mutex<Seen>>) {
    if hang == Hang::Tls {
        return until_closed(&mut stream).await;
    }
    while let Some(request) = read_request(&mut stream).await {
        if request.starts_with("DELETE") {
            let lines = request.lines().filter_map(|line| line.split_once(": "));
            let session =
                lines.filter(|(name, _)| name.eq_ignore_ascii_case("mcp-session-id")).map(|(_, value)| value);
            seen.lock().unwrap().deletes.extend(session.map(str::to_owned));
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            continue;
        }
        if request.contains("notifications/initialized") || hang == Hang::Head {
            return until_closed(&mut stream).await;
        }
        let (head, body) = answer(&request, &seen, hang);
        let drip = match hang {
            Hang::HeadDrips => head,
            _ if stream.write_all(head.as_bytes()).await.is_err() => return,
            Hang::BodyDrips => body,
            Hang::Body => return until_closed(&mut stream).await,
            _ => {
                let _ = stream.write_all(body.as_bytes()).await;
                continue;
            }
        };
        for byte in drip.bytes() {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
                () = until_closed(&mut stream) => return,
            }
            if stream.write_all(&[byte]).await.is_err() {
                return;
            }
        }
    }
}

/// Head and body of the answer to `initialize`.
fn answer(request: &str, seen: &Mutex<Seen>, hang: Hang) -> (String, String) {
    let id = request.split("\"id\":").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25"}}}}"#);
    let mut seen = seen.lock().unwrap();
    let session = format!("faulty-{}", seen.opened.len() + 1);
    if hang.names_a_session() {
        seen.opened.push(session.clone());
    }
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nmcp-session-id: {session}\r\n\r\n",
        body.len()
    );
    (head, body)
}

/// One request, head and body; none when the socket is closed.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.to_ascii_lowercase();
            let length = length.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return Some(text);
            }
        }
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
}

async fn until_closed(stream: &mut TcpStream) {
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
}
