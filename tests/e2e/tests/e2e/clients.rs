//! The official clients through the gateway, in front of the real reference server.

use berth_e2e::{TestNamespace, eventually, gateway_url, in_namespace, mcp_server, session};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::process::Command;

const MANIFEST: &str = include_str!("../../../servers/everything/everything.yaml");

async fn start_everything(namespace: &TestNamespace) -> String {
    let image = std::env::var("BERTH_IMAGE_EVERYTHING")
        .expect("BERTH_IMAGE_EVERYTHING names server-everything's image");
    for document in MANIFEST.replace("IMAGE_EVERYTHING", &image).split("\n---") {
        let object: Value = serde_saphyr::from_str(document).expect("the manifest is YAML");
        match object["kind"].as_str() {
            Some("Deployment") => drop(namespace.create::<Deployment>(object).await),
            Some("Service") => drop(namespace.create::<Service>(object).await),
            other => panic!("the manifest holds {other:?}"),
        }
    }
    eventually("server-everything is ready", Duration::from_secs(90), || async {
        let everything = namespace.api::<Deployment>().get("everything").await.unwrap();
        (everything.status?.ready_replicas? == 1).then_some(())
    })
    .await;
    format!("http://everything.{}.svc:3001/mcp", namespace.name)
}

/// Runs a client script with the URL, a token and one call of `echo`; gives what it printed.
async fn run(variable: &str, url: &str, token: &str) -> String {
    let command =
        std::env::var(variable).unwrap_or_else(|_| panic!("{variable} names the command of the client"));
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().expect("a command"))
        .args(words)
        .args([url, token, "echo", r#"{"message": "through berth"}"#])
        .output()
        .await
        .expect("the client runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command}: {out}{err}");
    out.into_owned()
}

#[tokio::test]
async fn the_official_clients_list_and_call_the_tools_of_server_everything() {
    in_namespace("clients", |namespace| async move {
        let url = start_everything(&namespace).await;
        mcp_server(&namespace, "everything", &url, json!({})).await;
        session(&namespace, "s", "alice", &["everything"]).await;
        let token = namespace.token("alice").await;
        let url = format!("{}/{}/s/everything/mcp", gateway_url(), namespace.name);
        for client in ["BERTH_CLIENT_PYTHON", "BERTH_CLIENT_TYPESCRIPT"] {
            let printed = run(client, &url, &token).await;
            assert!(printed.contains("through berth"), "{client}: {printed}");
            assert!(
                printed.contains("get-sum") || printed.contains("echo"),
                "{client} lists tools: {printed}"
            );
        }
    })
    .await;
}
