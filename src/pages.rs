//! Lists of the API server, page by page.

use kube::Api;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Objects listed in one request.
const PAGE: u32 = 500;

/// The metadata of all objects, from the API server itself: without a resource version its answer is never stale.
pub async fn metadata<K>(api: &Api<K>) -> kube::Result<Vec<PartialObjectMeta<K>>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let (mut all, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let page = api.list_metadata(&params).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::extract::Request;
    use axum::{Json, Router};
    use k8s_openapi::api::core::v1::Secret;
    use kube::{Client, ResourceExt};
    use serde_json::{Value, json};
    use std::sync::{Arc, Mutex};

    /// The page that `query` asks for, of three.
    fn page(query: &str) -> Value {
        let (names, next) = match query.split('&').find_map(|pair| pair.strip_prefix("continue=")) {
            None => (&["a", "b"][..], Some("second")),
            Some("second") => (&[][..], Some("third")),
            Some(_) => (&["c"][..], Some("")),
        };
        let items: Vec<_> = names.iter().map(|name| json!({"metadata": {"name": name}})).collect();
        json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"continue": next}, "items": items})
    }

    #[tokio::test]
    async fn every_page_is_asked_for_and_the_last_one_ends_it() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let router = Router::new().fallback(move |request: Request| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let page = page(&query);
            log.lock().unwrap().push(query);
            async move { Json(page) }
        });
        let api: Api<Secret> = Api::all(Client::new(router, "default"));
        let names: Vec<_> = metadata(&api).await.unwrap().iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["a", "b", "c"]);
        let asked = asked.lock().unwrap().clone();
        assert_eq!(asked.len(), 3);
        assert!(asked.iter().all(|query| query.contains("limit=500")), "{asked:?}");
    }
}
