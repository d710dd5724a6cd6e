//! What was measured: the table for people, the file for programs.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};

/// What a value should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

/// The measures that have a goal, by the names of `target/bench.json`, in the order of the table. One that is not measured yet
/// stands in the table as such.
pub const GOALS: [(&str, Goal); 14] = [
    ("claim_warm_p50", Goal::AtMost(2.5)),
    ("claim_warm_p99", Goal::AtMost(4.0)),
    ("claim_warm_vs_cold", Goal::AtMost(0.01)),
    ("writes_per_session", Goal::AtMost(4.0)),
    ("writes_idle_hour", Goal::AtMost(0.0)),
    ("hop_p50", Goal::AtMost(1.15)),
    ("hop_rps", Goal::AtLeast(0.85)),
    ("hop_cpu", Goal::AtMost(1.5)),
    ("idle_session_bytes", Goal::AtMost(16_384.0)),
    ("connected_session_bytes", Goal::AtMost(49_152.0)),
    ("operator_session_bytes", Goal::AtMost(819.0)),
    ("burst300", Goal::AtMost(3.0)),
    ("wake_p50", Goal::AtMost(3.0)),
    ("end_p50", Goal::AtMost(4.0)),
];

/// One value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measure {
    /// The value.
    pub value: f64,
    /// Its unit; `ratio` for what was measured side by side.
    pub unit: &'static str,
    /// How many values it is the median of, or how many things it is shared by.
    pub samples: u64,
    /// How it was measured.
    pub how: String,
}

/// All values, by their names.
#[derive(Debug, Default)]
pub struct Report(BTreeMap<&'static str, Measure>);

impl Report {
    /// Adds a value. A name without a goal is information.
    pub fn add(&mut self, name: &'static str, measure: Measure) {
        self.0.insert(name, measure);
    }

    /// The content of the file.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(&self.0).expect("numbers and texts are JSON") + "\n"
    }

    /// The table: what has a goal first, then what is information.
    pub fn table(&self) -> String {
        let known = GOALS.iter().map(|(name, goal)| (*name, Some(*goal)));
        let others = self.0.keys().filter(|name| GOALS.iter().all(|(known, _)| known != *name));
        let mut text = row(["measure", "value", "unit", "samples", "goal", ""], "how");
        for (name, goal) in known.chain(others.map(|name| (*name, None))) {
            let wanted = goal.map_or_else(|| "-".to_owned(), |goal| goal.to_string());
            text += &match self.0.get(name) {
                Some(measure) => {
                    let verdict =
                        goal.map_or("", |goal| if goal.is_met(measure.value) { "met" } else { "MISSED" });
                    let (value, samples) = (shown(measure.value), measure.samples.to_string());
                    row([name, &value, measure.unit, &samples, &wanted, verdict], &measure.how)
                }
                None => row([name, "-", "-", "-", &wanted, ""], "not measured"),
            };
        }
        text
    }
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
        }
    }
}

impl Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "<= {bound}"),
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
        }
    }
}

/// Ratios are small numbers, bytes and rates large ones.
fn shown(value: f64) -> String {
    if value.abs() < 100.0 { format!("{value:.3}") } else { format!("{value:.0}") }
}

fn row([name, value, unit, samples, goal, verdict]: [&str; 6], how: &str) -> String {
    let mut line = String::new();
    let written = write!(line, "{name:<24}{value:>10}  {unit:<8}{samples:>8}  {goal:<9} {verdict:<7} {how}");
    written.expect("a String takes all");
    line.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(value: f64, unit: &'static str) -> Measure {
        Measure { value, unit, samples: 15, how: "a way".into() }
    }

    fn report() -> Report {
        let mut report = Report::default();
        report.add("hop_p50", measure(1.2, "ratio"));
        report.add("hop_rps", measure(0.9, "ratio"));
        report.add("direct_rps", measure(12_345.6, "calls/s"));
        report
    }

    #[test]
    fn the_file_is_one_object_of_what_was_measured() {
        let read: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        let hop = serde_json::json!({"value": 1.2, "unit": "ratio", "samples": 15, "how": "a way"});
        assert_eq!(read["hop_p50"], hop);
        assert_eq!(read.as_object().unwrap().len(), 3);
    }

    #[test]
    fn the_table_says_what_is_met_missed_unknown_and_not_measured() {
        let table = report().table();
        let words = |name: &str| -> Vec<String> {
            let line = table.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(words("hop_p50 ")[1..], ["1.200", "ratio", "15", "<=", "1.15", "MISSED", "a", "way"]);
        assert_eq!(words("hop_rps ")[1..], ["0.900", "ratio", "15", ">=", "0.85", "met", "a", "way"]);
        assert_eq!(words("direct_rps ")[1..], ["12346", "calls/s", "15", "-", "a", "way"]);
        assert_eq!(words("burst300 ")[1..], ["-", "-", "-", "<=", "3", "not", "measured"]);
        assert_eq!(table.lines().count(), 1 + GOALS.len() + 1);
    }

    #[test]
    fn a_goal_is_met_at_its_bound() {
        assert!(Goal::AtMost(1.15).is_met(1.15) && !Goal::AtMost(1.15).is_met(1.16));
        assert!(Goal::AtLeast(0.85).is_met(0.85) && !Goal::AtLeast(0.85).is_met(0.84));
    }
}
