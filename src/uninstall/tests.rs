use super::*;
use crate::memory_api::MemoryApi;
use berth_api::label::SHUTDOWN;
use serde_json::{Value, json};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/berth/leases/berth-operator";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/berth/deployments/berth-operator";
const OPERATOR_POD: &str = "/api/v1/namespaces/berth/pods/berth-operator-0";

fn options(force: bool) -> Options {
    let timeout = Duration::from_mins(1);
    Options { namespace: "berth".into(), deployment: "berth-operator".into(), timeout, force }
}

fn session_path(name: &str) -> String {
    format!("/apis/berth.dev/v1alpha1/namespaces/demo/agentsessions/{name}")
}

fn put_session(api: &MemoryApi, name: &str, finalizers: &Value) {
    let metadata = json!({"name": name, "namespace": "demo", "finalizers": finalizers});
    api.put(&session_path(name), json!({"metadata": metadata, "spec": {"subject": {"name": "alice"}}}));
}

/// Everything that an install with one pool and some sessions has, and things of others beside it.
fn installed(sessions: &[&str]) -> MemoryApi {
    let api = MemoryApi::default();
    let object = |name: &str, labels: Value| json!({"metadata": {"name": name, "namespace": "demo", "labels": labels}});
    let ours = || json!({"app.kubernetes.io/managed-by": "berth-operator"});
    api.put("/api/v1/namespaces/demo/pods/pool-0", object("pool-0", json!({"berth.dev/role": "pool"})));
    api.put("/api/v1/namespaces/demo/pods/other", object("other", json!({})));
    api.put("/api/v1/namespaces/demo/secrets/pool-tls", object("pool-tls", ours()));
    api.put(
        "/api/v1/namespaces/demo/secrets/token",
        object("token", json!({"berth.dev/credential": "server"})),
    );
    let policies = "/apis/networking.k8s.io/v1/namespaces/demo/networkpolicies";
    api.put(&format!("{policies}/pool-net"), object("pool-net", ours()));
    api.put(&format!("{policies}/other"), object("other", json!({"app.kubernetes.io/managed-by": "Helm"})));
    let own = json!({"metadata": {"name": "berth-ca", "namespace": "berth", "labels": ours()}});
    api.put("/api/v1/namespaces/berth/secrets/berth-ca", own);
    let labels = json!({"app.kubernetes.io/component": "operator"});
    let selector = json!({"matchLabels": labels});
    let metadata = json!({"name": "berth-operator", "namespace": "berth"});
    api.put(
        DEPLOYMENT,
        json!({"metadata": metadata, "spec": {"replicas": 2, "selector": selector, "template": {}}}),
    );
    api.put(
        OPERATOR_POD,
        json!({"metadata": {"name": "berth-operator-0", "namespace": "berth", "labels": labels}}),
    );
    let renewed = "2026-01-01T00:00:00.000000Z";
    let held = json!({"holderIdentity": "op_1", "renewTime": renewed, "leaseDurationSeconds": 15});
    api.put(LEASE, json!({"metadata": {"name": "berth-operator", "namespace": "berth"}, "spec": held}));
    for name in sessions {
        put_session(&api, name, &json!(["berth.dev/session-cleanup"]));
    }
    api
}

/// An operator: ends what is deleted, as long as its Deployment has replicas; then its pod goes.
async fn operate(api: MemoryApi) {
    loop {
        sleep(Duration::from_millis(1500)).await;
        if api.get(DEPLOYMENT).unwrap()["spec"]["replicas"] == 0 {
            api.remove(OPERATOR_POD);
            return;
        }
        end_deleted(&api);
    }
}

fn end_deleted(api: &MemoryApi) {
    for path in api.paths().iter().filter(|path| path.contains("/agentsessions/")) {
        let session = api.get(path).unwrap();
        if session["metadata"]["deletionTimestamp"].is_string() {
            assert_eq!(session["spec"]["end"]["reason"], "Shutdown");
            assert!(api.get(LEASE).unwrap()["metadata"]["annotations"][SHUTDOWN].is_string());
            api.remove(path);
        }
    }
}

async fn uninstall(api: &MemoryApi, force: bool) -> Result<(), Error> {
    run(&options(force), &api.client(), Clock::SYSTEM).await
}

/// What is there after an uninstall that went well: things of others.
const OTHERS: [&str; 4] = [
    "/api/v1/namespaces/demo/pods/other",
    "/api/v1/namespaces/demo/secrets/token",
    DEPLOYMENT,
    "/apis/networking.k8s.io/v1/namespaces/demo/networkpolicies/other",
];

#[tokio::test(start_paused = true)]
async fn an_uninstall_ends_all_sessions_then_the_operator_then_what_it_made() {
    let api = installed(&["a", "b", "c"]);
    let operator = tokio::spawn(operate(api.clone()));
    // One more is made while the others end.
    let late = api.clone();
    tokio::spawn(async move {
        sleep(Duration::from_millis(500)).await;
        put_session(&late, "late", &json!(["berth.dev/session-cleanup"]));
    });
    uninstall(&api, false).await.unwrap();
    operator.await.unwrap();
    assert_eq!(api.paths(), OTHERS);
    let writes = api.writes();
    let at = |what: &str| writes.iter().position(|write| write.contains(what)).unwrap();
    assert!(at("agentsessions/late") < at("/scale") && at("/scale") < at("pods/pool-0"));
    assert!(at("pods/pool-0") < at("secrets/pool-tls"));
}

#[tokio::test(start_paused = true)]
async fn without_an_operator_the_uninstall_says_what_is_left_and_removes_nothing() {
    let api = installed(&["a"]);
    let before = api.paths();
    let said = uninstall(&api, false).await.unwrap_err().to_string();
    for part in ["1 session is left: demo/a", "no operator leads", "kubectl patch --filename -"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(api.paths(), before);
    assert_eq!(api.get(DEPLOYMENT).unwrap()["spec"]["replicas"], 2);
    assert!(api.get(LEASE).unwrap()["metadata"]["annotations"][SHUTDOWN].is_null(), "Berth goes on");
    // Run again with force, it comes to its end.
    let operator = tokio::spawn(operate_no_session(api.clone()));
    uninstall(&api, true).await.unwrap();
    operator.await.unwrap();
    assert_eq!(api.paths(), OTHERS);
}

/// An operator that ends no session, and goes when it is scaled to zero.
async fn operate_no_session(api: MemoryApi) {
    while api.get(DEPLOYMENT).unwrap()["spec"]["replicas"] != 0 {
        sleep(POLL).await;
    }
    api.remove(OPERATOR_POD);
}

#[tokio::test(start_paused = true)]
async fn force_removes_no_finalizer_of_others() {
    let api = installed(&[]);
    put_session(&api, "a", &json!(["other.test/first", "berth.dev/session-cleanup"]));
    let said = uninstall(&api, true).await.unwrap_err().to_string();
    assert!(said.contains("demo/a") && said.contains("finalizers of others"), "{said}");
    assert_eq!(api.get(&session_path("a")).unwrap()["metadata"]["finalizers"], json!(["other.test/first"]));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_has_a_reason_already_is_ended_all_the_same() {
    let api = installed(&["a"]);
    api.rule(|method, path| {
        let rewrites = method == http::Method::PATCH && path.contains("/agentsessions/");
        rewrites.then(|| crate::fixture::failure(422, "Invalid", "end is write-once"))
    });
    let said = uninstall(&api, false).await.unwrap_err().to_string();
    assert!(!said.contains("cannot end"), "{said}");
    assert!(api.writes().contains(&format!("DELETE {}", session_path("a"))));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_ended_or_does_not_go_is_said() {
    let api = installed(&["a"]);
    api.rule(|method, path| {
        let ends = method == http::Method::PATCH && path.contains("/agentsessions/");
        ends.then(|| crate::fixture::failure(403, "Forbidden", "not for you"))
    });
    let said = uninstall(&api, false).await.unwrap_err().to_string();
    assert!(said.contains("cannot end demo/a: not for you"), "{said}");
    let api = installed(&[]);
    let operator = tokio::spawn(operate(api.clone()));
    let metadata = json!({"name": "stuck", "namespace": "demo", "labels": {"berth.dev/role": "pool"},
        "finalizers": ["other.test/first"]});
    api.put("/api/v1/namespaces/demo/pods/stuck", json!({"metadata": metadata}));
    let said = uninstall(&api, false).await.unwrap_err().to_string();
    assert!(said.contains("Pod") && said.contains("demo/stuck"), "{said}");
    operator.await.unwrap();
    assert_eq!(api.get(DEPLOYMENT).unwrap()["spec"]["replicas"], 2, "the operator is brought back");
    assert!(api.get(LEASE).unwrap()["metadata"]["annotations"][SHUTDOWN].is_null(), "Berth goes on");
}

#[tokio::test(start_paused = true)]
async fn sessions_made_while_the_operator_stops_end_as_well() {
    let api = installed(&["a"]);
    let (stage, scene) = (
        api.clone(),
        json!({"metadata": {"name": "berth-operator-1", "namespace": "berth",
        "labels": {"app.kubernetes.io/component": "operator"}}}),
    );
    let operators = tokio::spawn(async move {
        // The first one gives its finalizer to a session as its last deed; another comes too late even for that.
        while stage.get(DEPLOYMENT).unwrap()["spec"]["replicas"] != 0 {
            end_deleted(&stage);
            sleep(POLL).await;
        }
        put_session(&stage, "late", &json!(["berth.dev/session-cleanup"]));
        put_session(&stage, "later", &json!([]));
        stage.remove(OPERATOR_POD);
        while stage.get(DEPLOYMENT).unwrap()["spec"]["replicas"] != 2 {
            sleep(POLL).await;
        }
        stage.put(OPERATOR_POD, scene);
        operate(stage).await;
    });
    uninstall(&api, false).await.unwrap();
    operators.await.unwrap();
    assert_eq!(api.paths(), OTHERS);
    assert_eq!(api.get(DEPLOYMENT).unwrap()["spec"]["replicas"], 0);
}

#[tokio::test(start_paused = true)]
async fn force_deletes_what_could_not_be_deleted_before_and_blames_nobody_else() {
    let ends = |method: &http::Method, path: &str| {
        method == http::Method::DELETE && path.contains("/agentsessions/")
    };
    let refusal = || crate::fixture::failure(403, "Forbidden", "not for you");
    let api = installed(&["a"]);
    api.rule(move |method, path| ends(method, path).then(refusal));
    let said = uninstall(&api, true).await.unwrap_err().to_string();
    assert!(said.contains("cannot end demo/a: not for you") && !said.contains("others"), "{said}");
    assert_eq!(
        api.get(&session_path("a")).unwrap()["metadata"]["finalizers"],
        json!(["berth.dev/session-cleanup"]),
        "a session that lives keeps it"
    );
    // Refused until the sessions are given up, and not any more then.
    let api = installed(&["a"]);
    let over = Instant::now() + Duration::from_secs(46);
    api.rule(move |method, path| (Instant::now() < over && ends(method, path)).then(refusal));
    let operator = tokio::spawn(operate_no_session(api.clone()));
    uninstall(&api, true).await.unwrap();
    operator.await.unwrap();
    assert_eq!(api.paths(), OTHERS);
}
