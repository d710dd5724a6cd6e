//! Operators as installed, but as processes of this machine, which hear of every change late.

use crate::inside::{inside, node_address};
use crate::way::{Moment, Way};
use crate::{Process, eventually, leader, lease, system_namespace};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::Api;
use kube::{Client, Config};
use serde_json::json;
use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::timeout;

/// Lines of each log that a failed test shows.
const TOLD: usize = 80;
/// How long there may be none that leads, after a test that killed one.
const LEADER_BOUND: Duration = Duration::from_mins(1);

/// What such operators have in common.
pub struct LateOperators {
    /// The API server's, as the ServiceAccount of the operator.
    client: Client,
    namespace: String,
    delay: Duration,
    /// Arguments and environment of the installed ones.
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// The node's address.
    address: IpAddr,
    /// The program, the logs and the kubeconfigs.
    files: TempDir,
    started: AtomicU32,
}

/// One that runs. It is killed when this is dropped.
pub struct LateOperator {
    pod: String,
    child: Child,
    way: Arc<Way>,
}

impl LateOperators {
    /// The program, settings and rights of the operator that leads now; what happens in `namespace` is what ends their ways.
    pub async fn as_installed(client: &Client, namespace: &str, delay: Duration) -> Self {
        let running = eventually("the leader runs on this machine", LEADER_BOUND, || async {
            let (_, pod) = leader(client).await;
            Process::find(&pod, "berth-operator")
        })
        .await;
        let files = tempfile::tempdir().unwrap();
        fs::copy(running.link("exe"), files.path().join("berth-operator")).expect("its program can be read");

        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &system_namespace());
        let spec = deployments.get("berth-operator").await.unwrap().spec.template.spec.unwrap();
        let account = spec.service_account_name.expect("the operator has an account");
        let container = spec.containers.into_iter().next().unwrap();
        let args = container.args.unwrap_or_default();
        let env = container.env.unwrap_or_default();

        let mut config = Config::infer().await.unwrap();
        // What is sent again is the operator's affair.
        config.default_retry = false;
        let user = format!("system:serviceaccount:{}:{account}", system_namespace());
        config.headers.push(("impersonate-user".parse().unwrap(), user.parse().unwrap()));
        Self {
            client: Client::try_from(config).unwrap(),
            namespace: namespace.to_owned(),
            delay,
            args: args.into_iter().filter(|arg| !arg.contains("listen=")).collect(),
            env: env.into_iter().filter_map(|variable| Some((variable.name, variable.value?))).collect(),
            address: node_address(client).await,
            files,
            started: AtomicU32::new(0),
        }
    }

    /// Starts one, as the process of a pod of that name.
    pub fn start(&self, pod: &str) -> LateOperator {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let file = |ending: &str| self.files.path().join(format!("{number:03}.{ending}"));
        let address = self.address;
        let (entrance, ports) = inside(move || {
            let free = || TcpListener::bind((address, 0)).unwrap();
            let ports = [free(), free()].map(|listener| listener.local_addr().unwrap());
            (TcpListener::bind(("127.0.0.1", 0)).unwrap(), ports)
        });
        let kubeconfig = file("kubeconfig");
        fs::write(&kubeconfig, kubeconfig_of(entrance.local_addr().unwrap()).to_string()).unwrap();
        let way = Way::open(entrance, self.client.clone(), &self.namespace, self.delay);

        let log = File::create(file("log")).unwrap();
        let mut command = Command::new(self.files.path().join("berth-operator"));
        command
            .args(&self.args)
            .arg(format!("--listen={}", ports[0]))
            .arg(format!("--admin-listen={}", ports[1]))
            .env_clear()
            .envs(self.env.iter().cloned())
            .env("BERTH_NAMESPACE", system_namespace())
            .env("BERTH_POD_NAME", pod)
            .env("BERTH_POD_IP", self.address.to_string())
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let child = inside(move || command.spawn()).expect("the operator starts");
        LateOperator { pod: pod.to_owned(), child, way }
    }

    /// What all of them logged.
    pub fn log(&self) -> Vec<String> {
        let logs = self.logs().into_iter().map(|path| fs::read_to_string(path).unwrap());
        logs.flat_map(|log| log.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
    }

    fn logs(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.files.path()).unwrap().map(|file| file.unwrap().path());
        let mut logs: Vec<PathBuf> =
            files.filter(|path| path.extension().is_some_and(|e| e == "log")).collect();
        logs.sort();
        logs
    }
}

impl Drop for LateOperators {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.files.disable_cleanup(std::env::var_os("BERTH_KEEP").is_some());
            for path in self.logs() {
                eprintln!("--- the end of {}", path.display());
                let log = fs::read_to_string(path).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                lines.iter().skip(lines.len().saturating_sub(TOLD)).for_each(|line| eprintln!("{line}"));
            }
        }
    }
}

impl LateOperator {
    /// Name of the pod that it takes itself for.
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// Waits until its caches are filled and it runs for the Lease.
    pub async fn runs_for_lease(&self, bound: Duration) {
        timeout(bound, self.way.runs_for_lease()).await.expect("an operator runs for the Lease");
    }

    /// Waits until it leads, or an earlier process of its pod did last.
    pub async fn leads(&self, client: &Client, bound: Duration) {
        eventually(&format!("{} leads", self.pod), bound, || async {
            let holder = lease(client).await.spec?.holder_identity?;
            holder.strip_prefix(&self.pod)?.starts_with('_').then_some(())
        })
        .await;
    }

    /// From the next such moment on nothing that it asks reaches the API server.
    pub fn end_at(&self, moment: Moment) {
        self.way.end_at(moment);
    }

    /// Waits for that moment; whether it came before `bound`.
    pub async fn has_ended(&mut self, bound: Duration) -> bool {
        let came = timeout(bound, self.way.has_ended()).await.is_ok();
        assert!(self.child.try_wait().unwrap().is_none(), "operator {} has ended by itself", self.pod);
        came
    }

    /// Kills it with -9. Nothing of what it asked is under way then. Gives the number of pods that it made.
    pub async fn kill(mut self) -> u32 {
        self.way.end();
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a killed child ends");
        self.way.is_empty().await;
        self.way.made()
    }
}

impl Drop for LateOperator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kubeconfig_of(entrance: SocketAddr) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "late", "cluster": {"server": format!("http://{entrance}")}}],
        "users": [{"name": "late", "user": {}}],
        "contexts": [{"name": "late", "context": {"cluster": "late", "user": "late"}}],
        "current-context": "late",
    })
}
