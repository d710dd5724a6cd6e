//! Processes of a pod, as the node sees them.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the table of packets that a pod does not get.
const LOST: &str = "berth_e2e";

/// A process of a container, by its id: signals reach it and no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pid: String,
    what: String,
}

impl Process {
    /// The process `binary` of `pod`, which must run on this machine, as the pods of the test cluster do.
    pub fn find(pod: &Pod, binary: &str) -> Option<Self> {
        let uid = pod.uid().expect("a pod has a UID");
        let pid = pids().find(|pid| is_of(pid, &uid, binary))?;
        Some(Self { pid, what: format!("{binary} of pod {}", pod.name_any()) })
    }

    /// Its id on this machine.
    pub fn pid(&self) -> &str {
        &self.pid
    }

    /// The process of that program of the test cluster that `KUBECONFIG` is of: another cluster may run beside it.
    pub fn of_cluster(program: &str) -> Self {
        let kubeconfig = std::env::var("KUBECONFIG").expect("KUBECONFIG names the cluster");
        let state = Path::new(&kubeconfig).parent().expect("it is in the cluster's state folder");
        let state = format!("{}/", state.display());
        let found: Vec<String> = pids()
            .filter(|pid| {
                let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let words: Vec<String> = command
                    .split(|byte| *byte == 0)
                    .map(|w| String::from_utf8_lossy(w).into_owned())
                    .collect();
                words[0].ends_with(&format!("/{program}")) && words.iter().any(|word| word.contains(&state))
            })
            .collect();
        match found.as_slice() {
            [pid] => Self { pid: pid.clone(), what: program.to_owned() },
            other => panic!("one {program} of this cluster runs on this machine, not {other:?}"),
        }
    }

    /// A link of its folder in `/proc`, such as `exe` or `ns/net`.
    pub(crate) fn link(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(&self.pid).join(name)
    }

    /// Files and sockets that it has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(self.link("fd")).expect("a process that lives has descriptors").count()
    }

    /// Its memory that is in use, in KiB.
    pub fn resident_kib(&self) -> u64 {
        let status = fs::read_to_string(self.link("status")).expect("a process that lives has a status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it tells its memory");
        line.trim().trim_end_matches(" kB").parse().expect("memory is a number")
    }

    /// Keeps from its pod all packets that `expression`, one of nftables, matches, until what is returned is dropped. A pod that is
    /// kept from answers has peers that are silent.
    pub fn lose(&self, expression: &str) -> Lost {
        let lost = Lost { network: self.link("ns/net") };
        lost.nft(&format!("add table inet {LOST}"));
        lost.nft(&format!("add chain inet {LOST} input {{ type filter hook input priority 0; }}"));
        lost.nft(&format!("add rule inet {LOST} input {expression} counter drop"));
        lost
    }

    /// Sends a signal, such as `KILL`, `STOP` or `CONT`.
    pub fn signal(&self, signal: &str) {
        assert!(self.try_signal(signal), "{}, pid {}, gets {signal}", self.what, self.pid);
    }

    /// Whether it got it.
    fn try_signal(&self, signal: &str) -> bool {
        let sent = Command::new("kill").args([&format!("-{signal}"), &self.pid]).status();
        sent.expect("kill runs").success()
    }

    /// Stops it until what is returned is dropped, whatever becomes of the test.
    pub fn stop(&self) -> Stopped {
        self.signal("STOP");
        Stopped(self.clone())
    }

    /// Whether it still runs.
    pub fn lives(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
    }
}

/// A process that is stopped; it goes on when this is dropped.
pub struct Stopped(Process);

impl Drop for Stopped {
    fn drop(&mut self) {
        let goes_on = self.0.try_signal("CONT");
        // A panic during another one would end the tests that come next too.
        assert!(goes_on || std::thread::panicking(), "{} goes on", self.0.what);
    }
}

/// Packets that a pod does not get; it gets them again when this is dropped.
pub struct Lost {
    /// The pod's network.
    network: PathBuf,
}

impl Lost {
    /// How many there were.
    pub fn count(&self) -> u64 {
        let rules = self.nft(&format!("list table inet {LOST}"));
        let count = rules.split("counter packets ").nth(1).and_then(|rest| rest.split(' ').next());
        count
            .and_then(|count| count.parse().ok())
            .unwrap_or_else(|| panic!("a rule that counts, not {rules}"))
    }

    fn nft(&self, command: &str) -> String {
        self.try_nft(command).unwrap_or_else(|error| panic!("nft {command}: {error}"))
    }

    fn try_nft(&self, command: &str) -> Result<String, String> {
        let network = format!("--net={}", self.network.display());
        let ran = Command::new("nsenter").args([&network, "nft", command]).output();
        let ran = ran.map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if ran.status.success() { Ok(text(&ran.stdout)) } else { Err(text(&ran.stderr)) }
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        // With its pod the network is gone too.
        if let Err(error) = self.try_nft(&format!("delete table inet {LOST}")) {
            eprintln!("the packets of {} stay lost: {error}", self.network.display());
        }
    }
}

/// Kills, with -9, the process `binary` of `pod`.
pub fn kill(pod: &Pod, binary: &str) {
    let process = Process::find(pod, binary);
    process
        .unwrap_or_else(|| panic!("{binary} of pod {} runs on this machine", pod.name_any()))
        .signal("KILL");
}

fn pids() -> impl Iterator<Item = String> {
    fs::read_dir("/proc")
        .expect("/proc is there")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_of(pid: &str, pod_uid: &str, binary: &str) -> bool {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    command.starts_with(format!("/{binary}\0").as_bytes()) && cgroups.contains(pod_uid)
}
