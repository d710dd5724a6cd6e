//! Locks that are held for a moment and never across an await.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`. What it guards is changed in single steps that cannot panic half-way, so a poisoned one is still sound.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
