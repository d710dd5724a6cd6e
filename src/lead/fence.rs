//! Lets a request to the API server pass only while this process surely leads.

use crate::lead::Lead;
use futures::future::{Either, MapErr, Ready, TryFutureExt, ready};
use http::Request;
use kube::client::Body;
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
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Either<MapErr<S::Future, fn(S::Error) -> BoxError>, Ready<Result<S::Response, BoxError>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match self.lead.term() {
            Ok(_) => Either::Left(self.inner.call(request).map_err(Into::into)),
            Err(error) => Either::Right(ready(Err(error.into()))),
        }
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
}
