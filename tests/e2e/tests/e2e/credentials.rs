//! Credentials of sessions: each session's own, at every request, from labelled Secrets alone, and as they are now.

use crate::quiet::earlier_namespaces_are_gone;
use berth_api::AgentSession;
use berth_e2e::{
    McpClient, Probe, TestNamespace, eventually, figure, in_namespace, kubectl, mcp_server, rounds,
    subject_of, wait_for_baseline, wait_until_ready,
};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::time::Duration;

const BOUND: Duration = Duration::from_mins(1);
/// How soon a Secret is taken up that comes: it is watched. Far less than any look that is due by itself.
const PROMPT: Duration = Duration::from_secs(5);

fn sha256_hex(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

/// Applies a Secret with one key `token`; labelled as credential `label`, unless that is empty.
async fn secret(namespace: &TestNamespace, name: &str, label: &str, data: Value) {
    let labels = if label.is_empty() { json!({}) } else { json!({"berth.dev/credential": label}) };
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}, "stringData": data,
    });
    let params = PatchParams::apply("e2e").force();
    namespace.api::<Secret>().patch(name, &params, &Patch::Apply(&secret)).await.unwrap();
}

async fn session_server(namespace: &TestNamespace, probe: &Probe) {
    let spec = json!({"auth": {"type": "Session", "session": {}}, "pool": {"maxPods": 40}});
    mcp_server(namespace, "probe", &probe.url(), spec).await;
}

/// Makes the session `name` of alice, whose credential for the server is in the Secret `secret`.
async fn claim(namespace: &TestNamespace, name: &str, secret: &str) -> AgentSession {
    let credential = json!({"secretKeyRef": {"name": secret, "key": "token"}});
    let servers = json!([{"name": "probe", "credential": credential}]);
    let spec = json!({"subject": {"name": subject_of(namespace, "alice")}, "servers": servers});
    namespace.create::<AgentSession>(json!({"metadata": {"name": name}, "spec": spec})).await
}

/// Waits until `kubectl get` shows the session so.
async fn shows(namespace: &TestNamespace, name: &str, words: [&str; 2]) {
    eventually(&format!("session {name} shows {words:?}"), BOUND, || async {
        let printed = kubectl(&["get", "bses", name, "-n", &namespace.name, "--no-headers"], "").await;
        let row: Vec<&str> = printed.out.split_whitespace().collect();
        words.iter().all(|word| row.contains(word)).then_some(())
    })
    .await;
}

/// Waits until the condition `ResolvedRefs` of a session has that status, that reason, and all of `words` in its message.
async fn resolved(namespace: &TestNamespace, name: &str, status: &str, reason: &str, words: &[&str]) {
    let what = format!("session {name} says ResolvedRefs={status}, {reason}, {words:?}");
    eventually(&what, PROMPT, || async {
        let status_of = namespace.api::<AgentSession>().get(name).await.unwrap().status?;
        let told = status_of.conditions.into_iter().find(|condition| condition.type_ == "ResolvedRefs")?;
        let is_so = told.status == status && told.reason == reason;
        (is_so && words.iter().all(|word| told.message.contains(word))).then_some(())
    })
    .await;
}

async fn client(namespace: &TestNamespace, name: &str, token: &str) -> McpClient {
    let mut client = McpClient::new(&namespace.name, name, "probe", token);
    client.initialize().await;
    client
}

/// Digest of the credential that the upstream saw with a call made now.
async fn seen_by_upstream(client: &McpClient) -> String {
    let answer = client.call_as(&json!(5), "whoami", json!({})).await;
    answer["result"]["structuredContent"]["authorizationSha256"].as_str().expect("a digest").to_owned()
}

#[tokio::test]
async fn sessions_by_the_hundred_use_their_own_credential_and_leave_nothing_while_others_live() {
    in_namespace("hundred", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        session_server(&namespace, &probe).await;
        let token = namespace.token("alice").await;
        let others = 5;
        let many = rounds(100, 1_000);
        let all: Vec<String> = (0..many + others).map(|n| format!("s{n}")).collect();
        let (of, bearer) = (&namespace, token.as_str());
        let used = stream::iter(&all).map(|name| async move {
            let (namespace, token) = (of, bearer);
            secret(namespace, name, "session", json!({"token": format!("credential-of-{name}")})).await;
            claim(namespace, name, name).await;
            let made = wait_until_ready(namespace, name, Duration::from_mins(3)).await;
            let client = client(namespace, name, token).await;
            let digest = sha256_hex(&format!("Bearer credential-of-{name}"));
            assert_eq!(seen_by_upstream(&client).await, digest, "{name}");
            (made, client)
        });
        let used: Vec<(AgentSession, McpClient)> = used.buffered(10).collect().await;
        let (living, ending) = used.split_at(others as usize);

        let ends = stream::iter(ending).map(|(session, _)| namespace.end(session, Duration::from_mins(2)));
        ends.buffer_unordered(20).collect::<Vec<()>>().await;
        let books = probe.books().await;
        assert_eq!(books.total("initialize"), u64::from(many + others));
        assert_eq!((books.total("delete"), books.total("deleteUnknown")), (u64::from(many), 0));
        figure("sessions with a credential of their own, used and ended", many);
        figure("DELETEs that the upstream got for them", books.total("delete"));
        let mut by_credential: BTreeMap<String, u32> = BTreeMap::new();
        for upstream in books.sessions() {
            // At initialize and at each request after it, and of no two sessions the same.
            let seen = upstream["authorizationSha256s"].as_array().unwrap();
            assert_eq!(seen.len(), 1, "{upstream}");
            assert_eq!(upstream["authorizationSha256AtInitialize"], seen[0]);
            *by_credential.entry(seen[0].as_str().unwrap().to_owned()).or_default() += 1;
        }
        let wanted =
            all.iter().map(|name| (sha256_hex(&format!("Bearer credential-of-{name}")), 1)).collect();
        assert_eq!(by_credential, wanted);
        for (session, _) in ending {
            let events = namespace.events_about(&session.uid().unwrap()).await;
            assert_eq!(events.iter().map(|e| e.1.as_str()).collect::<Vec<_>>(), ["Cleared"], "{events:?}");
        }
        for (_, client) in living {
            assert_eq!(client.call("echo", json!({"message": "on"})).await, "on");
        }
        wait_for_baseline(&namespace, living.len()).await;
        for (session, _) in living {
            namespace.end(session, BOUND).await;
        }
        wait_for_baseline(&namespace, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_secret_that_comes_changes_and_goes_is_followed_unaided() {
    in_namespace("follows", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        session_server(&namespace, &probe).await;
        let token = namespace.token("alice").await;
        // Within `PROMPT` the operator has nothing else to do.
        earlier_namespaces_are_gone(&namespace).await;
        claim(&namespace, "s", "late").await;
        // Kind, name and key (CASES.md 28).
        let missing = ["secret \"late\" does not exist", "key \"token\""];
        resolved(&namespace, "s", "False", "RefNotFound", &missing).await;
        let never = claim(&namespace, "never", "absent").await;
        resolved(&namespace, "never", "False", "RefNotFound", &["secret \"absent\""]).await;
        namespace.end(&never, PROMPT).await;
        let events = namespace.events_about(&never.uid().unwrap()).await;
        assert_eq!(events.iter().map(|e| e.1.as_str()).collect::<Vec<_>>(), ["Cleared"], "{events:?}");
        secret(&namespace, "late", "session", json!({"other": "x"})).await;
        let keyless = ["secret \"late\" has no key \"token\""];
        resolved(&namespace, "s", "False", "RefNotFound", &keyless).await;
        // As `echo token |` leaves it.
        secret(&namespace, "late", "session", json!({"token": "first\n"})).await;
        resolved(&namespace, "s", "True", "ResolvedRefs", &[]).await;
        shows(&namespace, "s", ["True", "Bound"]).await;
        let client = client(&namespace, "s", &token).await;
        assert_eq!(seen_by_upstream(&client).await, sha256_hex("Bearer first"));

        secret(&namespace, "late", "session", json!({"token": "second\r\n"})).await;
        eventually("a call carries the changed credential", BOUND, || async {
            (seen_by_upstream(&client).await == sha256_hex("Bearer second")).then_some(())
        })
        .await;
        assert_eq!(probe.books().await.total("initialize"), 1, "no reconnect for a new header");

        // Gone: nothing is sent any more, and the old value is not used.
        let calls = probe.books().await.total("toolsCall");
        namespace.api::<Secret>().delete("late", &DeleteParams::default()).await.unwrap();
        resolved(&namespace, "s", "False", "RefNotFound", &missing).await;
        let params = json!({"name": "echo", "arguments": {"message": "x"}});
        let call = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params});
        let answer = client.send(&call).await;
        assert!(answer.messages()[0].get("error").is_some(), "{answer:?}");
        assert_eq!(probe.books().await.total("toolsCall"), calls);

        secret(&namespace, "late", "session", json!({"token": "third"})).await;
        resolved(&namespace, "s", "True", "ResolvedRefs", &[]).await;
        shows(&namespace, "s", ["True", "Bound"]).await;
        eventually("the session is served with the new Secret", BOUND, || async {
            let digest = sha256_hex("Bearer third");
            let params = json!({"name": "whoami", "arguments": {}});
            let asked = json!({"jsonrpc": "2.0", "id": 10, "method": "tools/call", "params": params});
            let answer = client.send(&asked).await;
            answer.messages().iter().any(|m| m.to_string().contains(&digest)).then_some(())
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_secret_without_the_label_never_goes_up_and_bad_bytes_are_told_without_their_value() {
    in_namespace("permitted", |namespace| async move {
        let probe = Probe::start(&namespace).await;
        session_server(&namespace, &probe).await;
        let token = namespace.token("alice").await;
        let key = "canary-private-key";
        secret(&namespace, "tls", "", json!({"token": key})).await;
        secret(&namespace, "of-servers", "server", json!({"token": key})).await;
        secret(&namespace, "control", "session", json!({"token": "canary\u{1}bad"})).await;
        secret(&namespace, "empty", "session", json!({"token": " \n"})).await;
        secret(&namespace, "bom", "session", json!({"token": "\u{feff}canary"})).await;
        let rows = [
            ("tls", "RefNotPermitted"),
            ("of-servers", "RefNotPermitted"),
            ("control", "InvalidCredential"),
            ("empty", "InvalidCredential"),
            ("bom", "InvalidCredential"),
            ("missing", "RefNotFound"),
        ];
        for (name, reason) in rows {
            claim(&namespace, name, name).await;
            shows(&namespace, name, ["False", reason]).await;
            let url = format!("{}/{}/{name}/probe/mcp", berth_e2e::gateway_url(), namespace.name);
            let bearer = format!("Bearer {token}");
            let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
            let answer = berth_e2e::post(&url, &[("authorization", &bearer)], &ping).await;
            assert!(!answer.status.is_success(), "{name}: {answer:?}");
            let text = String::from_utf8_lossy(&answer.body);
            assert!(text.contains(reason), "{name}: the caller learns the reason: {text}");
        }
        let books = probe.books().await;
        assert_eq!((books.connections(), books.total("initialize")), (0, 0), "{books:?}");
        assert!(!books.0.to_string().contains(&sha256_hex(&format!("Bearer {key}"))));
        let printed = kubectl(&["get", "bsrv,bses,events", "-n", &namespace.name, "-o", "yaml"], "").await;
        assert!(
            printed.out.contains("kind: AgentSession") && !printed.out.contains("canary"),
            "{}",
            printed.out
        );
        // Who gets its label is taken up without anybody touching the session.
        let labelled = Patch::Merge(json!({"metadata": {"labels": {"berth.dev/credential": "session"}}}));
        namespace.api::<Secret>().patch("tls", &PatchParams::default(), &labelled).await.unwrap();
        shows(&namespace, "tls", ["True", "Bound"]).await;
        let client = client(&namespace, "tls", &token).await;
        assert_eq!(seen_by_upstream(&client).await, sha256_hex(&format!("Bearer {key}")));
    })
    .await;
}
