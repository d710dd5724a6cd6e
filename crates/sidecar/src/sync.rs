//! Locks that are held for a moment and never across an await.

use std::ops::DerefMut;
use std::sync::PoisonError;

/// What [`lock`] can lock: the standard library's mutexes, and in tests of interleavings loom's.
pub(crate) trait Lock {
    /// What is guarded.
    type Of;
    /// What is held as long as it is locked.
    type Guard<'a>: DerefMut<Target = Self::Of>
    where
        Self: 'a;

    /// Locks it, poisoned or not.
    fn hold(&self) -> Self::Guard<'_>;
}

impl<T> Lock for std::sync::Mutex<T> {
    type Of = T;
    type Guard<'a>
        = std::sync::MutexGuard<'a, T>
    where
        T: 'a;

    fn hold(&self) -> Self::Guard<'_> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Lock> Lock for std::sync::Arc<M> {
    type Of = M::Of;
    type Guard<'a>
        = M::Guard<'a>
    where
        M: 'a;

    fn hold(&self) -> Self::Guard<'_> {
        self.as_ref().hold()
    }
}

/// Locks `mutex`. What it guards is changed in single steps that cannot panic half-way, so a poisoned one is still sound.
pub(crate) fn lock<M: Lock>(mutex: &M) -> M::Guard<'_> {
    mutex.hold()
}
