//! Points at which a unit test can make the sidecar panic. In a build that is no test they are nothing.

#[cfg(not(test))]
pub(crate) const fn point(_name: &str) {}

#[cfg(test)]
pub(crate) use armed::{arm, point};

#[cfg(test)]
mod armed {
    use std::cell::Cell;

    thread_local! {
        // Of the thread, so that tests that run beside it are left alone: a test has a runtime of one thread, its own.
        static ARMED: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Makes the next one to come to the point `name` panic.
    pub(crate) fn arm(name: &'static str) {
        ARMED.set(Some(name));
    }

    /// Panics if it is the one that is armed.
    pub(crate) fn point(name: &str) {
        if ARMED.get() == Some(name) {
            ARMED.set(None);
            panic!("a test wants a panic at {name}");
        }
    }
}
