//! The official conformance suite: a server through Berth is what it is directly, check by check.

use berth_e2e::conformance::{Difference, Loopback, Results, Run, differences, parse_checks, scenario_of};
use berth_e2e::{TestNamespace, in_namespace, session, start_reference};

/// A server that the suite is run against.
struct Upstream {
    name: &'static str,
    manifest: &'static str,
    port: u16,
}

const FIXTURE: Upstream = Upstream {
    name: "conformance",
    manifest: include_str!("../../../servers/conformance/conformance.yaml"),
    port: 8080,
};

const EVERYTHING: Upstream = Upstream {
    name: "everything",
    manifest: include_str!("../../../servers/everything/everything.yaml"),
    port: 3001,
};

/// What the gateway answers itself, so that it passes whatever the server would do: a foreign Host, and a session that has ended.
const OF_THE_GATEWAY: [&str; 2] =
    ["localhost-host-rebinding-rejected", "server-session-terminated-returns-404"];

/// What the suite runs unscored: whether a client may leave a call's stream and come back to it by event ids. Berth comes back to
/// the upstream's stream itself and gives its own clients no ids yet, of which the suite warns.
const RESUMED_BY_BERTH: [&str; 2] = ["server-sse-priming-event", "server-sse-retry-field"];

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

/// Asserts that the runs differ in nothing but what is told above.
fn assert_same(differences: Vec<Difference>, through: &Run) {
    let (resumed, others): (Vec<_>, Vec<_>) =
        differences.into_iter().partition(|difference| RESUMED_BY_BERTH.contains(&difference.check.as_str()));
    // An exception that is none any more has to go.
    assert!(!resumed.is_empty(), "{RESUMED_BY_BERTH:?} are as they are directly");
    for difference in resumed {
        assert_eq!(difference.through, "WARNING", "{difference}");
    }
    let lines: Vec<String> = others.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{}\n\nthrough Berth:\n{}", lines.join("\n"), through.printed);
}

#[tokio::test]
async fn the_fixture_is_the_same_through_berth() {
    in_namespace("conformance", |namespace| async move {
        let (direct, through) = FIXTURE.runs(&namespace).await;
        assert!(direct.passed, "every scored check passes directly: {}", direct.printed);
        assert_same(differences(&direct.results, &through.results), &through);
        assert!(through.passed, "{}", through.printed);
    })
    .await;
}

#[tokio::test]
async fn server_everything_is_the_same_through_berth() {
    in_namespace("conformance", |namespace| async move {
        let (direct, through) = EVERYTHING.runs(&namespace).await;
        let (of_the_gateway, others): (Vec<_>, Vec<_>) = differences(&direct.results, &through.results)
            .into_iter()
            .partition(|difference| OF_THE_GATEWAY.contains(&difference.check.as_str()));
        assert_same(others, &through);
        for difference in of_the_gateway {
            assert_eq!(difference.through, "SUCCESS", "{difference}");
        }
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
