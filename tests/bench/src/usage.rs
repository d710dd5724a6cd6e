//! What processes use, as the system of this machine counts it.

use berth_e2e::Process;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::fs;
use std::time::Duration;

/// Length of the tick that Linux counts CPU time in for programs, whatever its own timer does.
const TICK: Duration = Duration::from_millis(10);

/// Processes whose use is added up.
pub struct Processes(Vec<Process>);

impl Processes {
    /// The process of each `(pod, binary)`.
    pub fn of(pods: &[(&Pod, &str)]) -> Self {
        let find = |(pod, binary): &(&Pod, &str)| {
            let found = Process::find(pod, binary);
            found.unwrap_or_else(|| panic!("{binary} of pod {} runs on this machine", pod.name_any()))
        };
        Self(pods.iter().map(find).collect())
    }

    /// CPU time so far, of their threads that have ended too.
    pub fn cpu(&self) -> Duration {
        self.sum("stat", cpu_ticks)
            .try_into()
            .map(|ticks: u32| TICK * ticks)
            .expect("a count of ticks is small")
    }

    /// Bytes of memory that are resident. Of `smaps_rollup`, as what `status` says lags behind by some pages for each CPU.
    pub fn resident(&self) -> u64 {
        self.sum("smaps_rollup", resident_bytes)
    }

    fn sum(&self, file: &str, read: fn(&str) -> Option<u64>) -> u64 {
        let of = |process: &Process| {
            let path = format!("/proc/{}/{file}", process.pid());
            let text =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path} can be read: {error}"));
            read(&text).unwrap_or_else(|| panic!("{path} says what it should: {text}"))
        };
        self.0.iter().map(of).sum()
    }
}

/// `utime` and `stime` of a `stat` line. The program's name, in parentheses, may hold anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(") ")?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// `Rss` of a `smaps_rollup`, in bytes.
fn resident_bytes(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "42 (a ) 1 b) S 1 42 42 0 -1 4194560 900 0 3 0 120 34 5 6 20 0 4 0 1000 1 2";
        assert_eq!(cpu_ticks(stat), Some(154));
        assert_eq!(cpu_ticks("42 (a) S 1"), None);
    }

    #[test]
    fn resident_memory_is_in_bytes() {
        let rollup = "00400000-7ffd rw-p 0 00:00 0 [rollup]\nRss:               12345 kB\nPss: 1 kB\n";
        assert_eq!(resident_bytes(rollup), Some(12_345 * 1024));
        assert_eq!(resident_bytes("Pss: 1 kB\n"), None);
    }
}
