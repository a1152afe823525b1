//! Locks that ignore poisoning.
//!
//! A lock is poisoned when a thread panics while it holds the lock. Critical sections in Cotensor are short and leave
//! their data consistent at each step, so the next thread may go on.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

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

/// The value of a mutex that no other thread has, poisoned or not.
pub fn get_mut<T: ?Sized>(mutex: &mut Mutex<T>) -> &mut T {
    mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `changed` is notified, and locks again.
pub fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// As [`wait`], at most for `timeout`. Returns whether that is over, too.
pub fn wait_timeout<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
) -> (MutexGuard<'a, T>, bool) {
    let (guard, waited) = changed.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner);
    (guard, waited.timed_out())
}

/// Waits while `condition` is true, at most for `timeout`.
pub fn wait_timeout_while<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
    condition: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    changed.wait_timeout_while(guard, timeout, condition).unwrap_or_else(PoisonError::into_inner).0
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
