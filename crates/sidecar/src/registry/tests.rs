//! The fence of the terms, under fire.

use super::*;
use crate::fixture;
use crate::upstream::Carried;
use berth_wire::SessionState;
use std::sync::Barrier;

fn credential(registry: &Registry) -> String {
    let desired = registry.get("s").unwrap().desired();
    let Carried::Headers(headers) = &desired.carried else { panic!("withheld") };
    headers[http::header::AUTHORIZATION].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn nothing_of_a_lower_term_happens_after_a_request_of_a_higher_one_was_answered() {
    let shared = fixture::shared();
    for _ in 0..300 {
        let registry = Registry::new(fixture::server(), 1, shared.clone(), CancellationToken::new());
        registry.put(6, fixture::spec("Bearer first")).unwrap();
        let start = Barrier::new(2);
        let refusal = std::thread::scope(|scope| {
            let former = scope.spawn(|| {
                start.wait();
                loop {
                    if let Err(refused) = registry.put(6, fixture::spec("Bearer former")) {
                        return refused;
                    }
                }
            });
            start.wait();
            registry.put(7, fixture::spec("Bearer leading")).unwrap();
            assert_eq!(credential(&registry), "Bearer leading");
            former.join().unwrap()
        });
        assert!(
            matches!(
                refusal,
                PutError::Refused(Refusal { reason: RefusalReason::OldTerm, term: Some(7), .. })
            ),
            "{refusal:?}"
        );
        assert_eq!(credential(&registry), "Bearer leading");
    }
}

#[tokio::test]
async fn a_lower_term_can_neither_end_nor_hold_nor_look() {
    let registry = Registry::new(fixture::server(), 2, fixture::shared(), CancellationToken::new());
    registry.put(6, fixture::spec("Bearer first")).unwrap();
    registry.check_term(7).unwrap();
    let deadlines = Deadlines { drain: Duration::ZERO, close: Duration::ZERO };
    let old =
        |refused: Option<Refusal>| refused.map(|refusal| refusal.reason) == Some(RefusalReason::OldTerm);
    assert!(old(registry.end(6, "s", deadlines).err()));
    assert!(old(registry.end(6, "never-here", deadlines).err()));
    assert!(old(registry.list(6).err()));
    assert!(old(registry.watch(6).err()));
    assert!(registry.get("s").unwrap().takes_work());
    // A refused DELETE leaves no tombstone either: the session that it named can still be held.
    let other = SessionSpec { uid: "never-here".into(), ..fixture::spec("Bearer first") };
    assert_eq!(registry.put(7, other).unwrap().state, SessionState::Idle);
}
