//! Wrong input is refused at apply, with a message that names the field and the remedy.

use berth_api::AgentSession;
use berth_e2e::{TestNamespace, in_namespace, kubectl};
use serde_json::{Value, json};

fn server(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "McpServer", "metadata": {"name": name}, "spec": spec})
}

fn session(spec: &Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "AgentSession", "metadata": {"name": "s"}, "spec": spec})
}

fn http(url: &str) -> Value {
    json!({"type": "Http", "http": {"url": url}})
}

/// Applies each object and checks that it is refused with every given text in the message.
async fn refused(namespace: &TestNamespace, cases: Vec<(Value, &[&str])>) {
    for (object, texts) in cases {
        let printed = kubectl(&["apply", "-n", &namespace.name, "-f", "-"], &object.to_string()).await;
        assert!(!printed.ok, "accepted: {object}");
        for text in texts {
            assert!(printed.err.contains(text), "{text:?} is not in: {}", printed.err);
        }
    }
}

#[tokio::test]
async fn a_wrong_session_is_refused_by_name_of_the_field() {
    in_namespace("session", |namespace| async move {
        let many: Vec<Value> = (0..300).map(|n| json!({"name": format!("s{n}")})).collect();
        let alice = json!({"name": "alice"});
        let one = json!([{"name": "a"}]);
        refused(
            &namespace,
            vec![
                (session(&json!({"servers": one})), &["spec.subject", "Required"]),
                (session(&json!({"subject": alice, "servers": many})), &["spec.servers", "300", "32"]),
                (session(&json!({"subject": alice, "servers": []})), &["spec.servers"]),
                (
                    session(&json!({"subject": alice, "servers": [{"name": "a"}, {"name": "a"}]})),
                    &["spec.servers[1]", "Duplicate"],
                ),
                (
                    session(&json!({"subject": alice, "servers": [{"name": "A_b"}]})),
                    &["spec.servers[0].name"],
                ),
                (
                    session(&json!({"subject": alice, "servers": [{"name": "a", "credential": {"secretKeyRef": {"name": "s", "key": "a/b"}}}]})),
                    &["spec.servers[0].credential.secretKeyRef.key", "should match"],
                ),
                (
                    session(&json!({"subject": alice, "servers": one, "bindTimeout": "abc"})),
                    &["spec.bindTimeout", "abc"],
                ),
                (
                    session(&json!({"subject": alice, "servers": one, "drainTimeout": "2h"})),
                    &["drainTimeout must be at most 1h"],
                ),
                (
                    session(&json!({"subject": alice, "servers": one, "end": {"reason": "Bored"}})),
                    &["spec.end.reason", "Completed"],
                ),
                (
                    session(
                        &json!({"subject": {"issuer": "https://idp.test", "name": "alice"}, "servers": one}),
                    ),
                    &["subject.issuer must be empty"],
                ),
                (
                    session(&json!({"subject": alice, "servers": one, "idle": {}})),
                    &["unknown field", "spec.idle"],
                ),
            ],
        )
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_subject_of_any_shape_is_stored_byte_for_byte_and_what_is_no_name_is_refused() {
    in_namespace("subject", |namespace| async move {
        let names = [
            "日本@example.test",
            "CORP\\u1",
            "caf\u{e9}",
            "cafe\u{301}",
            "\"a\"/b c%00",
            "system:serviceaccount:demo:alice",
            &"a".repeat(1024),
            &"é".repeat(512),
        ];
        for (at, name) in names.iter().enumerate() {
            // No server is named that exists: an operator, if one runs, has nothing to do but to say so.
            let spec = json!({"subject": {"name": name}, "servers": [{"name": "absent"}]});
            let object = json!({"metadata": {"name": format!("s{at}")}, "spec": spec});
            let stored = namespace.create::<AgentSession>(object).await;
            assert_eq!(stored.spec.subject.name.as_bytes(), name.as_bytes());
        }
        let of = |name: &str| session(&json!({"subject": {"name": name}, "servers": [{"name": "absent"}]}));
        let too_long = "subject.name must be at most 1024 bytes";
        refused(
            &namespace,
            vec![
                (of(""), &["spec.subject.name", "at least 1"]),
                (of(&"a".repeat(1025)), &["spec.subject.name", "1024"]),
                (of(&"日".repeat(342)), &[too_long]),
                (of(&format!("{}a", "é".repeat(512))), &[too_long]),
                (of("alice\nbob"), &["subject.name must not hold control characters"]),
                (of("alice\u{1b}[31m"), &["subject.name must not hold control characters"]),
                (of("alice\u{85}"), &["subject.name must not hold control characters"]),
            ],
        )
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_wrong_credential_of_a_session_is_refused_by_name_of_the_field() {
    in_namespace("own", |namespace| async move {
        let with = |credential: Value| {
            let servers = json!([{"name": "a", "credential": credential}]);
            session(&json!({"subject": {"name": "alice"}, "servers": servers}))
        };
        refused(
            &namespace,
            vec![
                (with(json!({})), &["spec.servers[0].credential.secretKeyRef", "Required"]),
                (
                    with(json!({"secretKeyRef": {"name": "s"}})),
                    &["spec.servers[0].credential.secretKeyRef.key", "Required"],
                ),
                (
                    with(json!({"secretKeyRef": {"name": "", "key": "k"}})),
                    &["spec.servers[0].credential.secretKeyRef.name"],
                ),
                // There is no way to name a Secret of another namespace.
                (
                    with(json!({"secretKeyRef": {"name": "s", "key": "k", "namespace": "other"}})),
                    &["unknown field", "secretKeyRef.namespace"],
                ),
            ],
        )
        .await;
    })
    .await;
}

/// A spec whose shared credential goes into `header`.
fn shared_as(header: &str) -> Value {
    let shared = json!({"secretKeyRef": {"name": "s", "key": "k"}, "header": header});
    json!({"transport": http("http://a.test/mcp"), "auth": {"type": "Shared", "shared": shared}})
}

/// A spec whose sessions' own credentials are sent as `session` says.
fn own_as(session: &Value) -> Value {
    json!({"transport": http("http://a.test/mcp"), "auth": {"type": "Session", "session": session}})
}

#[tokio::test]
async fn urls_that_no_sidecar_could_dial_are_refused() {
    in_namespace("bad-urls", |namespace| async move {
        let ports = ["abc", "", "0", "65536", "70000", "99999", "080"]
            .map(|port| format!("http://a.test:{port}/mcp"));
        let hosts = [
            "",
            "h..x",
            "é.test",
            "-a.test",
            "a-.test",
            "1.2.3.999",
            "01.02.03.04",
            "1.2.3",
            "a b",
            "a.1",
            "[::1",
            "[x]",
        ];
        let hosts = hosts.map(|host| format!("http://{host}/mcp"));
        let ends = ["\n", " ", "\u{7f}", "?a=\"b\"", "<c>", "é", "\\", "{x}", "#f"]
            .map(|end| format!("http://a.test/mcp{end}"));
        let urls = ports.into_iter().chain(hosts).chain(ends);
        let cases = urls.map(|url| {
            (
                server("s", &json!({"transport": http(&url)})),
                &["spec.transport.http.url", "absolute http:// or https:// URL"] as &[&str],
            )
        });
        refused(&namespace, cases.collect()).await;
    })
    .await;
}

#[tokio::test]
async fn urls_of_every_usual_form_are_accepted() {
    in_namespace("urls", |namespace| async move {
        for url in [
            "http://a.test/mcp",
            "https://a.test",
            "http://h/",
            "http://mcp.1team/mcp",
            "http://2-x.3-4-y/mcp",
            "http://10.0.200.255/mcp",
            "http://h",
            "https://A_b-c.xn--e1afmkfd.:65535/mcp",
            "https://a.test/a%20b/@x;y=(1)?q[]=1&r=~'!*,",
            "http://a.test:3001/mcp?tenant=1",
            "http://127.0.0.1:8080/",
            "http://[::1]:8080/mcp",
            "https://everything.demo.svc.cluster.local:443/a/b/c",
            &format!("http://{}.test/{}", "x".repeat(63), "x".repeat(64)),
        ] {
            let object = server("s", &json!({"transport": http(url)})).to_string();
            let arguments = ["apply", "--dry-run=server", "-n", &namespace.name, "-f", "-"];
            let printed = kubectl(&arguments, &object).await;
            assert!(printed.ok, "{url}: {printed:?}");
        }
    })
    .await;
}

/// A spec with these limits.
fn limited(limits: &Value) -> Value {
    json!({"transport": http("http://a.test/mcp"), "limits": limits})
}

/// A spec whose upstream's certificate is checked as `tls` says.
fn checked(url: &str, tls: &Value) -> Value {
    json!({"transport": {"type": "Http", "http": {"url": url, "tls": tls}}})
}

#[tokio::test]
async fn limits_are_accepted_as_quantities_and_as_numbers_and_have_defaults() {
    in_namespace("limits", |namespace| async move {
        for limits in [
            json!({}),
            json!({"requestBytes": "1Ki", "responseBytes": "32Mi"}),
            json!({"requestBytes": 1024, "responseBytes": 33_554_432}),
            json!({"requestBytes": "4194304", "responseBytes": "1M", "concurrentCalls": 1, "queuedCalls": 0}),
        ] {
            let object = server("s", &limited(&limits)).to_string();
            let arguments = ["apply", "--dry-run=server", "-n", &namespace.name, "-o", "json", "-f", "-"];
            let printed = kubectl(&arguments, &object).await;
            assert!(printed.ok, "{limits}: {printed:?}");
            let stored: Value = serde_json::from_str(&printed.out).unwrap();
            let whole = &stored["spec"]["limits"];
            assert_eq!(whole["requestBytes"], *limits.get("requestBytes").unwrap_or(&json!("4Mi")));
            assert_eq!(whole["concurrentCalls"], *limits.get("concurrentCalls").unwrap_or(&json!(16)));
            assert_eq!(stored["spec"]["onStateLost"], "Reinitialize");
        }
    })
    .await;
}

#[tokio::test]
async fn wrong_limits_are_refused_by_name_of_the_field() {
    in_namespace("limits", |namespace| async move {
        let with = |limits: Value| server("s", &limited(&limits));
        let (request, response) =
            ("limits.requestBytes must be from 1Ki to 4Mi", "limits.responseBytes must be from 1Ki to 32Mi");
        refused(
            &namespace,
            vec![
                (with(json!({"requestBytes": "5Mi"})), &[request]),
                (with(json!({"requestBytes": 1023})), &[request]),
                (with(json!({"requestBytes": "4MB"})), &["spec.limits.requestBytes", "4MB"]),
                (with(json!({"requestBytes": true})), &["spec.limits.requestBytes"]),
                (with(json!({"responseBytes": "33Mi"})), &[response]),
                (with(json!({"responseBytes": 0})), &[response]),
                (with(json!({"concurrentCalls": 0})), &["spec.limits.concurrentCalls"]),
                (with(json!({"queuedCalls": -1})), &["spec.limits.queuedCalls"]),
                (
                    server("s", &json!({"transport": http("http://a.test/mcp"), "onStateLost": "Ignore"})),
                    &["spec.onStateLost", "Reinitialize"],
                ),
            ],
        )
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_wrong_check_of_certificates_is_refused_by_name_of_the_field() {
    in_namespace("tls", |namespace| async move {
        let ca = |kind: &str| json!({"caRef": {"kind": kind, "name": "corp", "key": "ca.crt"}});
        let over_tls = |tls: Value| server("s", &checked("https://a.test/mcp", &tls));
        for tls in [
            ca("ConfigMap"),
            ca("Secret"),
            json!({"serverName": "b.test"}),
            json!({"serverName": "10.0.0.1"}),
        ] {
            let arguments = ["apply", "--dry-run=server", "-n", &namespace.name, "-f", "-"];
            let printed = kubectl(&arguments, &over_tls(tls.clone()).to_string()).await;
            assert!(printed.ok, "{tls}: {printed:?}");
        }
        let field = "spec.transport.http.tls";
        refused(
            &namespace,
            vec![
                (
                    server("s", &checked("http://a.test/mcp", &ca("ConfigMap"))),
                    &["transport.http.tls may only be set when transport.http.url begins with https://"],
                ),
                (over_tls(ca("Pod")), &[field, "caRef.kind", "ConfigMap"]),
                (
                    over_tls(json!({"caRef": {"kind": "Secret", "name": "corp"}})),
                    &[field, "caRef.key", "Required"],
                ),
                (
                    over_tls(json!({"caRef": {"kind": "Secret", "name": "", "key": "k"}})),
                    &[field, "caRef.name"],
                ),
                (
                    over_tls(json!({"caRef": {"kind": "ConfigMap", "name": "corp", "key": "ca crt"}})),
                    &[field, "caRef.key", "should match"],
                ),
                (over_tls(json!({"serverName": "a b"})), &[field, "serverName"]),
                (over_tls(json!({"insecureSkipVerify": true})), &["unknown field", "tls.insecureSkipVerify"]),
            ],
        )
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_wrong_server_is_refused_by_name_of_the_field() {
    in_namespace("server", |namespace| async move {
        let good = http("http://a.test/mcp");
        refused(
            &namespace,
            vec![
                (server("s", &json!({})), &["spec.transport", "Required"]),
                (server("s", &json!({"transport": {"type": "Http"}})), &["transport.http is required when transport.type is Http"]),
                (server("s", &json!({"transport": {"type": "Pigeon"}})), &["spec.transport.type", "Http"]),
                (server("s", &json!({"transport": http("ftp://a.test/mcp")})), &["transport.http.url must be an absolute http:// or https:// URL"]),
                (server("s", &json!({"transport": http("http://u:p@a.test/mcp")})), &["no user information"]),
                (server("s", &json!({"transport": http("http://a.test/#f")})), &["fragment"]),
                (server("s", &json!({"transport": http(&format!("http://a.{}.test/mcp", "x".repeat(64)))})), &["transport.http.url: a label of the host has at most 63 characters"]),
                (server("s", &shared_as("Content-Length")), &["auth.shared.header"]),
                (server("s", &shared_as("Expect")), &["auth.shared.header"]),
                (server("s", &shared_as("content-encoding")), &["auth.shared.header"]),
                (server("s", &shared_as("mcp-SESSION-id")), &["auth.shared.header", "X-Api-Key"]),
                (server("a.b", &json!({"transport": good})), &["metadata.name must be a DNS label"]),
                (server(&"n".repeat(64), &json!({"transport": good})), &["metadata.name must be a DNS label"]),
                (server("s", &json!({"transport": good, "timeouts": {"connect": "abc"}})), &["spec.timeouts.connect", "abc"]),
                (server("s", &json!({"transport": good, "timeouts": {"connect": "10m"}})), &["timeouts.connect must be more than 0s and at most timeouts.request"]),
                (server("s", &json!({"transport": good, "timeouts": {"connect": "0s"}})), &["timeouts.connect must be more than 0s"]),
                (server("s", &json!({"transport": good, "timeouts": {"request": "1h"}})), &["timeouts.request must be at most timeouts.requestMax"]),
                (server("s", &json!({"transport": good, "auth": {"type": "Shared"}})), &["auth.shared is required when auth.type is Shared"]),
                (
                    server("s", &json!({"transport": good, "auth": {"shared": {"secretKeyRef": {"name": "s", "key": "k"}}}})),
                    &["auth.shared may only be set when auth.type is Shared"],
                ),
                (
                    server("s", &json!({"transport": good, "auth": {"type": "Shared", "shared": {"secretKeyRef": {"name": "s", "key": "k", "namespace": "other"}}}})),
                    &["unknown field", "spec.auth.shared.secretKeyRef.namespace"],
                ),
                (
                    server("s", &json!({"transport": good, "auth": {"type": "Shared", "shared": {"secretKeyRef": {"name": "s", "key": "my key"}}}})),
                    &["spec.auth.shared.secretKeyRef.key", "should match"],
                ),
                (server("s", &json!({"transport": good, "auth": {"type": "Session"}})), &["auth.session is required when auth.type is Session", "{}"]),
                (
                    server("s", &json!({"transport": good, "auth": {"type": "None", "session": {}}})),
                    &["auth.session may only be set when auth.type is Session"],
                ),
                (
                    server("s", &json!({"transport": good, "auth": {"type": "Session", "session": {}, "shared": {"secretKeyRef": {"name": "s", "key": "k"}}}})),
                    &["auth.shared may only be set when auth.type is Shared"],
                ),
                (server("s", &own_as(&json!({"header": "Host"}))), &["auth.session.header", "X-Api-Key"]),
                (server("s", &own_as(&json!({"header": "MCP-Session-Id"}))), &["auth.session.header", "X-Api-Key"]),
                (server("s", &own_as(&json!({"header": "a b"}))), &["spec.auth.session.header"]),
                (server("s", &own_as(&json!({"scheme": "a b"}))), &["spec.auth.session.scheme"]),
                (server("s", &own_as(&json!({"env": "TOKEN"}))), &["unknown field", "spec.auth.session.env"]),
                (server("s", &json!({"transport": good, "auth": {"type": "Own"}})), &["spec.auth.type", "Session"]),
                (server("s", &json!({"transport": good, "pool": {"warm": -1}})), &["spec.pool.warm"]),
                (server("s", &json!({"transport": good, "pool": {"sessionsPerPod": 0}})), &["spec.pool.sessionsPerPod"]),
                (server("s", &json!({"transport": good, "tools": {}})), &["unknown field", "spec.tools"]),
            ],
        )
        .await;
    })
    .await;
}
