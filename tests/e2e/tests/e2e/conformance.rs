//! The official conformance suite: a server through Berth is what it is directly, check by check.

use berth_e2e::conformance::{Loopback, Results, Run, differences, parse_checks, scenario_of};
use berth_e2e::{TestNamespace, figure, in_namespace, session, start_reference};
use std::collections::BTreeSet;

/// A server that the suite is run against.
struct Upstream {
    name: &'static str,
    manifest: &'static str,
    port: u16,
    /// All in which it is not the same through Berth.
    meant: &'static [Meant],
}

/// A check that is meant to be another through Berth.
struct Meant {
    check: &'static str,
    /// What it is through Berth.
    through: &'static str,
    /// Whether the suite scores it.
    scored: bool,
    why: &'static str,
}

const FIXTURE: Upstream = Upstream {
    name: "conformance",
    manifest: include_str!("../../../servers/conformance/conformance.yaml"),
    port: 8080,
    meant: &[Meant {
        check: "server-sse-retry-field",
        through: "WARNING",
        scored: false,
        why: "Berth comes back to a call's stream upstream itself; its clients get no ids and no time to come back after",
    }],
};

const EVERYTHING: Upstream = Upstream {
    name: "everything",
    manifest: include_str!("../../../servers/everything/everything.yaml"),
    port: 3001,
    meant: &[
        Meant {
            check: "localhost-host-rebinding-rejected",
            through: "SUCCESS",
            scored: true,
            why: "the gateway refuses a foreign Host itself, whatever the server would do",
        },
        Meant {
            check: "server-session-terminated-returns-404",
            through: "SUCCESS",
            scored: false,
            why: "Berth answers for a session that has ended itself, and with 404",
        },
        Meant {
            check: "server-sse-priming-event",
            through: "WARNING",
            scored: false,
            why: "Berth comes back to a call's stream upstream itself; its clients get no ids",
        },
    ],
};

impl Upstream {
    /// The suite against it directly, and through a session.
    async fn runs(&self, namespace: &TestNamespace) -> (Run, Run) {
        let pod = start_reference(namespace, self.name, self.manifest, self.port).await;
        let folders = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let folder = folders.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            folder
        };
        let near = Loopback::to_pod(&namespace.client, &namespace.name, &pod, self.port).await;
        let direct = Run::of(&near.url("/mcp"), &folder("direct")).await;
        session(namespace, "s", "alice", &[self.name]).await;
        let far = Loopback::to_gateway(&namespace.token("alice").await).await;
        let url = far.url(&format!("/{}/s/{}/mcp", namespace.name, self.name));
        let through = Run::of(&url, &folder("through")).await;
        (direct, through)
    }
}

impl Upstream {
    /// Asserts that the runs differ in all that is meant, and in nothing else.
    fn assert_same(&self, direct: &Run, through: &Run) {
        for run in [direct, through] {
            assert!(run.printed.contains(&total(&run.results)), "all checks are compared: {}", run.printed);
        }
        let unscored = unscored(&through.printed);
        assert_eq!(unscored, self::unscored(&direct.printed));
        let scored = |(scenario, _): &(&String, &Vec<_>)| !unscored.contains(scenario.as_str());
        let all: usize = direct.results.0.iter().filter(scored).map(|(_, checks)| checks.len()).sum();
        assert!(all > 0, "{}", direct.printed);

        let found = differences(&direct.results, &through.results);
        let mut left: Vec<&Meant> = self.meant.iter().collect();
        for difference in &found {
            let meant = left.iter().position(|meant| meant.check == difference.check);
            let meant =
                meant.unwrap_or_else(|| panic!("{difference}\n\nthrough Berth:\n{}", through.printed));
            let Meant { through, scored, why, .. } = left.swap_remove(meant);
            assert_eq!(
                (difference.through.as_str(), !unscored.contains(difference.scenario.as_str())),
                (*through, *scored),
                "{difference}"
            );
            let kind = if *scored { "scored" } else { "unscored" };
            figure(
                &format!("{kind} conformance check of {}", self.name),
                format_args!("{difference}, as {why}"),
            );
        }
        // An exception that is none any more has to go.
        assert!(
            left.is_empty(),
            "{:?} are as they are directly",
            left.iter().map(|m| m.check).collect::<Vec<_>>()
        );
        let other = self.meant.iter().filter(|meant| meant.scored).count();
        let name = format!("scored conformance checks of {}, the same through Berth as directly", self.name);
        figure(&name, format_args!("{} of {all}", all - other));
        let other = found.len() - other;
        figure(&format!("unscored conformance checks of {} that differ through Berth", self.name), other);
    }
}

/// How the suite sums up these results.
fn total(results: &Results) -> String {
    let count = |wanted: &str| results.0.values().flatten().filter(|(_, status)| status == wanted).count();
    format!("Total: {} passed, {} failed", count("SUCCESS"), count("FAILURE"))
}

/// The scenarios that the suite ran and did not score, of what it printed last.
fn unscored(printed: &str) -> BTreeSet<&str> {
    let (_, list) = printed.split_once("\nNot scored for").expect("it says what it does not score");
    list.lines().filter_map(|line| line.trim().strip_prefix(['✓', '✗'])?.split_whitespace().next()).collect()
}

#[tokio::test]
async fn the_fixture_is_the_same_through_berth() {
    in_namespace("conformance", |namespace| async move {
        let (direct, through) = FIXTURE.runs(&namespace).await;
        assert!(direct.passed, "every scored check passes directly: {}", direct.printed);
        FIXTURE.assert_same(&direct, &through);
        assert!(through.passed, "{}", through.printed);
    })
    .await;
}

#[tokio::test]
async fn server_everything_is_the_same_through_berth() {
    in_namespace("conformance", |namespace| async move {
        let (direct, through) = EVERYTHING.runs(&namespace).await;
        EVERYTHING.assert_same(&direct, &through);
    })
    .await;
}

#[test]
fn a_folder_names_its_scenario() {
    for (folder, scenario) in [
        ("server-tools-list-2026-11-30T02-35-27-631Z", Some("tools-list")),
        ("server-json-schema-2020-12-2026-11-30T02-35-29-003Z", Some("json-schema-2020-12")),
        ("server-Tool-T-2026-11-30T02-35-29-003Z", Some("Tool-T")),
        ("server--2026-11-30T02-35-29-003Z", None),
        ("client-tools-list-2026-11-30T02-35-27-631Z", None),
        ("server-tools-list", None),
        ("server-T", None),
        ("summary.json", None),
    ] {
        assert_eq!(scenario_of(folder), scenario, "{folder}");
    }
}

#[test]
fn checks_are_read_without_what_is_only_information() {
    let text = r#"[{"id": "b", "status": "FAILURE", "errorMessage": "e"}, {"id": "i", "status": "INFO"},
        {"id": "a", "status": "SUCCESS", "details": {"x": 1}}, {"id": "b", "status": "SUCCESS"}]"#;
    let pair = |id: &str, status: &str| (id.to_owned(), status.to_owned());
    assert_eq!(
        parse_checks(text).unwrap(),
        [pair("a", "SUCCESS"), pair("b", "FAILURE"), pair("b", "SUCCESS")]
    );
    assert!(parse_checks(r#"[{"id": "a"}]"#).is_err());
    assert!(parse_checks("{}").is_err());
}

#[test]
fn every_difference_is_told() {
    let results = |scenarios: &[(&str, &[(&str, &str)])]| {
        let checks = |checks: &[(&str, &str)]| {
            checks.iter().map(|(id, status)| ((*id).to_owned(), (*status).to_owned())).collect()
        };
        Results(scenarios.iter().map(|(name, of)| ((*name).to_owned(), checks(of))).collect())
    };
    let direct = results(&[
        ("one", &[("a", "SUCCESS"), ("b", "SUCCESS"), ("c", "FAILURE"), ("c", "SUCCESS")]),
        ("two", &[("a", "SUCCESS")]),
    ]);
    assert_eq!(differences(&direct, &direct), []);
    let through = results(&[
        ("one", &[("a", "FAILURE"), ("b", "SUCCESS"), ("c", "SUCCESS"), ("d", "SKIPPED")]),
        ("three", &[("a", "SUCCESS")]),
    ]);
    let told: Vec<String> = differences(&direct, &through).iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "one: a: SUCCESS directly, FAILURE through Berth",
            "one: c: FAILURE and SUCCESS directly, SUCCESS through Berth",
            "one: d: absent directly, SKIPPED through Berth",
            "three: a: absent directly, SUCCESS through Berth",
            "two: a: SUCCESS directly, absent through Berth",
        ]
    );
}
