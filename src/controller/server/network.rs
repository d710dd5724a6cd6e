//! Keeps the network policy of each server's pool.

use crate::found_good::{FoundGood, Key};
use crate::{api_error, namespace};
use berth_api::label;
use berth_plan::server::network::{Callers, is_current};
use berth_plan::server::validate::ValidServer;
use berth_plan::time::Moment;
use berth_plan::{name, server::network};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};

/// A policy could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read or written.
    #[error("failed to {verb} network policy {policy:?}: {}", api_error::text(source))]
    Api {
        /// What was tried.
        verb: &'static str,
        /// Name of the policy.
        policy: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// Nothing is made in a namespace that is being deleted.
    #[error("namespace {0:?} is being deleted")]
    Terminating(String),
}

impl Error {
    /// Whether nothing can be made in the namespace any more, as it is being deleted.
    pub fn is_terminating_namespace(&self) -> bool {
        match self {
            Self::Terminating(_) => true,
            Self::Api { source, .. } => api_error::is_terminating_namespace(source),
        }
    }
}

/// The policies of all pools.
pub struct Policies {
    /// Who may reach sidecars; nothing when policies are not wanted.
    callers: Option<Callers>,
    /// Those that were found right.
    good: FoundGood,
}

impl Policies {
    /// Policies that let `callers` in; without them there shall be none.
    pub fn new(callers: Option<Callers>) -> Self {
        Self { callers, good: FoundGood::default() }
    }

    /// The policies that were found right, if any are wanted.
    pub fn good(&self) -> Option<&FoundGood> {
        self.callers.as_ref().map(|_| &self.good)
    }

    /// Sees to it that the policy of a server is there and right, or that there is none when none is wanted.
    pub async fn ensure(&self, server: &ValidServer, client: &Client, now: Moment) -> Result<(), Error> {
        let name = name::network_policy(&server.key.name, &server.key.uid);
        let key = Key { namespace: server.namespace.clone(), name: name.clone() };
        if self.good.trusts(&key, now) {
            return Ok(());
        }
        let look = self.good.begin(key);
        let api: Api<NetworkPolicy> = Api::namespaced(client.clone(), &server.namespace);
        let failed = |verb| {
            let policy = name.clone();
            move |source| Error::Api { verb, policy, source: Box::new(source) }
        };
        let found = api.get_opt(&name).await.map_err(failed("read"))?;
        let wanted = self
            .callers
            .as_ref()
            .map(|callers| network::network_policy(&server.namespace, &server.key, callers));
        let held = match (wanted, found) {
            (Some(wanted), Some(found)) if is_current(&found, &wanted) => Some(found),
            (Some(wanted), _) => {
                if namespace::is_terminating(&server.namespace, client).await {
                    return Err(Error::Terminating(server.namespace.clone()));
                }
                let params = PatchParams::apply(label::FIELD_MANAGER).force();
                let applied = api.patch(&name, &params, &Patch::Apply(&wanted)).await;
                let applied = applied.map_err(failed("apply"))?;
                tracing::info!(namespace = server.namespace, policy = name, "network policy applied");
                Some(applied)
            }
            (None, Some(found)) if is_ours(&found) => {
                match api.delete(&name, &DeleteParams::default()).await {
                    Err(error) if !api_error::is_outdated(&error) => return Err(failed("delete")(error)),
                    _ => {
                        tracing::info!(namespace = server.namespace, policy = name, "network policy deleted");
                    }
                }
                None
            }
            (None, found) => found,
        };
        look.keep(held.and_then(|held| held.metadata.resource_version), now);
        Ok(())
    }
}

fn is_ours(policy: &NetworkPolicy) -> bool {
    policy.labels().get(label::MANAGED_BY).is_some_and(|manager| manager == label::MANAGER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::found_good::TRUST;
    use crate::memory_api::MemoryApi;
    use berth_plan::server::authorities::CaState;
    use berth_plan::server::validate::{SecretState, validate};
    use serde_json::json;

    const NOW: Moment = Moment(1_800_000_000_000);

    fn server() -> ValidServer {
        validate(&fixture::server("everything", &json!({})), SecretState::Missing, CaState::Missing).unwrap()
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
    async fn a_policy_that_is_told_to_have_gone_or_changed_is_set_right_once() {
        let api = MemoryApi::default();
        let policies = Policies::new(Some(callers("berth")));
        let look = async || policies.ensure(&server(), &api.client(), NOW).await.unwrap();
        look().await;
        let good = policies.good().unwrap();
        let name = name::network_policy("everything", "server");
        let key = Key { namespace: "demo".into(), name };
        let version = || api.get(&path())?["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        assert!(!good.changed(&key, version().as_deref()), "the operator's own write is no news");
        api.writes();
        let opened = || {
            let mut opened = api.get(&path()).unwrap();
            opened["spec"]["ingress"] = json!([{}]);
            api.put(&path(), opened);
        };
        for change in [&(|| api.remove(&path())) as &dyn Fn(), &opened] {
            change();
            assert!(good.changed(&key, version().as_deref()));
            look().await;
            look().await;
            assert_eq!(api.writes(), [format!("PATCH {}", path())]);
            assert!(!good.changed(&key, version().as_deref()));
        }
    }

    #[tokio::test]
    async fn a_policy_that_goes_with_its_namespace_is_not_made_again() {
        let api = MemoryApi::default();
        let metadata =
            json!({"name": "demo", "finalizers": ["x"], "deletionTimestamp": "2026-01-01T00:00:00Z"});
        api.put("/api/v1/namespaces/demo", json!({"metadata": metadata}));
        let error =
            Policies::new(Some(callers("berth"))).ensure(&server(), &api.client(), NOW).await.unwrap_err();
        assert!(error.is_terminating_namespace() && api.writes().is_empty(), "{error}");
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
