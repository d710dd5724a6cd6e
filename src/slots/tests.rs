use super::*;
use berth_api::Subject;

fn session(uid: &str, subject: &str, pod: Option<&str>) -> AgentSession {
    let pod_ref = pod.map(
        |pod| serde_json::json!({"name": pod, "uid": pod, "address": "10.0.0.1", "serverUid": "server"}),
    );
    serde_json::from_value(serde_json::json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "AgentSession",
        "metadata": {"name": uid, "namespace": "demo", "uid": uid},
        "spec": {"subject": {"issuer": "", "name": subject}, "servers": [{"name": "everything"}]},
        "status": {"servers": [{"name": "everything", "state": "Bound", "podRef": pod_ref}]},
    }))
    .unwrap()
}

#[test]
fn what_status_says_is_promised_from_the_start_and_gone_with_the_session() {
    let slots = Slots::default();
    slots.know(&session("a", "alice", Some("p1")));
    slots.know(&session("b", "bob", None));
    assert_eq!(slots.promised_to("server", "p1"), ["a"]);
    assert_eq!(slots.promises_of("a"), [("server".to_owned(), "p1".to_owned())]);
    slots.finish("a");
    assert_eq!((slots.promised_to("server", "p1"), slots.is_over("a")), (vec![], true));
    slots.forget("a");
    assert!(slots.object("a").is_none() && slots.object("b").is_some());
}

#[test]
fn knowing_again_does_not_undo_a_newer_promise() {
    let slots = Slots::default();
    slots.know(&session("a", "alice", Some("p1")));
    slots.with(|book| book.promise("a", "server", "p2"));
    slots.know(&session("a", "alice", Some("p1")));
    assert_eq!(slots.promised_to("server", "p2"), ["a"]);
}

#[test]
fn it_is_known_whose_a_session_is_while_it_exists() {
    let slots = Slots::default();
    slots.know(&session("a", "alice", None));
    let alice = Subject { issuer: String::new(), name: "alice".into() };
    assert_eq!(slots.with(|book| book.subject_of("a").cloned()), Some(alice));
    slots.forget("a");
    assert_eq!(slots.with(|book| book.subject_of("a").cloned()), None);
}

#[test]
fn a_session_or_a_mark_that_comes_while_the_sweep_looks_is_not_taken_for_gone() {
    let slots = Slots::default();
    slots.know(&session("stays", "alice", None));
    slots.know(&session("gone", "alice", Some("p1")));
    slots.with(|book| book.condemn("p1"));
    slots.with(|book| book.promise("unknown", "server", "p3"));
    // What the store says is read last: what comes after the list of the book is in neither.
    let sessions = || {
        slots.know(&session("late", "alice", Some("p2")));
        slots.with(|book| book.condemn("p2"));
        HashSet::from(["stays".to_owned()])
    };
    slots.retain(sessions, HashSet::new);
    assert!(slots.object("stays").is_some() && slots.object("late").is_some());
    assert!(slots.object("gone").is_none());
    assert_eq!(slots.promised_to("server", "p3"), Vec::<String>::new());
    assert_eq!(
        (slots.promised_to("server", "p1"), slots.promised_to("server", "p2")),
        (vec![], vec!["late".to_owned()])
    );
    assert!(slots.with(|book| !book.is_condemned("p1") && book.is_condemned("p2")));
}

#[test]
fn a_look_that_began_before_its_session_went_does_not_promise_it_a_slot() {
    let slots = Slots::default();
    let session = session("a", "alice", Some("p1"));
    slots.know(&session);
    assert_eq!(slots.forget("a"), ["server"]);
    slots.know(&session);
    assert_eq!((slots.object("a"), slots.promised_to("server", "p1")), (None, vec![]));
}

#[test]
fn a_sweep_says_where_slots_came_free() {
    let slots = Slots::default();
    slots.know(&session("a", "alice", Some("p1")));
    slots.know(&session("b", "alice", Some("p1")));
    let freed = slots.retain(|| HashSet::from(["b".to_owned()]), HashSet::new);
    assert_eq!(freed, HashSet::from(["server".to_owned()]));
    assert_eq!(slots.retain(|| HashSet::from(["b".to_owned()]), HashSet::new), HashSet::new());
}

#[test]
fn a_slot_in_a_pod_that_is_gone_is_not_confirmed_any_more() {
    let slots = Slots::default();
    slots.with(|book| {
        book.promise("a", "server", "p1");
        book.sent("a", "server", "p1", "f".into());
        book.promise("b", "server", "p2");
        book.sent("b", "server", "p2", "g".into());
    });
    slots.pod_gone("p1");
    assert_eq!((slots.confirmed("a").len(), slots.confirmed("b").len()), (0, 1));
}

#[test]
fn what_was_sent_is_forgotten_with_the_pod() {
    let slots = Slots::default();
    slots.with(|book| {
        book.promise("a", "server", "p1");
        book.sent("a", "server", "p1", "f".into());
        book.sent("a", "server", "p9", "g".into());
        assert_eq!(book.promise_of("a", "server").unwrap().sent.as_deref(), Some("f"));
        book.promise("a", "server", "p2");
        assert_eq!(book.promise_of("a", "server").unwrap().sent, None);
    });
}

#[tokio::test]
async fn only_slots_that_a_sidecar_confirmed_are_told_and_told_again_when_they_are_given_back() {
    let slots = Slots::default();
    slots.know(&session("a", "alice", Some("p0")));
    let news = slots.feed().watch();
    slots.with(|book| book.promise("a", "server", "p1"));
    assert_eq!((slots.confirmed("a"), slots.all_confirmed().len()), (vec![], 0));
    slots.with(|book| book.sent("a", "server", "p1", "f".into()));
    assert_eq!(slots.confirmed("a"), [("server".to_owned(), "p1".to_owned())]);
    assert_eq!(slots.all_confirmed(), HashMap::from([("a".to_owned(), slots.confirmed("a"))]));
    assert_eq!(news.changed().await, HashSet::from(["a".into()]));
    slots.with(|book| book.sent("a", "server", "p1", "g".into()));
    slots.with(|book| book.promise("a", "server", "p2"));
    assert_eq!((slots.confirmed("a"), news.changed().await), (vec![], HashSet::from(["a".into()])));
}
