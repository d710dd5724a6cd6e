//! Operators that hear of every change five seconds late and are killed in the middle of their work: what they see is not what
//! is, and still each session has one pod, one slot and one end (CASES.md 34).

use berth_api::AgentSession;
use berth_e2e::{
    LateOperator, LateOperators, McpClient, Moment, POOL, Probe, TestNamespace, eventually, figure,
    give_lease_back, in_namespace, mcp_server, pod_metrics, rounds, seed, subject_of, wait_until_ready,
    without_operator,
};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// How late events are.
const DELAY: Duration = Duration::from_secs(5);
/// How long a step of a session may take that is seen so late, with all the pods that start meanwhile.
const BOUND: Duration = Duration::from_mins(3);
/// How long it may take until an operator comes to the moment at which it is killed.
const STRIKE_BOUND: Duration = Duration::from_mins(2);
/// Calls and ends under way at once.
const AT_ONCE: usize = 8;

async fn create(namespace: &TestNamespace, number: u32) {
    let spec = json!({"subject": {"name": subject_of(namespace, "alice")}, "servers": [{"name": "probe"}]});
    namespace.create::<AgentSession>(json!({"metadata": {"name": name(number)}, "spec": spec})).await;
}

fn name(number: u32) -> String {
    format!("s{number}")
}

/// What became of the operators that were killed.
#[derive(Default)]
struct Killed {
    sessions: u32,
    struck: u32,
    pods: u32,
}

/// Makes sessions and kills one operator after the other, in turn right after it has made a pod, and when a sidecar has
/// taken a session of which status does not tell yet. Either the same pod's next process follows, or another one whose
/// caches were filled before any of that happened. Gives the one that leads at last.
async fn kill_in_turn(
    namespace: &TestNamespace,
    operators: &LateOperators,
    burst: u32,
    kills: u32,
) -> (LateOperator, Killed) {
    let mut killed = Killed::default();
    let mut leading = operators.start("late");
    for round in 0..kills {
        let moment = [Moment::PodMade, Moment::SlotUnwritten][(round % 2) as usize];
        let other = (seed() + round / 2) % 2 == 1;
        eprintln!("round {} of {kills}: {moment:?}, another pod follows: {other}", round + 1);
        leading.end_at(moment);
        // Before there is another one that could.
        leading.leads(&namespace.client, BOUND).await;
        let standby = other.then(|| operators.start(&format!("late{round}")));
        if let Some(standby) = &standby {
            standby.runs_for_lease(BOUND).await;
        }
        if moment == Moment::PodMade {
            let next = killed.sessions + if round == 0 { burst } else { 1 };
            stream::iter(killed.sessions..next).for_each_concurrent(None, |n| create(namespace, n)).await;
            killed.sessions = next;
        }
        killed.struck += u32::from(leading.has_ended(STRIKE_BOUND).await);
        let pod = leading.pod().to_owned();
        killed.pods += leading.kill().await;
        leading = if let Some(standby) = standby {
            give_lease_back(&namespace.client).await;
            standby
        } else {
            operators.start(&pod)
        };
    }
    (leading, killed)
}

/// Every session is Ready, in a pod of its own; there is no other pod, and no sidecar holds a session that another one has. Whether
/// there were more before is seen by how many pods were made.
async fn each_has_one_pod(namespace: &TestNamespace, sessions: u32) {
    for number in 0..sessions {
        wait_until_ready(namespace, &name(number), BOUND).await;
    }
    eventually("each session has a pod and a slot of its own, and there are no others", BOUND, || async {
        let living = namespace.api::<AgentSession>().list(&ListParams::default()).await.unwrap();
        let servers = living.iter().filter_map(|session| session.status.as_ref()?.servers.first());
        let named: BTreeSet<String> =
            servers.filter_map(|server| Some(server.pod_ref.as_ref()?.uid.clone())).collect();
        let pods = namespace.api::<Pod>().list(&ListParams::default().labels(POOL)).await.unwrap();
        let all: BTreeSet<String> = pods.iter().filter_map(ResourceExt::uid).collect();
        let held = pod_metrics(&namespace.client, &namespace.name, POOL).await.sum("berth_sidecar_sessions");
        (named.len() == sessions as usize && all == named && held == f64::from(sessions)).then_some(())
    })
    .await;
}

async fn call(namespace: &TestNamespace, number: u32, token: &str) {
    let mut client = McpClient::new(&namespace.name, &name(number), "probe", token);
    client.initialize().await;
    assert_eq!(client.call("echo", json!({"message": name(number)})).await, name(number));
}

/// Deletes every session and waits until nothing is left of it.
async fn end_all(namespace: &TestNamespace) {
    let sessions = namespace.api::<AgentSession>();
    let living = sessions.list(&ListParams::default()).await.unwrap().items;
    let end = |session: AgentSession| async move {
        // That it was within drain, close and ten seconds is what its Event says.
        namespace.end(&session, BOUND).await;
        let events = namespace.events_about(&session.uid().unwrap()).await;
        assert_eq!(events.iter().map(|e| e.1.as_str()).collect::<Vec<_>>(), ["Cleared"], "{events:?}");
    };
    stream::iter(living).for_each_concurrent(AT_ONCE, end).await;
    eventually("the pods of the sessions are gone", BOUND, || async {
        let left = namespace.api::<Pod>().list(&ListParams::default().labels(POOL)).await.unwrap();
        left.items.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn operators_that_see_everything_late_and_are_killed_make_one_pod_for_each_session() {
    in_namespace("stale", |namespace| async move {
        let (burst, kills) = (rounds(5, 50), rounds(10, 100));
        let probe = Probe::start(&namespace).await;
        let token = namespace.token("alice").await;
        let pool = json!({
            "pool": {"warm": 0, "sessionsPerPod": 1, "maxPods": 2 * (burst + kills)},
            "timeouts": {"drain": "1s", "close": "2s"},
        });
        mcp_server(&namespace, "probe", &probe.url(), pool).await;
        let operators = LateOperators::as_installed(&namespace.client, &namespace.name, DELAY).await;
        without_operator(&namespace.client, async {
            let (leading, killed) = kill_in_turn(&namespace, &operators, burst, kills).await;
            each_has_one_pod(&namespace, killed.sessions).await;
            stream::iter(0..killed.sessions)
                .for_each_concurrent(AT_ONCE, |number| call(&namespace, number, &token))
                .await;
            end_all(&namespace).await;
            let made = killed.pods + leading.kill().await;
            give_lease_back(&namespace.client).await;

            figure("operators with late events killed, and those of them at their moment", {
                format!("{kills} and {}", killed.struck)
            });
            figure("sessions of operators with late events, and pods made", {
                format!("{} and {made}", killed.sessions)
            });
            assert_eq!((killed.struck, made), (kills, killed.sessions), "as many pods as sessions, ever");
            let books = probe.books().await;
            let (sessions, once) = (u64::from(killed.sessions), books.total("initialize"));
            assert_eq!((once, books.total("delete")), (sessions, sessions), "{books:?}");
            let orphans: Vec<String> =
                operators.log().into_iter().filter(|line| line.contains("orphan ended")).collect();
            assert_eq!(orphans, Vec::<String>::new());
        })
        .await;
    })
    .await;
}
