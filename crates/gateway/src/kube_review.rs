//! Reviews by the API server: TokenReview and SubjectAccessReview.

use crate::authenticate::{TokenReviewer, User};
use crate::authorize::AccessReviewer;
use crate::review::ReviewError;
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};

/// Asks the API server. Both kinds of review need a `ClusterRole` that may `create` them (`system:auth-delegator` has both).
pub struct KubeReviewer {
    client: Client,
    audience: String,
}

impl KubeReviewer {
    /// A reviewer that accepts tokens for `audience`. Give it a client without retries: the time of a review is bounded.
    pub fn new(client: Client, audience: String) -> Self {
        Self { client, audience }
    }
}

impl TokenReviewer for KubeReviewer {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, ReviewError>> {
        async move {
            let spec =
                TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![self.audience.clone()]) };
            let review = TokenReview { spec, ..TokenReview::default() };
            let api = Api::<TokenReview>::all(self.client.clone());
            let answer = api.create(&PostParams::default(), &review).await.map_err(failed)?;
            Ok(accepted(answer.status.unwrap_or_default(), &self.audience))
        }
        .boxed()
    }
}

impl AccessReviewer for KubeReviewer {
    fn may_connect<'a>(
        &'a self,
        user: &'a User,
        namespace: &'a str,
        session: &'a str,
    ) -> BoxFuture<'a, Result<bool, ReviewError>> {
        async move {
            let review = SubjectAccessReview {
                spec: access(user, namespace, session),
                ..SubjectAccessReview::default()
            };
            let api = Api::<SubjectAccessReview>::all(self.client.clone());
            let answer = api.create(&PostParams::default(), &review).await.map_err(failed)?;
            Ok(answer.status.is_some_and(|status| status.allowed))
        }
        .boxed()
    }
}

/// The user of a review that accepted the token for our audience. An authenticator that knows no audiences answers with
/// none, and its token is then one for the API server, not for us.
fn accepted(status: TokenReviewStatus, audience: &str) -> Option<User> {
    let ours = status.audiences.is_some_and(|audiences| audiences.iter().any(|known| known == audience));
    if status.authenticated != Some(true) || !ours {
        return None;
    }
    let user = status.user?;
    Some(User {
        name: user.username.filter(|name| !name.is_empty())?,
        uid: user.uid.unwrap_or_default(),
        groups: user.groups.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
    })
}

fn access(user: &User, namespace: &str, session: &str) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: Some(user.name.clone()),
        uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
        groups: Some(user.groups.clone()),
        extra: Some(user.extra.clone()),
        resource_attributes: Some(ResourceAttributes {
            group: Some(berth_api::GROUP.to_owned()),
            resource: Some("agentsessions".to_owned()),
            subresource: Some("connect".to_owned()),
            verb: Some("create".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(session.to_owned()),
            ..ResourceAttributes::default()
        }),
        ..SubjectAccessReviewSpec::default()
    }
}

/// The API server's own words only: the whole error can be long.
fn failed(error: kube::Error) -> ReviewError {
    ReviewError::Api(match error {
        kube::Error::Api(status) => status.message,
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::authentication::v1::UserInfo;

    fn status(authenticated: Option<bool>, audiences: &[&str], name: &str) -> TokenReviewStatus {
        TokenReviewStatus {
            authenticated,
            audiences: Some(audiences.iter().map(ToString::to_string).collect()),
            user: Some(UserInfo { username: Some(name.into()), ..UserInfo::default() }),
            error: None,
        }
    }

    #[test]
    fn a_token_counts_only_when_it_is_valid_for_our_audience() {
        assert_eq!(accepted(status(Some(true), &["berth"], "alice"), "berth").unwrap().name, "alice");
        for refused in [
            status(Some(false), &["berth"], "alice"),
            status(None, &["berth"], "alice"),
            status(Some(true), &[], "alice"),
            status(Some(true), &["https://kubernetes.default.svc"], "alice"),
            status(Some(true), &["berth"], ""),
            TokenReviewStatus::default(),
        ] {
            assert_eq!(accepted(refused.clone(), "berth"), None, "{refused:?}");
        }
    }

    #[test]
    fn the_access_asked_for_is_create_on_connect_of_that_session() {
        let spec =
            access(&User { name: "bob".into(), groups: vec!["ops".into()], ..User::default() }, "demo", "s1");
        let asked = spec.resource_attributes.unwrap();
        assert_eq!((spec.user.as_deref(), spec.groups), (Some("bob"), Some(vec!["ops".to_owned()])));
        assert_eq!((asked.group.as_deref(), asked.verb.as_deref()), (Some("berth.dev"), Some("create")));
        assert_eq!(
            (asked.resource.as_deref(), asked.subresource.as_deref()),
            (Some("agentsessions"), Some("connect"))
        );
        assert_eq!((asked.namespace.as_deref(), asked.name.as_deref()), (Some("demo"), Some("s1")));
    }
}
