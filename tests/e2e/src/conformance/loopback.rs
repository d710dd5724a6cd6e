//! A port on loopback that leads to a pod, or to the gateway with a bearer added: for programs that can do neither.

use crate::gateway_url;
use http::header::{AUTHORIZATION, CONNECTION, HeaderValue, TRANSFER_ENCODING};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as HttpClient, Error};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use std::future::Future;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A port that is open until this is dropped.
#[derive(Debug)]
pub struct Loopback {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Loopback {
    /// Leads to a port of a pod, byte for byte.
    pub async fn to_pod(client: &Client, namespace: &str, pod: &str, port: u16) -> Self {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let pod = pod.to_owned();
        Self::open(move |stream| splice(pods.clone(), pod.clone(), port, stream)).await
    }

    /// Leads to the gateway. Every request gets this bearer; all else passes as it is, Host and Origin too, and bodies as
    /// streams.
    pub async fn to_gateway(token: &str) -> Self {
        let client: HttpClient<HttpConnector, Incoming> =
            HttpClient::builder(TokioExecutor::new()).build_http();
        let bearer = HeaderValue::try_from(format!("Bearer {token}")).expect("a token is a header's value");
        Self::open(move |stream| {
            let (client, bearer) = (client.clone(), bearer.clone());
            let service = service_fn(move |request| pass_on(client.clone(), bearer.clone(), request));
            async move {
                // The end of a connection is its client's matter.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            }
        })
        .await
    }

    /// URL of a path there.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn open<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port on loopback");
        let address = listener.local_addr().expect("it has an address");
        let task = tokio::spawn(async move {
            // They end with this task.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream));
            }
        });
        Self { address, task }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn splice(pods: Api<Pod>, pod: String, port: u16, mut stream: TcpStream) {
    let mut forward = pods.portforward(&pod, &[port]).await.expect("the pod's port can be reached");
    let mut far = forward.take_stream(port).expect("the port was asked for");
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut far).await;
}

async fn pass_on(
    client: HttpClient<HttpConnector, Incoming>,
    bearer: HeaderValue,
    mut request: Request<Incoming>,
) -> Result<Response<Incoming>, Error> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let uri: Uri = format!("{}{path}", gateway_url()).parse().expect("the gateway has a URL");
    *request.uri_mut() = uri;
    request.headers_mut().insert(AUTHORIZATION, bearer);
    // What is between two neighbours only.
    request.headers_mut().remove(CONNECTION);
    let mut response = client.request(request).await?;
    response.headers_mut().remove(CONNECTION);
    response.headers_mut().remove(TRANSFER_ENCODING);
    Ok(response)
}
