//! Processes of a pod, as the node sees them.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::fs;
use tokio::process::Command;

/// Kills, with -9, the process `binary` of `pod`, which must run on this machine, as the pods of the test cluster do.
pub async fn kill(pod: &Pod, binary: &str) {
    let uid = pod.uid().expect("a pod has a UID");
    let pid = fs::read_dir("/proc")
        .expect("/proc is there")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .find(|pid| is_of(pid, &uid, binary))
        .unwrap_or_else(|| panic!("{binary} of pod {} runs on this machine", pod.name_any()));
    let killed = Command::new("kill").args(["-9", &pid]).status().await.expect("kill runs");
    assert!(killed.success(), "{binary}, pid {pid}, can be killed");
}

fn is_of(pid: &str, pod_uid: &str, binary: &str) -> bool {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    command.starts_with(format!("/{binary}\0").as_bytes()) && cgroups.contains(pod_uid)
}
