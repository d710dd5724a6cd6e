//! The terms of those who lead: what a former leader asks for, after its successor was heard, does nothing.

use tokio_util::sync::CancellationToken;

/// The highest term that was seen. It is kept under the registry's lock: what a request does is done under the hold of the lock
/// that its term was checked under, so nothing of a lower term happens after a request of a higher one.
pub(super) struct Terms {
    highest: u64,
    /// Cancelled when the highest term is not the highest any more.
    watches: CancellationToken,
    /// Cancelled when the pod is over.
    stop: CancellationToken,
}

impl Terms {
    /// No term was seen yet; `stop` ends the watches of every term.
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self { highest: 0, watches: stop.child_token(), stop }
    }

    /// Lets a request of `term` go on, unless a higher one was seen, which is the error. The highest ever is remembered.
    pub(super) fn admit(&mut self, term: u64) -> Result<(), u64> {
        if term < self.highest {
            return Err(self.highest);
        }
        if term > self.highest {
            self.highest = term;
            std::mem::replace(&mut self.watches, self.stop.child_token()).cancel();
        }
        Ok(())
    }

    /// Ends the watches of the highest term as soon as there is a higher one.
    pub(super) fn watches(&self) -> CancellationToken {
        self.watches.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_term_stands_whatever_comes_later() {
        let mut terms = Terms::new(CancellationToken::new());
        let admitted = [0, 3, 3, 2, 5, 4, 3, 5, u64::MAX, 5].map(|term| terms.admit(term));
        let wanted = [Ok(()), Ok(()), Ok(()), Err(3), Ok(()), Err(5), Err(5), Ok(()), Ok(()), Err(u64::MAX)];
        assert_eq!(admitted, wanted);
    }

    #[test]
    fn watches_end_with_their_term_or_with_the_pod() {
        let stop = CancellationToken::new();
        let mut terms = Terms::new(stop.clone());
        assert_eq!(terms.admit(3), Ok(()));
        let former = terms.watches();
        assert_eq!((terms.admit(3), terms.admit(2)), (Ok(()), Err(3)));
        assert!(!former.is_cancelled());
        assert_eq!(terms.admit(4), Ok(()));
        let leading = terms.watches();
        assert!(former.is_cancelled() && !leading.is_cancelled());
        stop.cancel();
        assert!(leading.is_cancelled());
    }
}
