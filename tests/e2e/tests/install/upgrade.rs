//! Upgrades, rollbacks and an uninstall of the kinds' chart lose no session (CASES.md 32).

use crate::helm::{Values, charts, copied_charts, helm};
use berth_api::AgentSession;
use berth_e2e::{
    McpClient, Probe, TestNamespace, eventually, in_namespace, kubectl, mcp_server, session,
    system_namespace, used_session,
};
use futures::FutureExt;
use kube::ResourceExt;
use serde_json::json;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::time::Duration;

/// A copy of the charts as a next version: another version number, and kinds with a field of status and a value of an enum that
/// this version does not know.
fn next_version(into: &Path) {
    copied_charts(into);
    for chart in ["berth", "berth-crds"] {
        edit(&into.join(format!("charts/{chart}/Chart.yaml")), "version: 0.1.0", "version: 0.2.0");
    }
    let crds = into.join("charts/berth-crds/templates");
    let servers = crds.join("berth.dev_mcpservers.yaml");
    edit(
        &servers,
        "              freeSlots:\n",
        "              addedLater:\n                type: string\n              freeSlots:\n",
    );
    edit(
        &crds.join("berth.dev_agentsessions.yaml"),
        "                    - Expired\n",
        "                    - Expired\n                    - AddedLater\n",
    );
}

fn edit(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{} has {from:?}", file.display());
    fs::write(file, text.replace(from, to)).unwrap();
}

/// Waits until the field that only the next version has is known, or is not: the API server publishes what it serves a moment after
/// a definition changes.
async fn explained(what: &str, known: bool) {
    eventually(what, Duration::from_mins(1), || async {
        let explained = kubectl(&["explain", "mcpserver.status.addedLater"], "").await;
        (explained.ok == known).then_some(())
    })
    .await;
}

/// Without the chart of the kinds, the kinds are there, a session that is serves on, and another one is placed and ended.
async fn kinds_and_sessions_stay(namespace: &TestNamespace, client: &McpClient) {
    let named = ["get", "crd", "agentsessions.berth.dev", "mcpservers.berth.dev", "-o", "name"];
    let kinds = kubectl(&named, "").await;
    assert_eq!((kinds.ok, kinds.out.lines().count()), (true, 2), "{kinds:?}");
    assert_eq!(client.call("echo", json!({"message": "without the chart"})).await, "without the chart");
    let another = session(namespace, "another", "alice", &["probe"]).await;
    namespace.end(&another, Duration::from_mins(1)).await;
}

#[tokio::test]
async fn an_upgrade_a_rollback_and_an_uninstall_of_the_kinds_lose_no_session() {
    in_namespace("upgrade", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        mcp_server(&namespace, "probe", &probe.url(), json!({})).await;
        let token = namespace.token("alice").await;
        let made = used_session(&namespace, "s", &token).await;
        let mut client = McpClient::new(&namespace.name, "s", "probe", &token);
        client.initialize().await;
        let values = Values::of_release().await;
        let next = tempfile::tempdir().unwrap();
        next_version(next.path());

        values.install(&next.path().join("charts"), &["--set", "log.level=info"]).await;
        explained("the next version's kinds are served", true).await;
        assert_eq!(client.call("echo", json!({"message": "after the upgrade"})).await, "after the upgrade");
        let tested = helm(&["test", "berth", "-n", &system_namespace(), "--logs"]).await;
        assert!(tested.contains("Succeeded"), "{tested}");

        for release in ["berth", "berth-crds"] {
            helm(&["rollback", release, "-n", &system_namespace(), "--wait"]).await;
        }
        explained("this version's kinds are served again", false).await;
        assert_eq!(client.call("echo", json!({"message": "after the rollback"})).await, "after the rollback");

        helm(&["uninstall", "berth-crds", "-n", &system_namespace(), "--wait"]).await;
        let kept = AssertUnwindSafe(kinds_and_sessions_stay(&namespace, &client)).catch_unwind().await;
        values.install(&charts(), &[]).await;
        kept.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert_eq!(client.call("echo", json!({"message": "with it again"})).await, "with it again");

        let held = namespace.api::<AgentSession>().get("s").await.unwrap();
        assert_eq!((held.uid(), probe.books().await.total("initialize")), (made.uid(), 1));
        namespace.end(&made, Duration::from_mins(1)).await;
        assert_eq!(probe.books().await.total("delete"), 1);
    })
    .await;
}
