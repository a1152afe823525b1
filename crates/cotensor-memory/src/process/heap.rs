//! This process's heap.

/// Gives the system back what the allocator keeps of memory that was freed. The GNU C library's gives back by itself only
/// what lies above all that is still used; where another allocator is at work, this does nothing.
///
/// Takes some milliseconds, in which other threads' allocations may wait.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: it is given no pointer, and takes the allocator's own locks.
        let _ = unsafe { libc::malloc_trim(0) };
    }
}
