//! Lets a request to the API server pass only while this process surely leads.

use crate::lead::Lead;
use http::Request;
use kube::client::Body;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use tower::{BoxError, Layer, Service};

/// Puts the fence before a client.
#[derive(Clone)]
pub struct Fence(pub Lead);

impl<S> Layer<S> for Fence {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Fenced<S> {
        Fenced { lead: self.0.clone(), inner }
    }
}

/// A client behind the fence.
#[derive(Clone)]
pub struct Fenced<S> {
    lead: Lead,
    inner: S,
}

impl<S> Service<Request<Body>> for Fenced<S>
where
    S: Service<Request<Body>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let lead = self.lead.clone();
        if let Err(error) = lead.term() {
            return Box::pin(std::future::ready(Err(error.into())));
        }
        let mut answer = Box::pin(self.inner.call(request));
        // Looked at each time that the request goes on, since it may be on its way to the API server when the term runs out.
        Box::pin(poll_fn(move |cx| match lead.term() {
            Ok(_) => answer.as_mut().poll(cx).map_err(Into::into),
            Err(error) => Poll::Ready(Err(error.into())),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use k8s_openapi::api::core::v1::Namespace;
    use kube::{Api, Client};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn nothing_reaches_the_api_server_once_the_lead_is_lost() {
        let asked = Arc::new(AtomicU32::new(0));
        let counts = asked.clone();
        let router = Router::new().fallback(move || {
            counts.fetch_add(1, Ordering::Relaxed);
            async { axum::Json(serde_json::json!({"metadata": {"name": "demo"}})) }
        });
        let lead = Lead::for_test(1);
        let client = Client::new(Fence(lead.clone()).layer(router), "default");
        let api = Api::<Namespace>::all(client);
        api.get("demo").await.unwrap();
        lead.lose();
        let error = api.get("demo").await.unwrap_err();
        assert!(crate::api_error::text(&error).contains("does not lead any more"), "{error}");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_request_that_waits_for_its_connection_when_the_lead_is_lost_goes_no_further() {
        let lead = Lead::for_test(1);
        let connected = Arc::new(tokio::sync::Notify::new());
        let (asked, waits) = (Arc::new(AtomicU32::new(0)), connected.clone());
        let counts = asked.clone();
        let mut fenced = Fence(lead.clone()).layer(tower::service_fn(move |_: Request<Body>| {
            let (waits, counts) = (waits.clone(), counts.clone());
            async move {
                waits.notified().await;
                counts.fetch_add(1, Ordering::Relaxed);
                Ok::<_, BoxError>(())
            }
        }));
        let mut request = tokio::spawn(fenced.call(Request::new(Body::empty())));
        assert!(tokio::time::timeout(std::time::Duration::from_millis(10), &mut request).await.is_err());
        lead.lose();
        connected.notify_one();
        assert!(request.await.unwrap().is_err());
        assert_eq!(asked.load(Ordering::Relaxed), 0);
    }
}
