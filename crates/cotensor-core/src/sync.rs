//! Locks that ignore poisoning.
//!
//! A lock is poisoned when a thread panics while it holds the lock. Critical sections in Cotensor are short and leave
//! their data consistent at each step, so the next thread may go on.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks `mutex`, poisoned or not.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks `lock` for reading, poisoned or not.
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks `lock` for writing, poisoned or not.
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

// The tests need threads that panic.
#[cfg(all(test, not(target_family = "wasm")))]
mod tests {
    use super::*;

    #[test]
    fn poisoned_locks_open() {
        let (mutex, shared) = (Mutex::new(1), RwLock::new(1));
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _guards = (lock(&mutex), write(&shared));
                panic!("poisons both locks");
            });
            thread.join().is_err()
        });
        assert!(panicked && mutex.is_poisoned() && shared.is_poisoned());
        assert_eq!(*lock(&mutex), 1);
        assert_eq!(*read(&shared), 1);
        assert_eq!(*write(&shared), 1);
    }
}
