//! Helm as a user runs it, on the release that `hack/install.sh` made.

use berth_e2e::{eventually, gateway_url, system_namespace, try_post};
use futures::FutureExt;
use serde_json::json;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// Where the charts are.
pub fn charts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts").canonicalize().expect("the charts are there")
}

/// A copy of them in the folder `into`, for a test to change.
pub fn copied_charts(into: &Path) -> PathBuf {
    let copied = std::process::Command::new("cp").arg("-r").arg(charts()).arg(into.join("charts")).status();
    assert!(copied.expect("cp runs").success());
    into.join("charts")
}

/// Runs helm and gives what it printed; fails the test when it fails.
pub async fn helm(arguments: &[&str]) -> String {
    try_helm(arguments).await.unwrap_or_else(|printed| panic!("helm {arguments:?}: {printed}"))
}

/// Runs helm; what it printed, as an error when it failed.
pub async fn try_helm(arguments: &[&str]) -> Result<String, String> {
    let output =
        Command::new("helm").args(arguments).stdin(Stdio::null()).output().await.expect("helm is on PATH");
    let printed =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(printed) } else { Err(printed) }
}

/// The values of the release that is installed now, in a file.
pub struct Values(tempfile::NamedTempFile);

impl Values {
    /// Keeps them.
    pub async fn of_release() -> Self {
        let values = helm(&["get", "values", "berth", "-n", &system_namespace(), "-o", "json"]).await;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), values).unwrap();
        Self(file)
    }

    /// The file.
    pub fn path(&self) -> String {
        self.0.path().to_str().expect("a path of text").to_owned()
    }

    /// Installs or upgrades Berth from `charts` with these values and `more`.
    pub async fn install(&self, charts: &Path, more: &[&str]) {
        let namespace = system_namespace();
        let crds = charts.join("berth-crds");
        helm(&["upgrade", "--install", "berth-crds", crds.to_str().unwrap(), "-n", &namespace, "--wait"])
            .await;
        let (chart, values) = (charts.join("berth"), self.path());
        let mut arguments = vec!["upgrade", "--install", "berth", chart.to_str().unwrap(), "-n", &namespace];
        arguments.extend(["--values", &values, "--wait", "--timeout", "3m"]);
        arguments.extend(more);
        helm(&arguments).await;
        gateway_answers().await;
    }

    /// Runs `work` while Berth has `more` values, and takes these away whatever becomes of it.
    pub async fn with(&self, more: &[&str], work: impl Future<Output = ()>) {
        let work = async {
            self.install(&charts(), more).await;
            work.await;
        };
        let outcome = AssertUnwindSafe(work).catch_unwind().await;
        self.install(&charts(), &[]).await;
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

/// Waits until the gateway is reached from outside: Helm waits for pods, and not for the ways to them.
pub async fn gateway_answers() {
    eventually("the gateway answers", Duration::from_mins(1), || async {
        try_post(&gateway_url(), &[], &json!({})).await.ok()
    })
    .await;
}
