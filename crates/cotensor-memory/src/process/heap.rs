//! The heap of this process.

use super::procfs::read;
use rustix::param::page_size;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The heap is trimmed when anonymous memory has grown by more than this since the last trim, unless [`allow_heap_growth`] says otherwise.
/// Below it, the pages that a trim returns would cost the next run more than they are worth.
const GROWTH_MAX_BYTES: u64 = 16 << 20;

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

/// How an allocator of a library returns its free memory to the heap.
static RETURN_FREE: OnceLock<fn()> = OnceLock::new();

/// Makes [`return_memory`] call `return_free`, by which the allocator of a library returns its free memory to the heap. The first call counts.
pub fn returns_free_memory_by(return_free: fn()) {
    let _ = RETURN_FREE.set(return_free);
}

/// Returns free memory to the system: that of the library's allocator ([`returns_free_memory_by`]), and that of the heap.
pub fn return_memory() {
    if let Some(return_free) = RETURN_FREE.get() {
        return_free();
    }
    trim_heap();
}

/// Makes all threads that start later allocate from one heap (`M_ARENA_MAX`). By itself glibc makes further heaps for threads, and
/// `malloc_trim` does not return the end of these, which may have 64 MiB each. Does nothing with another allocator.
///
/// Threads that allocate at the same time wait for each other.
pub fn use_one_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: the call takes no pointer. It changes how later threads choose their heap.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Lets this process keep up to `bytes` of free memory between computations ([`HeapWork`]), in place of 16 MiB. For a process that returns
/// its memory itself when it is idle: the next computation then finds the pages of the last one, which cost it about 1 us each.
pub fn allow_heap_growth(bytes: u64) {
    WORK.growth_max_bytes.store(bytes, Ordering::Relaxed);
}

static WORK: Work = Work {
    running: AtomicUsize::new(0),
    trimmed_bytes: AtomicU64::new(0),
    growth_max_bytes: AtomicU64::new(GROWTH_MAX_BYTES),
};

/// Computations that allocate and free much memory, such as the runs of a graph.
struct Work {
    running: AtomicUsize,
    /// The anonymous memory after the last trim, or the least that was seen since then.
    trimmed_bytes: AtomicU64,
    growth_max_bytes: AtomicU64,
}

/// A computation that allocates and frees much memory. When the last one of the process ends, and the process has grown, its heap
/// is trimmed.
#[must_use]
pub struct HeapWork(());

impl HeapWork {
    /// The computation begins. It ends when the result is dropped.
    pub fn begin() -> Self {
        WORK.running.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for HeapWork {
    fn drop(&mut self) {
        // Others still use their memory: the last one trims. Of two at the same time both may trim, which does no harm.
        if WORK.running.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(bytes) = anonymous_bytes()
            && WORK.has_grown(bytes)
        {
            return_memory();
            WORK.trimmed_bytes.store(anonymous_bytes().unwrap_or(bytes), Ordering::Relaxed);
        }
    }
}

impl Work {
    /// Whether the process has grown since the last trim to `bytes` of anonymous memory.
    fn has_grown(&self, bytes: u64) -> bool {
        let least = self.trimmed_bytes.fetch_min(bytes, Ordering::Relaxed).min(bytes);
        bytes - least > self.growth_max_bytes.load(Ordering::Relaxed)
    }
}

/// The resident anonymous memory of this process. `statm` takes a tenth of the time of `status`.
fn anonymous_bytes() -> Option<u64> {
    let text = read("/proc/self/statm").ok()?;
    let mut pages = text.split(' ').skip(1).map(|pages| pages.parse::<u64>().ok());
    let (resident, shared) = (pages.next()??, pages.next()??);
    Some(resident.saturating_sub(shared) * page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_counts_from_the_least_memory_since_the_last_trim() {
        let (trimmed_bytes, growth_max_bytes) = (AtomicU64::new(100 << 20), AtomicU64::new(GROWTH_MAX_BYTES));
        let work = Work { running: AtomicUsize::new(0), trimmed_bytes, growth_max_bytes };
        assert!(!work.has_grown((100 << 20) + GROWTH_MAX_BYTES));
        assert!(work.has_grown((100 << 20) + GROWTH_MAX_BYTES + 1));
        assert!(!work.has_grown(50 << 20));
        assert!(work.has_grown((50 << 20) + GROWTH_MAX_BYTES + 1));
    }

    #[test]
    fn anonymous_memory_follows_touched_pages() {
        let before = anonymous_bytes().unwrap();
        let touched = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(anonymous_bytes().unwrap() > before + (32 << 20), "{} bytes are touched", touched.len());
    }
}
