//! A client to the API server, built of kube's own layers, whose connections read into buffers of one size.
//!
//! By itself hyper makes the buffer of a connection larger while bytes come fast, up to 400 KiB, and never smaller again. Watches
//! keep their connections for the life of the process, so each burst of events that was larger than all before would stay in its
//! memory, and a leak could not be told from it.

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::{Body, ClientBuilder, ConfigExt};
use tower::util::BoxService;
use tower::{BoxError, ServiceBuilder, ServiceExt};

/// The buffer that a connection reads into, in bytes: what one TLS record holds at most. The head of an answer has to fit in.
const READ_BUFFER: usize = 16 * 1024;

/// What a client sends its requests through.
pub type Stack = BoxService<Request<Body>, Response<Incoming>, BoxError>;

/// A builder of a client as `config` says, for layers of one's own. It never sends a request again that may have reached the API
/// server, whatever `config.default_retry` says: callers have pauses and bounds of their own. One of which nothing was written,
/// as its connection had been closed while it was unused, goes over another, as with kube's own client.
///
/// # Errors
/// What is wrong with the certificates or credentials that `config` names; or that it names a proxy, which would be passed by.
pub fn builder(config: &Config) -> Result<ClientBuilder<Stack>, kube::Error> {
    if let Some(proxy) = &config.proxy_url {
        let text = format!(
            "the API server cannot be asked through the proxy {proxy}; remove proxy-url from the kubeconfig, or HTTPS_PROXY from the environment"
        );
        return Err(kube::Error::Service(text.into()));
    }
    let mut connector = TimeoutConnector::new(config.rustls_https_connector()?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let client = legacy::Client::builder(TokioExecutor::new())
        .http1_read_buf_exact_size(READ_BUFFER)
        .build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(ClientBuilder::new(service.boxed(), config.default_namespace.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// An answer of that many bytes, and of a head with one header of that many.
    async fn asked(body: usize, header: usize) -> Result<String, kube::Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let mut stream = listener.accept().await.unwrap().0;
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            let (large, text) = ("h".repeat(header), "x".repeat(body));
            let answer = format!("HTTP/1.1 200 OK\r\nlarge: {large}\r\ncontent-length: {body}\r\n\r\n{text}");
            // A client that has had enough of it leaves.
            let _ = stream.write_all(answer.as_bytes()).await;
            String::from_utf8_lossy(&request[..read]).into_owned()
        });
        let client = builder(&Config::new(url.parse().unwrap())).unwrap().build();
        let answer = client.request_text(Request::get("/version").body(Vec::new()).unwrap()).await;
        assert!(server.await.unwrap().starts_with("GET /version HTTP/1.1"));
        answer
    }

    #[tokio::test]
    async fn an_answer_of_any_size_comes_whole_and_a_head_is_bounded() {
        for size in [0, 1, READ_BUFFER - 1, READ_BUFFER, 3 * READ_BUFFER + 7, 4 * 1024 * 1024] {
            assert_eq!(asked(size, 10).await.unwrap().len(), size);
        }
        assert_eq!(asked(1, READ_BUFFER / 2).await.unwrap(), "x");
        assert!(asked(1, 2 * READ_BUFFER).await.is_err());
    }

    #[tokio::test]
    async fn a_proxy_is_an_error_that_names_it_and_not_passed_by() {
        let mut config = Config::new("http://127.0.0.1:1".parse().unwrap());
        config.proxy_url = Some("http://proxy.test:3128".parse().unwrap());
        let error = builder(&config).err().expect("it is no client").to_string();
        assert!(error.contains("http://proxy.test:3128"), "{error}");
    }

    #[tokio::test]
    async fn a_request_that_was_sent_and_not_answered_is_not_sent_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let mut stream = listener.accept().await.unwrap().0;
            for answer in ["HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx", ""] {
                assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            listener
        });
        let client = builder(&Config::new(url.parse().unwrap())).unwrap().build();
        let ask = async || client.request_text(Request::get("/version").body(Vec::new()).unwrap()).await;
        assert_eq!(ask().await.unwrap(), "x");
        // The connection is one that was used before, which is where a client may think of another.
        assert!(ask().await.is_err());
        let another = server.await.unwrap().into_std().unwrap().accept();
        assert_eq!(another.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
}
