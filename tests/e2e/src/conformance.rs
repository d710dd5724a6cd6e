//! The official conformance suite: how it is run, what it found, and how two runs differ.

mod loopback;

pub use loopback::Loopback;

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;

/// The protocol version whose checks are run.
const REQUIREMENTS: &str = "2025-11-25";
/// A run takes some seconds; with every scenario waiting in vain it is minutes.
const RUN_BOUND: Duration = Duration::from_mins(10);

/// The statuses of a scenario's checks, in the order of the checks' ids.
pub type Checks = Vec<(String, String)>;

/// What a run found: each scenario's checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results(pub BTreeMap<String, Checks>);

/// One check whose status is not the same in two runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The scenario.
    pub scenario: String,
    /// Id of the check.
    pub check: String,
    /// What it was directly; `absent` if it was not made.
    pub direct: String,
    /// What it was through Berth.
    pub through: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, check, direct, through } = self;
        write!(f, "{scenario}: {check}: {direct} directly, {through} through Berth")
    }
}

#[derive(Deserialize)]
struct Check {
    id: String,
    status: String,
}

/// The checks in a scenario's `checks.json`. What is only information says what was seen on the way, and is left out.
pub fn parse_checks(text: &str) -> Result<Checks, serde_json::Error> {
    let checks: Vec<Check> = serde_json::from_str(text)?;
    let real = checks.into_iter().filter(|check| check.status != "INFO");
    let mut checks: Checks = real.map(|check| (check.id, check.status)).collect();
    checks.sort();
    Ok(checks)
}

/// The scenario of a folder of results, as `server-tools-list-2026-11-30T02-35-27-631Z`; none if it is no such folder.
pub fn scenario_of(folder: &str) -> Option<&str> {
    // The time holds three hyphens before its T, and three after it.
    let rest = folder.strip_prefix("server-")?;
    let (before, time) = rest.rsplit_once('T')?;
    let date = before.len().checked_sub("-2026-11-30".len())?;
    let (scenario, date) = (before.get(..date)?, before.get(date..)?);
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    let is_time = date.starts_with('-') && digits(date) && digits(time.strip_suffix('Z')?);
    (is_time && !scenario.is_empty()).then_some(scenario)
}

/// Every check whose status differs, and every one that only one run has.
pub fn differences(direct: &Results, through: &Results) -> Vec<Difference> {
    let mut all: BTreeMap<(&str, &str), [Vec<&str>; 2]> = BTreeMap::new();
    for (side, results) in [direct, through].into_iter().enumerate() {
        for (scenario, checks) in &results.0 {
            for (check, status) in checks {
                all.entry((scenario, check)).or_default()[side].push(status);
            }
        }
    }
    let said =
        |statuses: &[&str]| if statuses.is_empty() { "absent".to_owned() } else { statuses.join(" and ") };
    all.into_iter()
        .filter(|(_, [direct, through])| direct != through)
        .map(|((scenario, check), [direct, through])| Difference {
            scenario: scenario.to_owned(),
            check: check.to_owned(),
            direct: said(&direct),
            through: said(&through),
        })
        .collect()
}

/// A run of the suite.
#[derive(Debug)]
pub struct Run {
    /// Whether every scored check passed.
    pub passed: bool,
    /// What it found.
    pub results: Results,
    /// What it printed.
    pub printed: String,
}

impl Run {
    /// Runs the suite against a server on loopback; its files go into `folder`, which is empty.
    pub async fn of(url: &str, folder: &Path) -> Self {
        let command = std::env::var("BERTH_CONFORMANCE")
            .expect("BERTH_CONFORMANCE names the suite's command: tests/servers/conformance/README.md");
        let mut words = command.split_whitespace();
        let output = Command::new(words.next().expect("a command"))
            .args(words)
            .args(["server", "--url", url, "--requirements", REQUIREMENTS, "-o"])
            .arg(folder)
            .current_dir(folder)
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(RUN_BOUND, output).await.expect("the suite ends in time");
        let output = output.expect("the suite runs");
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        let results = Results::read(folder);
        assert!(!results.0.is_empty(), "the suite found nothing: {printed}");
        Self { passed: output.status.success(), results, printed }
    }
}

impl Results {
    /// Reads the files of a run.
    fn read(folder: &Path) -> Self {
        let folders = std::fs::read_dir(folder).expect("the suite's folder can be read");
        let folders = folders.map(|entry| entry.expect("its entries too").path());
        let found = folders.filter_map(|path| {
            let scenario = scenario_of(path.file_name()?.to_str()?)?.to_owned();
            let text = std::fs::read_to_string(path.join("checks.json")).expect("a scenario has checks");
            Some((scenario, parse_checks(&text).expect("the checks are what they were")))
        });
        Self(found.collect())
    }
}
