//! Which operator leads: one turn of the election by a Lease.
//!
//! The Lease is written with its resource version, so that of two writers one wins. Whether somebody else's term is over is
//! judged by how long the Lease has stood still by our own monotonic clock, never by the times that it holds: clocks differ.

use std::time::Duration;

/// What is known of the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// Who holds it; empty when it was given back.
    pub holder: &'a str,
    /// How often it has changed hands: the term.
    pub transitions: u64,
    /// How long it has to stand still before its holder's term is over: see [`patience`].
    pub duration: Duration,
    /// How long its resource version has not changed, by our own clock.
    pub unchanged: Duration,
}

/// What to do with the Lease now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Hold it for this term: make it, take it over or renew it.
    Hold {
        /// The transition count to write.
        term: u64,
    },
    /// Somebody else holds it.
    Wait,
}

/// How long an operator that has only just begun to lead waits for sidecars to tell what they hold: one that led before may have
/// died before it wrote that down.
pub const HEARING: Duration = Duration::from_secs(10);

/// The first term: zero is what a sidecar has seen that nobody has talked to.
const FIRST_TERM: u64 = 1;

/// A count of transitions that is higher was written by another hand: changing hands once a second a Lease takes 34 years for it.
/// Sidecars that saw such a term would refuse every other one, so it is never taken: terms that get there rise no more.
pub const MOST_TERMS: u64 = 1 << 30;

/// The longest term that an operator takes: the most that `--lease-duration` accepts, in every version.
pub const LONGEST: Duration = Duration::from_mins(5);

/// How long somebody else's Lease has to stand still before its holder's term is over. `written` is the duration that the Lease
/// says, `known` the last one up to [`LONGEST`] that it said under this very holder, `ours` that of this process.
///
/// A holder writes its own duration each time that it renews, and by its own clock stops before that much has passed since the
/// last renewal. To wait for what it wrote is therefore safe whatever its version or flags, and a process never changes its
/// duration. What is written can be wrong in two ways, both by another hand, and only until the holder renews:
/// - Longer than any operator takes: the holder's own is what it said before, else at most [`LONGEST`]. Else a holder that is
///   dead would be waited for as long as somebody pleased.
/// - Shorter than the holder's: nobody is waited for less than for one that is like ourselves, since operators of one
///   install have the same duration but in the middle of an upgrade that changes it.
pub fn patience(written: Duration, known: Option<Duration>, ours: Duration) -> Duration {
    let own = if written <= LONGEST { written } else { known.unwrap_or(LONGEST) };
    own.max(ours)
}

/// What the process `me`, of the pod `pod`, does with the Lease; `seen` is nothing when there is none. The term
/// that it holds is greater than `above`, which sidecars have told of or it held before.
pub fn turn(me: &str, pod: &str, seen: Option<Seen<'_>>, above: u64) -> Turn {
    let next = |held: u64| held.max(above).saturating_add(1).min(MOST_TERMS);
    let believed = |seen: Seen<'_>| if seen.transitions > MOST_TERMS { 0 } else { seen.transitions };
    match seen {
        None => Turn::Hold { term: if above == 0 { FIRST_TERM } else { next(0) } },
        Some(seen) if seen.holder == me && believed(seen) > above => Turn::Hold { term: believed(seen) },
        // The Lease was deleted and made anew, so that its count is behind what sidecars have seen.
        Some(seen) if seen.holder == me => Turn::Hold { term: next(believed(seen)) },
        Some(seen) if is_free(&seen, pod) => Turn::Hold { term: next(believed(seen)) },
        Some(_) => Turn::Wait,
    }
}

/// The identity of a process of the pod `pod` that was started at that time.
pub fn identity(pod: &str, started_millis: i64) -> String {
    format!("{pod}_{started_millis}")
}

/// Nobody holds it, or its holder let its term pass, or was an earlier process of this very pod, which is dead.
fn is_free(seen: &Seen<'_>, pod: &str) -> bool {
    let of_this_pod = seen.holder.strip_prefix(pod).is_some_and(|rest| rest.starts_with('_'));
    seen.holder.is_empty() || of_this_pod || seen.unchanged >= seen.duration
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATION: Duration = Duration::from_secs(10);

    fn seen(holder: &str, transitions: u64, unchanged: u64) -> Seen<'_> {
        Seen { holder, transitions, duration: DURATION, unchanged: Duration::from_secs(unchanged) }
    }

    #[test]
    fn a_lease_is_made_renewed_and_taken_over_only_when_its_term_is_over() {
        let me = identity("op-a", 17);
        let rows = [
            (None, Turn::Hold { term: 1 }),
            (Some(seen(&me, 4, 3)), Turn::Hold { term: 4 }),
            (Some(seen(&me, 4, 99)), Turn::Hold { term: 4 }),
            (Some(seen("op-b_3", 4, 9)), Turn::Wait),
            (Some(seen("op-b_3", 4, 10)), Turn::Hold { term: 5 }),
            (Some(seen("", 4, 0)), Turn::Hold { term: 5 }),
        ];
        for (seen, wanted) in rows {
            assert_eq!(turn(&me, "op-a", seen, 0), wanted, "{seen:?}");
        }
    }

    #[test]
    fn a_holder_is_waited_for_as_long_as_it_leads_and_never_as_long_as_another_hand_says() {
        let secs = Duration::from_secs;
        let rows = [
            (15, None, 15),
            // One of another version or other flags, up to the longest there is.
            (60, Some(60), 60),
            (300, None, 300),
            // Nobody is taken for over sooner than one like ourselves would be.
            (0, None, 15),
            (5, Some(15), 15),
            // What no operator writes.
            (301, None, 300),
            (86_400, None, 300),
            (86_400, Some(60), 60),
            (86_400, Some(5), 15),
        ];
        for (written, known, wanted) in rows {
            let waited = patience(secs(written), known.map(secs), secs(15));
            assert_eq!(waited, secs(wanted), "{written} {known:?}");
        }
    }

    #[test]
    fn a_process_follows_a_dead_one_of_its_own_pod_at_once_and_under_a_new_term() {
        assert_eq!(turn("op-a_18", "op-a", Some(seen("op-a_17", 4, 0)), 0), Turn::Hold { term: 5 });
        // Another pod whose name begins the same.
        assert_eq!(turn("op-a_18", "op-a", Some(seen("op-a1_17", 4, 0)), 0), Turn::Wait);
    }

    #[test]
    fn a_count_that_no_lease_reaches_is_not_taken_for_a_term() {
        let most = u64::from(i32::MAX.unsigned_abs());
        // One below its own term is what a leader knows of it: it writes that back.
        assert_eq!(turn("op-a_17", "op-a", Some(seen("op-a_17", most, 0)), 6), Turn::Hold { term: 7 });
        assert_eq!(turn("op-a_17", "op-a", Some(seen("op-a_17", most, 0)), 0), Turn::Hold { term: 1 });
        // Who takes it over is told by sidecars how far it has to go.
        assert_eq!(turn("op-a_17", "op-a", Some(seen("", most, 0)), 0), Turn::Hold { term: 1 });
        assert_eq!(turn("op-a_17", "op-a", Some(seen("op-b_1", most, 0)), 0), Turn::Wait);
        let far = MOST_TERMS;
        assert_eq!(turn("op-a_17", "op-a", Some(seen("op-a_17", far, 0)), 6), Turn::Hold { term: far });
        assert_eq!(turn("op-a_17", "op-a", Some(seen("", far, 0)), 6), Turn::Hold { term: far });
        // What it takes it believes, with each renewal.
        for (count, above) in [(far - 1, 6), (far, 6), (far, far), (1, far), (1, u64::MAX)] {
            let Turn::Hold { term } = turn("op-a_17", "op-a", Some(seen("", count, 0)), above) else {
                panic!("a free one is taken")
            };
            assert_eq!(term, far, "{count} {above}");
            assert_eq!(
                turn("op-a_17", "op-a", Some(seen("op-a_17", term, 0)), term - 1),
                Turn::Hold { term }
            );
        }
    }

    #[test]
    fn a_lease_that_was_made_anew_goes_past_what_sidecars_have_seen() {
        assert_eq!(turn("op-a_17", "op-a", Some(seen("op-a_17", 1, 0)), 30), Turn::Hold { term: 31 });
        assert_eq!(turn("op-a_17", "op-a", Some(seen("op-a_17", 31, 0)), 30), Turn::Hold { term: 31 });
        assert_eq!(turn("op-a_17", "op-a", None, 30), Turn::Hold { term: 31 });
        assert_eq!(turn("op-a_17", "op-a", Some(seen("op-b_1", 1, 0)), 30), Turn::Wait);
    }
}
