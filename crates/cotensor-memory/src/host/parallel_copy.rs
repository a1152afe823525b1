//! Copies of large blocks on several threads.

use std::num::NonZero;
use std::thread::{available_parallelism, scope};

/// From this many bytes of new memory on, several threads save more time than starting them takes: they share its page faults.
pub const PARALLEL_COPY_BYTES_MIN: usize = 8 << 20;
/// As [`PARALLEL_COPY_BYTES_MIN`], for memory that was used before (decision 071).
const PARALLEL_COPY_AGAIN_BYTES_MIN: usize = 16 << 20;
/// More threads do not copy faster: memory bandwidth is the limit.
const THREADS_MAX: usize = 4;
/// The part of a thread is a multiple of this, so that no two threads write to one page.
const PART_UNIT_BYTES: usize = 64 << 10;

/// Copies `source` to `target`, new memory, on up to four threads from [`PARALLEL_COPY_BYTES_MIN`] on.
///
/// # Panics
/// When the lengths differ, as `copy_from_slice`.
pub fn copy_parallel(target: &mut [u8], source: &[u8]) {
    copy_from(target, source, PARALLEL_COPY_BYTES_MIN);
}

/// As [`copy_parallel`], to memory that was used before.
pub(crate) fn copy_parallel_again(target: &mut [u8], source: &[u8]) {
    copy_from(target, source, PARALLEL_COPY_AGAIN_BYTES_MIN);
}

/// Copies on several threads from `parallel_min` bytes on.
fn copy_from(target: &mut [u8], source: &[u8], parallel_min: usize) {
    assert_eq!(target.len(), source.len(), "source and target have different lengths");
    let part = part_bytes(source.len());
    if source.len() < parallel_min || part >= source.len() {
        return target.copy_from_slice(source);
    }
    scope(|threads| {
        let mut parts = target.chunks_mut(part).zip(source.chunks(part));
        let own = parts.next();
        for (target, source) in parts {
            threads.spawn(move || target.copy_from_slice(source));
        }
        if let Some((target, source)) = own {
            target.copy_from_slice(source);
        }
    });
}

/// How many of `len` bytes each thread processes.
pub(crate) fn part_bytes(len: usize) -> usize {
    if len < PARALLEL_COPY_BYTES_MIN {
        return len.max(1);
    }
    let threads = available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
    len.div_ceil(threads).next_multiple_of(PART_UNIT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_at_every_length() {
        let (new, again) = (PARALLEL_COPY_BYTES_MIN, PARALLEL_COPY_AGAIN_BYTES_MIN);
        for len in [0, 1, 4097, new - 1, new, new + 12_345, again - 1, again, again + 12_345] {
            let source: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            for copy in [copy_parallel, copy_parallel_again] {
                let mut target = vec![255; len];
                copy(&mut target, &source);
                assert!(target == source, "{len} bytes");
            }
        }
    }

    #[test]
    fn at_most_four_parts_cover_any_length() {
        for len in [PARALLEL_COPY_BYTES_MIN, PARALLEL_COPY_BYTES_MIN + 1, (1 << 30) + 7] {
            assert!(len.div_ceil(part_bytes(len)) <= THREADS_MAX);
        }
        assert_eq!((part_bytes(0), part_bytes(100)), (1, 100));
    }

    #[test]
    #[should_panic(expected = "different lengths")]
    fn different_lengths_panic() {
        copy_parallel(&mut [0; 3], &[0; 4]);
    }
}
