//! Ways in which a connect hangs, and how each is brought about.

use berth_api::McpServer;
use berth_api::label::SERVER_UID;
use berth_e2e::{Probe, Process, TestNamespace, mcp_server};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;

/// `timeouts.connect` of the servers that hang.
pub(super) const CONNECT: Duration = Duration::from_secs(3);

/// A way in which `initialize` comes to nothing within [`CONNECT`].
pub(super) struct Hang {
    pub what: &'static str,
    pub at: &'static Server,
    pub cause: Cause,
    /// Where the attempt stands then, as the error says.
    pub step: &'static str,
    /// The upstream opens a session whose id comes in time for a DELETE.
    pub is_told: bool,
}

/// What makes it hang.
pub(super) enum Cause {
    /// These faults of the probe.
    Faults(&'static str),
    /// The pod that connects loses these packets, as nftables names them.
    Loss(&'static str),
}

/// A way to the probe, and the `McpServer` for it.
pub(super) struct Server {
    pub name: &'static str,
    scheme: &'static str,
    port: u16,
    path: &'static str,
}

pub(super) const SLOW: Server = Server { name: "slow", scheme: "http", port: 8080, path: "/slow" };
pub(super) const PLAIN: Server = Server { name: "plain", scheme: "http", port: 8081, path: "" };
/// Its name is that of the port at the probe too, as is that of the one before.
pub(super) const GOOD: Server = Server { name: "good", scheme: "https", port: 8443, path: "" };

pub(super) const HANGS: [Hang; 10] = [
    Hang {
        what: "the name server does not answer",
        at: &PLAIN,
        cause: Cause::Loss("meta l4proto { tcp, udp } th sport 53"),
        step: "resolve",
        is_told: false,
    },
    Hang {
        what: "the port does not answer",
        at: &GOOD,
        cause: Cause::Loss("tcp sport 8443"),
        step: "connect",
        is_told: false,
    },
    Hang {
        what: "the connection is accepted and nothing is read",
        at: &PLAIN,
        cause: Cause::Faults(r#"{"accept:plain": {"hang": true}}"#),
        step: "initialize",
        is_told: false,
    },
    Hang {
        what: "one byte a second comes, the head first",
        at: &PLAIN,
        cause: Cause::Faults(r#"{"accept:plain": {"dripMs": 1000}}"#),
        step: "initialize",
        is_told: false,
    },
    Hang {
        what: "the TLS handshake is not answered",
        at: &GOOD,
        cause: Cause::Faults(r#"{"accept:good": {"hang": true}}"#),
        step: "TLS",
        is_told: false,
    },
    Hang {
        what: "no head comes",
        at: &SLOW,
        cause: Cause::Faults(r#"{"initialize": {"hang": true, "path": "/mcp/slow"}}"#),
        step: "initialize",
        is_told: false,
    },
    Hang {
        what: "the head comes and no body",
        at: &SLOW,
        cause: Cause::Faults(r#"{"initialize": {"answer": {"stall": true}, "path": "/mcp/slow"}}"#),
        step: "initialize",
        is_told: true,
    },
    Hang {
        what: "the body comes by the byte",
        at: &SLOW,
        cause: Cause::Faults(r#"{"initialize": {"answer": {"dripMs": 1000}, "path": "/mcp/slow"}}"#),
        step: "initialize",
        is_told: true,
    },
    Hang {
        what: "notifications/initialized is not answered",
        at: &SLOW,
        cause: Cause::Faults(r#"{"notifications/initialized": {"hang": true, "path": "/mcp/slow"}}"#),
        step: "notifications/initialized",
        is_told: true,
    },
    Hang {
        // Between the end of `connect` and that of `close`.
        what: "success comes late",
        at: &SLOW,
        cause: Cause::Faults(r#"{"initialize": {"delayMs": 4000, "after": true, "path": "/mcp/slow"}}"#),
        step: "initialize",
        is_told: true,
    },
];

/// Counts packets that are lost.
type Lost = Arc<dyn Fn() -> u64 + Send + Sync>;

/// A hang that is on.
pub(super) struct Struck<'a> {
    pub hang: &'a Hang,
    pub probe: &'a Probe,
    /// The last entry of the probe's journal before.
    pub since: u64,
    /// Counts the packets that are lost; they are as long as this is there.
    lost: Option<Lost>,
}

impl Hang {
    /// Brings it about. What takes time of a processor runs beside the runtime: hangs that are measured run beside each other.
    pub(super) async fn strike<'a>(&'a self, namespace: &TestNamespace, probe: &'a Probe) -> Struck<'a> {
        let books = probe.books().await;
        let since = books.0["journal"].as_array().and_then(|journal| journal.last()?["seq"].as_u64());
        let mut struck = Struck { hang: self, probe, since: since.unwrap_or(0), lost: None };
        match self.cause {
            Cause::Faults(faults) => probe.set_faults(&serde_json::from_str(faults).unwrap()).await,
            Cause::Loss(packets) => {
                let sidecar = self.at.sidecar(namespace).await;
                let lost = spawn_blocking(move || sidecar.lose(packets)).await.unwrap();
                struck.lost = Some(Arc::new(move || lost.count()));
            }
        }
        struck
    }
}

impl Server {
    fn url(&self, probe: &Probe) -> String {
        probe.url_at(self.scheme, self.port) + self.path
    }

    /// Label of the pods that connect to it.
    pub(super) async fn label(&self, namespace: &TestNamespace) -> String {
        let server = namespace.api::<McpServer>().get(self.name).await.unwrap();
        format!("{SERVER_UID}={}", server.uid().unwrap())
    }

    /// The process that connects to it.
    async fn sidecar(&self, namespace: &TestNamespace) -> Process {
        let of_it = ListParams::default().labels(&self.label(namespace).await);
        let pods = namespace.api::<Pod>().list(&of_it).await.unwrap();
        let find = move || pods.iter().filter_map(|pod| Process::find(pod, "berth-sidecar")).collect();
        let found: Vec<Process> = spawn_blocking(find).await.unwrap();
        match found.as_slice() {
            [one] => one.clone(),
            other => panic!("{} has one sidecar, not {other:?}", self.name),
        }
    }
}

impl Struck<'_> {
    /// Makes all well again.
    pub(super) async fn relieve(self) {
        if let Cause::Faults(faults) = self.hang.cause {
            let mut faults: Value = serde_json::from_str(faults).unwrap();
            faults.as_object_mut().unwrap().values_mut().for_each(|fault| *fault = Value::Null);
            self.probe.set_faults(&faults).await;
        }
        spawn_blocking(move || drop(self.lost)).await.unwrap();
    }

    /// How often attempts came as far as where they hang.
    pub(super) async fn reached(&self) -> u64 {
        if let Some(lost) = self.lost.clone() {
            return spawn_blocking(move || lost()).await.unwrap();
        }
        let books = self.probe.books().await;
        match self.hang.at.name {
            "slow" => {
                books.requests("initialize").iter().filter(|entry| entry["path"] == "/mcp/slow").count()
                    as u64
            }
            port => books.0["connections"]["ports"][port]["accepted"].as_u64().unwrap_or(0),
        }
    }
}

/// The servers of [`HANGS`], with this `timeouts.connect`.
pub(super) async fn servers(namespace: &TestNamespace, probe: &Probe, connect: Duration) {
    let object = json!({"metadata": {"name": "probe-ca"}, "data": {"ca.crt": probe.ca().await}});
    namespace.create::<ConfigMap>(object).await;
    let tls = json!({"caRef": {"kind": "ConfigMap", "name": "probe-ca", "key": "ca.crt"}});

    let of = async |server: &Server| {
        let mut http = json!({"url": server.url(probe)});
        if server.scheme == "https" {
            http["tls"] = tls.clone();
        }
        let more = json!({
            "transport": {"type": "Http", "http": http},
            "timeouts": {"connect": format!("{}s", connect.as_secs()), "drain": "1s", "close": "4s"},
            // One pod of each, so that no other one comes or goes meanwhile.
            "pool": {"sessionsPerPod": 200},
        });
        mcp_server(namespace, server.name, "", more).await;
    };
    futures::join!(of(&PLAIN), of(&GOOD), of(&SLOW));
}
