//! Locks that are held for a moment and never across an await.

use std::sync::PoisonError;

/// What guards the structures whose interleavings are explored: loom's in such a test, else the standard library's.
#[cfg(feature = "loom")]
pub(crate) use loom::sync::Mutex;
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::Mutex;

/// What [`lock`] can lock.
pub(crate) trait Lock {
    /// What is held as long as it is locked.
    type Guard<'a>
    where
        Self: 'a;

    /// Locks it, poisoned or not.
    fn hold(&self) -> Self::Guard<'_>;
}

impl<T> Lock for std::sync::Mutex<T> {
    type Guard<'a>
        = std::sync::MutexGuard<'a, T>
    where
        T: 'a;

    fn hold(&self) -> Self::Guard<'_> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Lock> Lock for std::sync::Arc<M> {
    type Guard<'a>
        = M::Guard<'a>
    where
        M: 'a;

    fn hold(&self) -> Self::Guard<'_> {
        self.as_ref().hold()
    }
}

#[cfg(feature = "loom")]
impl<T> Lock for loom::sync::Mutex<T> {
    type Guard<'a>
        = loom::sync::MutexGuard<'a, T>
    where
        T: 'a;

    fn hold(&self) -> Self::Guard<'_> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks `mutex`. What it guards is changed in single steps that cannot panic half-way, so a poisoned one is still sound.
pub(crate) fn lock<M: Lock>(mutex: &M) -> M::Guard<'_> {
    mutex.hold()
}
