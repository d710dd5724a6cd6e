//! Keeps the network policy of each server's pool.

use crate::api_error;
use berth_api::label;
use berth_plan::server::network::{Callers, is_current};
use berth_plan::server::validate::ValidServer;
use berth_plan::time::Moment;
use berth_plan::{name, server::network};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a policy that was found right is not looked at again.
const TRUST: Duration = Duration::from_mins(10);

/// A policy could not be kept.
#[derive(Debug, thiserror::Error)]
#[error("failed to {verb} network policy {policy:?}: {}", api_error::text(source))]
pub struct Error {
    verb: &'static str,
    policy: String,
    source: Box<kube::Error>,
}

impl Error {
    /// Whether nothing can be made in the namespace any more, as it is being deleted.
    pub fn is_terminating_namespace(&self) -> bool {
        api_error::is_terminating_namespace(&self.source)
    }
}

/// The policies of all pools.
pub struct Policies {
    /// Who may reach sidecars; nothing when policies are not wanted.
    callers: Option<Callers>,
    /// When the policy of each server, by UID, was last found right.
    good: Mutex<HashMap<String, Moment>>,
}

impl Policies {
    /// Policies that let `callers` in; without them there shall be none.
    pub fn new(callers: Option<Callers>) -> Self {
        Self { callers, good: Mutex::default() }
    }

    /// Sees to it that the policy of a server is there and right, or that there is none when none is wanted.
    pub async fn ensure(&self, server: &ValidServer, client: &Client, now: Moment) -> Result<(), Error> {
        let uid = &server.key.uid;
        if self.book(|good| good.get(uid).is_some_and(|seen| seen.plus(TRUST) > now)) {
            return Ok(());
        }
        let name = name::network_policy(&server.key.name, uid);
        let api: Api<NetworkPolicy> = Api::namespaced(client.clone(), &server.namespace);
        let failed = |verb| {
            let policy = name.clone();
            move |source| Error { verb, policy, source: Box::new(source) }
        };
        let found = api.get_opt(&name).await.map_err(failed("read"))?;
        match &self.callers {
            Some(callers) => {
                let wanted = network::network_policy(&server.namespace, &server.key, callers);
                if !found.is_some_and(|found| is_current(&found, &wanted)) {
                    let params = PatchParams::apply(label::FIELD_MANAGER).force();
                    api.patch(&name, &params, &Patch::Apply(&wanted)).await.map_err(failed("apply"))?;
                    tracing::info!(namespace = server.namespace, policy = name, "network policy applied");
                }
            }
            None if found.as_ref().is_some_and(is_ours) => {
                match api.delete(&name, &DeleteParams::default()).await {
                    Err(error) if !api_error::is_outdated(&error) => return Err(failed("delete")(error)),
                    _ => {
                        tracing::info!(namespace = server.namespace, policy = name, "network policy deleted");
                    }
                }
            }
            None => {}
        }
        self.book(|good| {
            // One of servers that are gone is cleared here.
            good.retain(|_, seen| seen.plus(TRUST) > now);
            good.insert(uid.clone(), now);
        });
        Ok(())
    }

    fn book<T>(&self, step: impl FnOnce(&mut HashMap<String, Moment>) -> T) -> T {
        step(&mut self.good.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn is_ours(policy: &NetworkPolicy) -> bool {
    policy.labels().get(label::MANAGED_BY).is_some_and(|manager| manager == label::MANAGER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::memory_api::MemoryApi;
    use berth_plan::server::validate::{SecretState, validate};
    use serde_json::json;

    const NOW: Moment = Moment(1_800_000_000_000);

    fn server() -> ValidServer {
        validate(&fixture::server("everything", &json!({})), SecretState::Missing).unwrap()
    }

    fn callers(part: &str) -> Callers {
        let labels = [("app.kubernetes.io/part-of".to_owned(), part.to_owned())].into();
        Callers { namespace: "berth-system".into(), labels }
    }

    fn path() -> String {
        let name = name::network_policy("everything", "server");
        format!("/apis/networking.k8s.io/v1/namespaces/demo/networkpolicies/{name}")
    }

    #[tokio::test]
    async fn a_policy_is_written_once_and_again_when_it_is_not_right() {
        let api = MemoryApi::default();
        let policies = Policies::new(Some(callers("berth")));
        let look = async |now| policies.ensure(&server(), &api.client(), now).await.unwrap();
        look(NOW).await;
        look(NOW).await;
        look(NOW.plus(TRUST)).await;
        assert_eq!(api.writes(), [format!("PATCH {}", path())]);
        let mut opened = api.get(&path()).unwrap();
        opened["spec"]["ingress"] = json!([{}]);
        api.put(&path(), opened);
        look(NOW.plus(TRUST * 2)).await;
        assert_eq!(api.writes(), [format!("PATCH {}", path())]);
        // Another release, or other labels of the pods: a process that begins anew sets all right.
        Policies::new(Some(callers("other"))).ensure(&server(), &api.client(), NOW).await.unwrap();
        assert_eq!(api.writes().len(), 1);
    }

    #[tokio::test]
    async fn a_policy_that_is_not_wanted_any_more_goes_unless_it_is_somebody_elses() {
        let api = MemoryApi::default();
        Policies::new(Some(callers("berth"))).ensure(&server(), &api.client(), NOW).await.unwrap();
        let none = || Policies::new(None);
        none().ensure(&server(), &api.client(), NOW).await.unwrap();
        assert!(api.paths().is_empty());
        let policy = json!({"metadata": {"name": "x", "namespace": "demo"}});
        api.put(&path(), policy);
        api.writes();
        none().ensure(&server(), &api.client(), NOW).await.unwrap();
        assert!(api.writes().is_empty());
    }

    #[tokio::test]
    async fn a_refusal_for_a_namespace_that_is_being_deleted_is_told_apart() {
        let (api, terminating) = (MemoryApi::default(), |causes| {
            let (code, mut status) = fixture::failure(403, "Forbidden", "being terminated");
            status["details"] = json!({"causes": causes});
            (code, status)
        });
        api.rule(move |method, _| {
            let cause = json!([{"reason": "NamespaceTerminating", "message": "", "field": ""}]);
            (method == http::Method::PATCH).then(|| terminating(cause))
        });
        let error =
            Policies::new(Some(callers("berth"))).ensure(&server(), &api.client(), NOW).await.unwrap_err();
        assert!(error.is_terminating_namespace(), "{error}");
    }
}
