//! Copies of large blocks on several threads.

use super::helpers::in_chunks;

/// From this many bytes of new memory on, several threads save more time than waking them takes: they share its page faults.
pub(crate) const PARALLEL_COPY_BYTES_MIN: usize = 8 << 20;
/// As [`PARALLEL_COPY_BYTES_MIN`], for memory that was used before (decision 006).
const PARALLEL_COPY_AGAIN_BYTES_MIN: usize = 4 << 20;
/// What a thread copies at a time: some tens of microseconds of work. A multiple of the page size, so that no two threads write one page of
/// memory that begins with a page.
const CHUNK_BYTES: usize = 256 << 10;

/// Copies `source` to `target`, new memory, on up to four threads from 8 MiB on.
///
/// # Panics
/// When the lengths differ, as `copy_from_slice`.
pub fn copy_parallel(target: &mut [u8], source: &[u8]) {
    copy_from(target, source, PARALLEL_COPY_BYTES_MIN);
}

/// As [`copy_parallel`], to memory that was used before.
pub fn copy_parallel_again(target: &mut [u8], source: &[u8]) {
    copy_from(target, source, PARALLEL_COPY_AGAIN_BYTES_MIN);
}

/// Copies on several threads from `parallel_min` bytes on.
fn copy_from(target: &mut [u8], source: &[u8], parallel_min: usize) {
    assert_eq!(target.len(), source.len(), "source and target have different lengths");
    if source.len() < parallel_min {
        return target.copy_from_slice(source);
    }
    let target = Target(target.as_mut_ptr());
    let copy = |range: std::ops::Range<usize>| {
        let part = &source[range.clone()];
        // SAFETY: the range is inside `source`, which is as long as the target. The target is borrowed exclusively during `in_chunks`,
        // which gives each range to one thread.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), target.at(range.start), part.len()) };
    };
    in_chunks(source.len(), CHUNK_BYTES, &copy);
}

/// The first byte of memory of which several threads write distinct parts.
struct Target(*mut u8);

// SAFETY: an address. The code that writes there is responsible for distinct parts.
unsafe impl Sync for Target {}

impl Target {
    /// The address `offset` bytes further.
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_at_every_length() {
        let (new, again) = (PARALLEL_COPY_BYTES_MIN, PARALLEL_COPY_AGAIN_BYTES_MIN);
        // Repeated, because making each byte takes long without optimisation, and more so under valgrind.
        let pattern: Vec<u8> = (0..251).collect();
        for len in [0, 1, 4097, again - 1, again, again + CHUNK_BYTES, new - 1, new, new + 12_345] {
            let mut source = pattern.repeat(len / pattern.len() + 1);
            source.truncate(len);
            for copy in [copy_parallel, copy_parallel_again] {
                let mut target = vec![255; len];
                copy(&mut target, &source);
                assert!(target == source, "{len} bytes");
            }
        }
    }

    #[test]
    #[should_panic(expected = "different lengths")]
    fn different_lengths_panic() {
        copy_parallel(&mut [0; 3], &[0; 4]);
    }
}
