//! The heap of this process.

/// Returns freed heap memory to the system (`malloc_trim`). By itself glibc returns only memory above the highest block
/// in use. Does nothing with another allocator.
///
/// Takes some milliseconds, during which allocations of other threads may wait.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: the call takes no pointer and does its own locking.
        let _ = unsafe { libc::malloc_trim(0) };
    }
}
