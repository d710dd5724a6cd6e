use super::*;
use crate::entry::{Binding, Placement, Server};
use berth_api::Reason;
use berth_wire::ServerPlacement;

fn entry(uid: &str) -> Entry {
    with_binding(uid, Binding::Pending(Reason::Pending))
}

fn with_binding(uid: &str, binding: Binding) -> Entry {
    let servers = [Server { name: "github".into(), binding }].into();
    Entry { uid: uid.into(), issuer: "".into(), subject: "alice".into(), deleting: false, servers }
}

/// `demo/a` of that UID is placed in these pods, for the server `github`.
fn placements(uid: &str, pods: &[&str]) -> SessionPlacements {
    let server = |pod: &&str| ServerPlacement {
        server: "github".into(),
        server_uid: "server-1".into(),
        pod_uid: (*pod).into(),
        address: "10.0.0.7".parse().unwrap(),
    };
    let servers = pods.iter().map(server).collect();
    SessionPlacements { uid: uid.into(), namespace: "demo".into(), name: "a".into(), servers }
}

fn pod_of(entry: &Entry) -> Option<&str> {
    match &entry.servers[0].binding {
        Binding::Placed(placement) => Some(&placement.pod_uid),
        Binding::Pending(_) => None,
    }
}

/// The pod of `demo/a`.
fn pod(index: &Index) -> Option<String> {
    pod_of(&index.get("demo/a").unwrap()).map(ToOwned::to_owned)
}

fn uid(index: &Index, key: &str) -> Option<String> {
    index.get(key).map(|entry| entry.uid.to_string())
}

#[test]
fn a_list_removes_what_it_did_not_name_only_at_its_end() {
    let index = Index::default();
    index.apply("demo/a", entry("1"));
    index.apply("demo/b", entry("2"));
    index.begin_list();
    index.listed("demo/b");
    assert!(index.get("demo/a").is_some(), "the list is not complete");
    assert!(!index.is_synced());
    index.end_list();
    assert_eq!(uid(&index, "demo/a"), None);
    assert_eq!(uid(&index, "demo/b").as_deref(), Some("2"));
    assert!(index.is_synced());
}

#[test]
fn a_list_that_was_broken_off_counts_for_nothing() {
    let index = Index::default();
    index.apply("demo/a", entry("1"));
    index.begin_list();
    index.begin_list();
    index.listed("demo/a");
    index.end_list();
    assert_eq!(index.len(), 1);
}

#[tokio::test]
async fn a_follower_sees_its_session_come_change_and_go() {
    let index = Arc::new(Index::default());
    let mut follower = index.follow("demo/a");
    assert!(follower.current().is_none());
    index.apply("demo/a", entry("1"));
    assert!(futures::poll!(std::pin::pin!(follower.changed())).is_ready());
    assert_eq!(&*follower.current().unwrap().uid, "1");
    index.remove("demo/a");
    assert!(futures::poll!(std::pin::pin!(follower.changed())).is_ready());
    assert!(follower.current().is_none());
}

#[tokio::test]
async fn a_follower_is_not_woken_by_other_sessions() {
    let index = Arc::new(Index::default());
    let mut follower = index.follow("demo/a");
    index.apply("demo/b", entry("1"));
    assert!(futures::poll!(std::pin::pin!(follower.changed())).is_pending());
}

#[test]
fn the_last_follower_of_a_key_leaves_nothing_behind() {
    let index = Arc::new(Index::default());
    let (first, second) = (index.follow("demo/a"), index.follow("demo/a"));
    drop(first);
    assert_eq!(index.table().followed.len(), 1);
    drop(second);
    assert!(index.table().followed.is_empty());
}

#[test]
fn what_the_leader_says_comes_before_the_status_and_falls_back_to_it() {
    let index = Index::default();
    let of_status = Placement {
        pod_uid: "of status".into(),
        address: "10.0.0.1".parse().unwrap(),
        server_uid: "server-1".into(),
    };
    index.apply("demo/a", entry("1"));
    index.place(&placements("1", &["p"]));
    assert_eq!(pod(&index).as_deref(), Some("p"), "no status yet");
    index.apply("demo/a", with_binding("1", Binding::Placed(of_status)));
    assert_eq!(pod(&index).as_deref(), Some("p"), "the status is late");
    index.place(&placements("1", &["q"]));
    assert_eq!(pod(&index).as_deref(), Some("q"));
    index.place(&placements("1", &[]));
    assert_eq!(pod(&index).as_deref(), Some("of status"), "given back");
    index.place(&placements("1", &["p"]));
    index.forget_placements();
    assert_eq!(pod(&index).as_deref(), Some("of status"), "the leader fell silent");
}

#[test]
fn only_places_are_taken_from_the_leader() {
    let index = Index::default();
    let other = Server { name: "other".into(), binding: Binding::Pending(Reason::LimitReached) };
    let ending = Entry { deleting: true, servers: [other.clone()].into(), ..entry("1") };
    index.apply("demo/a", ending.clone());
    index.place(&placements("1", &["p"]));
    assert_eq!(*index.get("demo/a").unwrap(), ending, "a server that the spec does not name stays out");
}

#[test]
fn what_comes_before_the_session_waits_for_its_uid() {
    let index = Index::default();
    index.place(&placements("2", &["p"]));
    assert!(index.is_empty(), "the leader makes no session");
    index.apply("demo/a", entry("1"));
    assert_eq!(pod(&index), None, "it is another session of that name");
    index.apply("demo/a", entry("2"));
    assert_eq!(pod(&index).as_deref(), Some("p"));
    index.apply("demo/a", entry("3"));
    assert_eq!(pod(&index), None, "the place went with its session");

    index.place(&placements("4", &["p"]));
    assert_eq!(pod(&index), None, "it is told of the next session of that name");
    index.place(&placements("4", &[]));
    index.apply("demo/a", entry("4"));
    assert_eq!(pod(&index), None, "given back before it was seen");
    index.place(&placements("5", &["p"]));
    index.forget_placements();
    index.apply("demo/a", entry("5"));
    assert_eq!(pod(&index), None, "forgotten before it was seen");
}

#[tokio::test]
async fn a_follower_is_woken_by_the_leader_where_it_makes_a_difference() {
    let index = Arc::new(Index::default());
    index.apply("demo/a", entry("1"));
    let mut follower = index.follow("demo/a");
    index.place(&placements("1", &["p"]));
    assert!(futures::poll!(std::pin::pin!(follower.changed())).is_ready());
    assert_eq!(pod_of(&follower.current().unwrap()), Some("p"));
    index.place(&placements("1", &["p"]));
    index.place(&placements("another", &["p"]));
    assert!(futures::poll!(std::pin::pin!(follower.changed())).is_pending());
    index.forget_placements();
    assert!(futures::poll!(std::pin::pin!(follower.changed())).is_ready());
    assert_eq!(pod_of(&follower.current().unwrap()), None);
}
