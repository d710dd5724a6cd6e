//! Conditions: what was found, merged into what status said before.

use crate::text::{MESSAGE_BYTES, clip};
use crate::time::Moment;
use berth_api::{ConditionType, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// One thing found out about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which condition it settles.
    pub type_: ConditionType,
    /// Whether it holds.
    pub holds: bool,
    /// Why.
    pub reason: Reason,
    /// For people: names the thing and the remedy. Cut to 1 KiB when it is written.
    pub message: String,
}

impl Finding {
    /// The finding that a condition holds.
    pub fn holds(type_: ConditionType, reason: Reason, message: impl Into<String>) -> Self {
        Self { type_, holds: true, reason, message: message.into() }
    }

    /// The finding that a condition does not hold.
    pub fn fails(type_: ConditionType, reason: Reason, message: impl Into<String>) -> Self {
        Self { type_, holds: false, reason, message: message.into() }
    }
}

/// The conditions that say `findings`; `lastTransitionTime` is kept from `previous` while the status stays, so that an
/// unchanged object has an unchanged status.
pub fn merge(
    previous: &[Condition],
    findings: Vec<Finding>,
    generation: Option<i64>,
    now: Moment,
) -> Vec<Condition> {
    findings
        .into_iter()
        .map(|finding| {
            let status = if finding.holds { "True" } else { "False" };
            let before = find(previous, finding.type_).filter(|condition| condition.status == status);
            Condition {
                type_: finding.type_.as_str().to_owned(),
                status: status.to_owned(),
                reason: finding.reason.as_str().to_owned(),
                message: clip(&finding.message, MESSAGE_BYTES),
                last_transition_time: before
                    .map_or_else(|| now.to_api(), |held| held.last_transition_time.clone()),
                observed_generation: generation,
            }
        })
        .collect()
}

/// The condition of a type.
pub fn find(conditions: &[Condition], type_: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == type_.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: ConditionType = ConditionType::Ready;

    fn seconds(conditions: &[Condition]) -> Vec<i64> {
        conditions
            .iter()
            .map(|condition| Moment::from_api(&condition.last_transition_time).0 / 1000)
            .collect()
    }

    #[test]
    fn the_transition_time_moves_with_the_status_alone() {
        let first = merge(&[], vec![Finding::fails(READY, Reason::Pending, "a")], Some(1), Moment(10_000));
        let same =
            merge(&first, vec![Finding::fails(READY, Reason::BindTimeout, "b")], Some(2), Moment(20_000));
        assert_eq!((seconds(&same), same[0].reason.as_str()), (vec![10], "BindTimeout"));
        let turned = merge(&same, vec![Finding::holds(READY, Reason::Bound, "c")], Some(2), Moment(30_000));
        assert_eq!(seconds(&turned), vec![30]);
    }

    #[test]
    fn a_message_of_two_megabytes_is_cut() {
        let found =
            merge(&[], vec![Finding::fails(READY, Reason::Pending, "é".repeat(1 << 20))], None, Moment(0));
        assert!(found[0].message.len() <= MESSAGE_BYTES);
    }
}
