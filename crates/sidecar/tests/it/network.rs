//! The way to the upstream: authorities that are trusted, proxies, redirects.

use crate::support::client::tool_call;
use crate::support::eventually;
use crate::support::harness::{Harness, spec};
use crate::support::pki::{Pki, tls_in_front_of};
use crate::support::upstream::Upstream;
use berth_sidecar::upstream::{Dialer, Proxies};
use berth_wire::{Failure, Outcome, SessionSpec, SessionState, UpstreamTls};
use http::StatusCode;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Reason and text of what a first request meets; nothing if it is served.
async fn met(harness: &Harness, uid: &str) -> Option<(String, String)> {
    let error = harness.client(uid).initialize().await.err()?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some((text(&error["data"]["reason"]), text(&error["message"])))
}

#[tokio::test]
async fn authorities_are_taken_up_by_the_next_connection_without_a_pause() {
    let (upstream, pki) = (Upstream::start().await, Pki::new());
    let certificate = pki.server("localhost");
    let (right, wrong) = (certificate.ca.clone(), Pki::new().server("localhost").ca);
    let address = tls_in_front_of(&upstream, certificate).await;
    let harness = Harness::start(2).await;
    let trusting = |uid: &str, host: &str, ca: &str, name: Option<&str>| {
        let mut spec = spec(uid, &upstream);
        spec.upstream.url = format!("https://{host}:{}/mcp", address.port());
        let tls = UpstreamTls { ca_pem: Some(ca.to_owned()), server_name: name.map(str::to_owned) };
        SessionSpec { upstream: berth_wire::Upstream { tls: Some(tls), ..spec.upstream }, ..spec }
    };
    harness.put(&trusting("s", "localhost", &wrong, None)).await;
    let (reason, text) = met(&harness, "s").await.expect("it is not trusted");
    assert_eq!(reason, "TLSUntrusted");
    assert!(text.contains("transport.http.tls.caRef"), "{text}");
    // All know what is wrong until somebody mends it.
    assert_eq!(met(&harness, "s").await.expect("still not").0, "TLSUntrusted");
    let report = harness.put(&trusting("s", "localhost", &format!("{wrong}{right}"), None)).await;
    assert_eq!((report.failure, report.next_retry_unix_millis), (None, None));
    assert_eq!(met(&harness, "s").await, None);

    harness.put(&trusting("t", "127.0.0.1", &right, Some("localhost"))).await;
    assert_eq!(met(&harness, "t").await, None, "checked by the name that is given");
    for uid in ["s", "t"] {
        harness.end_now(uid).await;
    }
    harness.assert_baseline().await;
}

/// A proxy that answers CONNECT with this head and then leads to `behind`, whatever it was asked for. Gives what it was asked.
async fn proxy(answer: &'static str, behind: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, log) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let asked = log.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let asked = asked.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await.unwrap() == 0 {
                        return;
                    }
                }
                let line = String::from_utf8(head).unwrap().lines().next().unwrap().to_owned();
                asked.lock().unwrap().push(line);
                stream.write_all(answer.as_bytes()).await.unwrap();
                if answer.contains(" 200 ") {
                    let mut to = TcpStream::connect(behind).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut to).await;
                }
            });
        }
    });
    (address, log)
}

/// CASES.md 39.
#[tokio::test]
async fn what_is_outside_goes_through_the_proxy_and_the_rest_directly() {
    let upstream = Upstream::start().await;
    let (address, asked) = proxy("HTTP/1.1 200 OK\r\n\r\n", upstream.address()).await;
    let set = |name: &str| (name == "http_proxy").then(|| format!("http://{address}"));
    let dialer = Dialer::system().unwrap().through(Proxies::read(set, "").unwrap());
    let harness = Harness::start_with(2, dialer, 96).await;
    harness.put(&spec("inside", &upstream)).await;
    assert_eq!(met(&harness, "inside").await, None);
    assert_eq!(asked.lock().unwrap().as_slice(), [""; 0]);

    let mut outside = spec("outside", &upstream);
    outside.upstream.url = "http://mcp.example.com/mcp".into();
    harness.put(&outside).await;
    let client = harness.initialized("outside").await;
    assert_eq!(client.call("session", json!({})).await["result"], json!({"session": "upstream-2"}));
    let lines = asked.lock().unwrap().clone();
    assert!(
        !lines.is_empty() && lines.iter().all(|line| line == "CONNECT mcp.example.com:80 HTTP/1.1"),
        "{lines:?}"
    );
    for uid in ["inside", "outside"] {
        harness.end_now(uid).await;
    }
    harness.assert_baseline().await;
    assert_eq!(upstream.books().deletes.len(), 2);
}

#[tokio::test]
async fn a_proxy_that_asks_for_authentication_is_told_of() {
    let upstream = Upstream::start().await;
    let (address, _) = proxy("HTTP/1.1 407 No\r\n\r\n", upstream.address()).await;
    let set = |name: &str| (name == "HTTPS_PROXY").then(|| format!("http://{address}"));
    let dialer = Dialer::system().unwrap().through(Proxies::read(set, "").unwrap());
    let harness = Harness::start_with(1, dialer, 96).await;
    let mut outside = spec("s", &upstream);
    outside.upstream.url = "https://mcp.example.com/mcp".into();
    harness.put(&outside).await;
    let (reason, text) = met(&harness, "s").await.expect("there is no way");
    assert_eq!(reason, "UpstreamUnreachable");
    assert!(text.contains(&address.to_string()) && text.contains("asks for authentication"), "{text}");
}

#[tokio::test]
async fn a_redirect_is_followed_within_the_origin_and_nowhere_else() {
    let upstream = Upstream::start().await;
    let port = upstream.address().port();
    for (path, reason, text) in [
        ("once", None, ""),
        ("thrice", None, ""),
        ("forever", Some("ProtocolError"), "more than 3 times in a row; set the final URL"),
        ("away", Some("ProtocolError"), "(307) to https://other.test, and only redirects within"),
        ("lossy", Some("ProtocolError"), "and a POST is only sent on after 307 and 308"),
    ] {
        let harness = Harness::start(1).await;
        let mut session = spec("s", &upstream);
        session.upstream.url = format!("http://127.0.0.1:{port}/{path}");
        harness.put(&session).await;
        let found = met(&harness, "s").await;
        assert_eq!(found.as_ref().map(|(reason, _)| reason.as_str()), reason, "{path}: {found:?}");
        if let Some((_, told)) = found {
            assert!(told.contains(text) && !told.contains("hunter2"), "{path}: {told}");
        }
        let before = upstream.books().deletes.len();
        harness.end_now("s").await;
        harness.assert_baseline().await;
        let ended = upstream.books().deletes.len() - before;
        assert_eq!(ended, usize::from(reason.is_none()), "{path}: the DELETE is redirected as well");
    }
    let credentials = upstream.books().credentials.clone();
    assert!(credentials.iter().all(|credential| credential == "Bearer first"), "{credentials:?}");
}

#[tokio::test]
async fn an_upstream_at_an_address_of_the_other_family_is_served() {
    let upstream = Upstream::start().await;
    let listener =
        TcpListener::bind("[::1]:0").await.expect("this test needs a machine with the address ::1");
    let (address, behind) = (listener.local_addr().unwrap(), upstream.address());
    let hosts = Arc::new(Mutex::new(Vec::new()));
    let seen = hosts.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let seen = seen.clone();
            tokio::spawn(async move {
                let (mut to, mut first) = (TcpStream::connect(behind).await.unwrap(), Vec::new());
                while !first.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
                    assert_ne!(stream.read_buf(&mut first).await.unwrap(), 0, "a whole head");
                }
                let head = String::from_utf8_lossy(&first).to_ascii_lowercase();
                let host = head.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned);
                seen.lock().unwrap().extend(host);
                to.write_all(&first).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut to).await;
            });
        }
    });
    let harness = Harness::start(1).await;
    let mut session = spec("s", &upstream);
    session.upstream.url = format!("http://[::1]:{}/mcp", address.port());
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    assert_eq!(client.call("echo", json!({"x": 1})).await["result"], json!({"x": 1}));
    assert_eq!(harness.end_now("s").await.close, Outcome::Confirmed);
    harness.assert_baseline().await;
    let hosts = hosts.lock().unwrap();
    assert!(!hosts.is_empty() && hosts.iter().all(|host| *host == address.to_string()), "{hosts:?}");
    assert_eq!(address.to_string(), format!("[::1]:{}", address.port()));
}

/// A way to an upstream that can be shut to new sockets, and cut.
struct Way {
    address: SocketAddr,
    door: JoinHandle<()>,
    cut: CancellationToken,
}

impl Way {
    async fn to(upstream: &Upstream) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, behind) = (listener.local_addr().unwrap(), upstream.address());
        let cut = CancellationToken::new();
        let cutting = cut.clone();
        let door = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let cut = cutting.clone();
                tokio::spawn(async move {
                    let mut to = TcpStream::connect(behind).await.unwrap();
                    let passed = tokio::io::copy_bidirectional(&mut stream, &mut to);
                    let _ = cut.run_until_cancelled(passed).await;
                });
            }
        });
        Self { address, door, cut }
    }

    /// Refuses new sockets from now on; those that are open stay.
    async fn shut(&mut self) {
        self.door.abort();
        assert!((&mut self.door).await.unwrap_err().is_cancelled());
    }
}

#[tokio::test]
async fn one_more_socket_that_cannot_be_opened_fails_its_own_message_and_no_more() {
    let (harness, upstream) = (Harness::start(1).await, Upstream::start().await);
    let mut way = Way::to(&upstream).await;
    let mut session = spec("s", &upstream);
    session.upstream.url = format!("http://{}/mcp", way.address);
    harness.put(&session).await;
    let client = harness.initialized("s").await;
    let call = tool_call(json!(1), "wait", &json!({}));
    let refused = async {
        upstream.until("the call", |books| books.of_method("tools/call").len() == 1).await;
        assert_eq!(harness.metrics.connections.get(), 1, "it has the only socket");
        way.shut().await;
        let news = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"});
        let (answer, (status, _)) = tokio::join!(client.call("echo", json!({})), client.json(&news));
        assert_eq!(answer["error"]["data"]["reason"], "UpstreamUnreachable", "{answer}");
        assert_eq!((&answer["error"]["code"], status), (&json!(-32050), StatusCode::BAD_GATEWAY));
        let report = &harness.list().await[0];
        let trouble = Some(Failure::UpstreamUnreachable);
        assert_eq!((report.state, report.failure), (SessionState::Connected, trouble));
        upstream.release();
    };
    let (answer, ()) = tokio::join!(client.begin(&call), refused);
    assert_eq!(answer.messages().await.pop().unwrap()["result"], json!({"waited": true}));
    // On the socket that is free again.
    assert_eq!(client.call("session", json!({})).await["result"], json!({"session": "upstream-1"}));
    assert!(upstream.books().deletes.is_empty());

    way.cut.cancel();
    eventually("no socket is left", || harness.metrics.connections.get() == 0).await;
    let answer = client.call("echo", json!({})).await;
    assert_eq!(answer["error"]["data"]["reason"], "UpstreamUnreachable", "{answer}");
    assert_eq!(harness.list().await[0].state, SessionState::Idle, "the next one has to connect");
    let answer = client.call("echo", json!({})).await;
    assert!(answer["error"]["data"]["retryAfterMillis"].is_u64(), "by the gate: {answer}");
    harness.end_now("s").await;
    harness.assert_baseline().await;
}
