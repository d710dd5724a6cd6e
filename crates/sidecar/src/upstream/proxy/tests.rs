//! The variables, and a proxy that says this or that.

use super::*;
use tokio::net::TcpListener;

fn read(pairs: &[(&str, &str)]) -> Result<Proxies, ProxyError> {
    let get = |name: &str| pairs.iter().find(|(held, _)| *held == name).map(|(_, value)| (*value).to_owned());
    Proxies::read(get, "search demo.svc.k8s.corp svc.k8s.corp k8s.corp")
}

fn through(proxies: &Proxies, url: &str) -> Option<String> {
    proxies.of(&Target::parse(url).unwrap()).map(ToString::to_string)
}

#[test]
fn each_scheme_has_its_proxy_and_the_cluster_has_none() {
    let set = [
        ("HTTPS_PROXY", "http://secure.corp:3128"),
        ("http_proxy", "plain.corp:8080"),
        ("NO_PROXY", ".corp"),
    ];
    let proxies = read(&set).unwrap();
    assert_eq!(through(&proxies, "https://mcp.example.com/mcp").as_deref(), Some("secure.corp:3128"));
    assert_eq!(through(&proxies, "http://mcp.example.com/mcp").as_deref(), Some("plain.corp:8080"));
    for url in [
        "http://127.0.0.1:3001/",
        "http://[::1]:3001/",
        "https://x.ns.svc/",
        "http://x.ns.svc.cluster.local:80/",
        "https://x.ns.svc.k8s.corp/",
        "https://in.corp/",
    ] {
        assert_eq!(through(&proxies, url), None, "{url}");
    }
    assert_eq!(through(&read(&[]).unwrap(), "https://mcp.example.com/"), None);
}

#[test]
fn the_lower_case_counts_when_both_are_set_and_what_is_empty_is_not_set() {
    let both = [("https_proxy", "http://lower:1"), ("HTTPS_PROXY", "http://upper:2")];
    assert_eq!(through(&read(&both).unwrap(), "https://a.test/").as_deref(), Some("lower:1"));
    let empty = [("https_proxy", " "), ("HTTPS_PROXY", "http://upper:2")];
    assert_eq!(through(&read(&empty).unwrap(), "https://a.test/").as_deref(), Some("upper:2"));
}

#[test]
fn what_is_no_proxy_is_refused_by_the_name_of_its_variable_and_never_quoted() {
    for url in ["https://proxy:1", "socks5://proxy:1", "http://", "http://proxy:99999"] {
        assert_eq!(read(&[("HTTPS_PROXY", url)]), Err(ProxyError::Url("HTTPS_PROXY")), "{url}");
    }
    let refused = read(&[("http_proxy", "http://u:hunter2@proxy:1")]).unwrap_err();
    assert_eq!(refused, ProxyError::UserInfo("HTTP_PROXY"));
    assert!(!refused.to_string().contains("hunter2"));
}

/// What a proxy is asked, and what comes of its `answer`.
async fn asked(url: &str, answer: &'static str) -> (String, Result<(), String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let proxy = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut asked).await.unwrap(), 0);
        }
        stream.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8(asked).unwrap()
    };
    let target = Target::parse(url).unwrap();
    let client = async {
        let stream = TcpStream::connect(address).await.unwrap();
        tunnel(stream, &target).await.map(drop)
    };
    tokio::join!(proxy, client)
}

#[tokio::test]
async fn a_proxy_is_asked_for_host_and_port_and_for_nothing_else() {
    let (request, opened) = asked("https://mcp.example.com/mcp?q=hunter2", "HTTP/1.1 200 OK\r\n\r\n").await;
    assert_eq!(request, "CONNECT mcp.example.com:443 HTTP/1.1\r\nHost: mcp.example.com:443\r\n\r\n");
    assert_eq!(opened, Ok(()));
    let (request, _) =
        asked("http://[2001:db8::1]/", "HTTP/1.0 200 Connection established\r\nVia: x\r\n\r\n").await;
    assert!(request.starts_with("CONNECT [2001:db8::1]:80 "), "{request}");
}

#[tokio::test]
async fn a_proxy_that_does_not_open_the_way_says_why() {
    for (answer, text) in [
        ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "it asks for authentication (407)"),
        ("HTTP/1.1 403 Forbidden\r\n\r\n", "it answered 403 to CONNECT; have it let a.test:443 through"),
        ("HTTP/1.1 200 OK\r\n\r\nhello", "more came than an answer"),
        ("SSH-2.0-x\r\n\r\n", "the answer is not HTTP"),
        ("HTTP/1.1 200 OK\r\n", "the connection was closed without an answer"),
    ] {
        let error = asked("https://a.test/", answer).await.1.unwrap_err();
        assert!(error.starts_with(text), "{answer:?}: {error}");
    }
}
