//! How one CA follows another without a moment in which two parts do not trust each other.
//!
//! The CA to come is trusted by all before it signs anything, and the one of before is trusted until nothing that it signed
//! can be in use. Each step is a new content of the CA's Secret; when to take it is decided here, from that content alone.

use crate::ca::issue::{LEAF_LIFE, Pair};
use crate::ca::scope::Master;
use berth_plan::time::Moment;
use std::time::Duration;

/// How long the CA to come is only trusted, once every Secret has it: mounted Secrets reach a container within minutes, and followers look every few
/// seconds.
const LEAD: Duration = Duration::from_hours(1);

/// What the CA's Secret holds.
#[derive(Clone, PartialEq, Eq)]
pub struct Trust {
    /// The CA that signs.
    pub signer: Pair,
    /// When it is due to be followed by another; never for one that Berth did not make.
    pub renew_at: Option<Moment>,
    /// The CA to come, and since when it is trusted.
    pub next: Option<(Pair, Moment)>,
    /// Certificates of CAs of before, as PEM, and until when they are trusted.
    pub previous: Option<(String, Moment)>,
    /// The key of clients' session ids, which no rotation touches. A Secret of an older version has none yet.
    pub scope: Option<Master>,
}

/// What can be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make a CA that all shall trust.
    Introduce,
    /// Let it sign.
    Promote,
    /// Trust those of before no more.
    Forget,
}

impl Trust {
    /// A first CA. `previous` are certificates that parts which are already there trust and show.
    pub fn first(signer: Pair, previous: Option<String>, now: Moment) -> Self {
        let renew_at = Some(Pair::renew_at(now));
        let previous = previous.map(|pem| (pem, now.plus(LEAF_LIFE)));
        Self { signer, renew_at, next: None, previous, scope: None }
    }

    /// The certificates that every part trusts.
    pub fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|(pair, _)| pair.certificate.as_str());
        let previous = self.previous.as_ref().map(|(pem, _)| pem.as_str());
        let pems = [Some(self.signer.certificate.as_str()), next, previous];
        let ended = |pem: &str| [pem.trim_end(), "\n"].concat();
        pems.into_iter().flatten().map(ended).collect()
    }

    /// What to do now. `asked` is whether somebody wants a new CA; `settled` since when every certificate's Secret is known
    /// to be as this trust wants it. A new leader knows that of its own look only, so that it waits again.
    pub fn step(&self, asked: bool, settled: Option<Moment>, now: Moment) -> Option<Step> {
        if self.previous.as_ref().is_some_and(|(_, until)| *until <= now) {
            return Some(Step::Forget);
        }
        match &self.next {
            Some((_, since)) => {
                settled.is_some_and(|settled| settled.max(*since).plus(LEAD) <= now).then_some(Step::Promote)
            }
            None => (asked || self.renew_at.is_some_and(|due| due <= now)).then_some(Step::Introduce),
        }
    }

    /// The trust after a step. `fresh` is a new CA, for [`Step::Introduce`].
    #[must_use]
    pub fn after(&self, step: Step, fresh: Pair, now: Moment) -> Self {
        let mut after = self.clone();
        match step {
            Step::Introduce => after.next = Some((fresh, now)),
            Step::Forget => after.previous = None,
            Step::Promote => {
                if let Some((next, _)) = after.next.take() {
                    let old = std::mem::replace(&mut after.signer, next).certificate;
                    let older = after.previous.take().map(|(pem, _)| pem).unwrap_or_default();
                    after.previous = Some((format!("{}\n{older}", old.trim_end()), now.plus(LEAF_LIFE)));
                    after.renew_at = Some(Pair::renew_at(now));
                }
            }
        }
        after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment(1_800_000_000_000);

    fn pair(name: &str) -> Pair {
        Pair { certificate: format!("cert {name}"), key: format!("key {name}") }
    }

    fn later(hours: u64) -> Moment {
        NOW.plus(Duration::from_hours(hours))
    }

    #[test]
    fn a_ca_is_followed_when_it_is_due_or_somebody_asks() {
        let trust = Trust::first(pair("a"), None, NOW);
        let due = trust.renew_at.unwrap();
        assert_eq!(trust.step(false, Some(NOW), NOW), None);
        assert_eq!(trust.step(true, None, NOW), Some(Step::Introduce));
        assert_eq!(trust.step(false, Some(NOW), due), Some(Step::Introduce));
        // One that Berth did not make is not replaced unasked.
        let foreign = Trust { renew_at: None, ..trust };
        assert_eq!(foreign.step(false, Some(NOW), due), None);
        assert_eq!(foreign.step(true, Some(NOW), due), Some(Step::Introduce));
    }

    #[test]
    fn the_next_one_is_trusted_by_all_for_a_while_before_it_signs() {
        let trust = Trust::first(pair("a"), None, NOW).after(Step::Introduce, pair("b"), NOW);
        assert_eq!((trust.signer.key.as_str(), trust.bundle().as_str()), ("key a", "cert a\ncert b\n"));
        assert_eq!(trust.step(true, Some(NOW), later(0)), None, "a second wish changes nothing");
        assert_eq!(trust.step(false, None, later(2)), None, "a secret may still lack it");
        assert_eq!(trust.step(false, Some(NOW), later(1)), Some(Step::Promote));
    }

    #[test]
    fn settled_late_the_next_one_is_promoted_late() {
        let trust = Trust::first(pair("a"), None, NOW).after(Step::Introduce, pair("b"), NOW);
        let settled = Some(later(5));
        assert_eq!(trust.step(false, settled, later(5)), None, "the last secret has only just learnt of it");
        assert_eq!(trust.step(false, settled, Moment(later(6).0 - 1)), None);
        assert_eq!(trust.step(false, settled, later(6)), Some(Step::Promote));
    }

    #[test]
    fn the_one_of_before_is_trusted_for_the_life_of_what_it_signed() {
        let introduced = Trust::first(pair("a"), None, NOW).after(Step::Introduce, pair("b"), NOW);
        let promoted = introduced.after(Step::Promote, pair("unused"), later(1));
        assert_eq!((promoted.signer.key.as_str(), promoted.bundle().as_str()), ("key b", "cert b\ncert a\n"));
        assert_eq!(promoted.renew_at, Some(Pair::renew_at(later(1))));
        let (_, until) = promoted.previous.clone().unwrap();
        assert_eq!(later(1).until(until), LEAF_LIFE);
        assert_eq!(promoted.step(false, Some(NOW), Moment(until.0 - 1)), None);
        assert_eq!(promoted.step(false, Some(NOW), until), Some(Step::Forget));
        assert_eq!(promoted.after(Step::Forget, pair("unused"), until).bundle(), "cert b\n");
    }

    #[test]
    fn rotations_in_a_row_trust_all_that_may_be_in_use() {
        let mut trust = Trust::first(pair("a"), Some("cert 0".into()), NOW);
        for name in ["b", "c"] {
            trust = trust.after(Step::Introduce, pair(name), NOW).after(Step::Promote, pair("unused"), NOW);
        }
        assert_eq!(trust.bundle(), "cert c\ncert b\ncert a\ncert 0\n");
    }
}
