//! `kubectl explain` reads well: every field says what it is for.

use berth_e2e::{in_namespace, kubectl};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use serde_json::Value;

#[tokio::test]
async fn explain_shows_every_field_of_both_specs_with_its_text() {
    for (kind, fields) in [
        ("agentsession.spec", &["subject", "servers", "bindTimeout", "drainTimeout", "end"][..]),
        ("agentsession.spec.servers", &["name", "credential"][..]),
        ("mcpserver.spec", &["transport", "onStateLost", "auth", "timeouts", "limits", "pool"][..]),
        ("mcpserver.spec.auth", &["type", "shared", "session"][..]),
        ("mcpserver.spec.limits", &["requestBytes", "responseBytes", "concurrentCalls", "queuedCalls"][..]),
        ("mcpserver.spec.transport.http.tls", &["caRef", "serverName"][..]),
    ] {
        let printed = kubectl(&["explain", kind], "").await;
        assert!(printed.ok, "{printed:?}");
        assert!(!printed.out.contains("<no description>"), "{}", printed.out);
        for field in fields {
            assert!(
                printed.out.lines().any(|line| line.trim_start().starts_with(field)),
                "{field} in {}",
                printed.out
            );
        }
    }
}

#[tokio::test]
async fn every_property_of_both_kinds_has_a_description() {
    in_namespace("explain", |namespace| async move {
        let crds: Api<CustomResourceDefinition> = Api::all(namespace.client.clone());
        for name in ["agentsessions.berth.dev", "mcpservers.berth.dev"] {
            let crd = crds.get(name).await.expect("the CRD is installed");
            let schema =
                serde_json::to_value(&crd.spec.versions[0].schema).unwrap()["openAPIV3Schema"].clone();
            let (mut seen, mut bare) = (0, Vec::new());
            for part in ["spec", "status"] {
                walk(part, &schema["properties"][part], &mut seen, &mut bare);
            }
            assert!(seen > 15, "{name}: the walk found only {seen} properties");
            assert!(bare.is_empty(), "{name}: no description on {bare:?}");
        }
    })
    .await;
}

fn walk(path: &str, schema: &Value, seen: &mut usize, bare: &mut Vec<String>) {
    *seen += 1;
    if schema["description"].as_str().is_none_or(str::is_empty) {
        bare.push(path.to_owned());
    }
    let inner = if schema["type"] == "array" { &schema["items"] } else { schema };
    for (name, property) in inner["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), property, seen, bare);
    }
}

#[tokio::test]
async fn short_names_and_category_list_both_kinds() {
    in_namespace("names", |namespace| async move {
        for kinds in ["bsrv", "bses", "berth"] {
            let printed = kubectl(&["get", kinds, "-n", &namespace.name], "").await;
            assert!(printed.ok, "kubectl get {kinds}: {printed:?}");
        }
    })
    .await;
}
