//! Copying large blocks on several threads.

use std::num::NonZero;
use std::thread::{available_parallelism, scope};

/// From this many bytes on, starting threads costs less than they save.
pub const PARALLEL_COPY_BYTES_MIN: usize = 8 << 20;
/// More threads than this do not copy faster: the memory is the limit.
const THREADS_MAX: usize = 4;
/// Each thread's part is a multiple of this, so that no two write into one page.
const PART_BYTES: usize = 64 << 10;

/// Copies `source` over `target`, on up to four threads from [`PARALLEL_COPY_BYTES_MIN`] on.
///
/// # Panics
/// When the two lengths differ, as `copy_from_slice` does.
pub fn copy_parallel(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len(), "a copy has the length of its source");
    let part = part_bytes(source.len());
    if part >= source.len() {
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

/// How many of `len` bytes one thread works on.
pub(crate) fn part_bytes(len: usize) -> usize {
    if len < PARALLEL_COPY_BYTES_MIN {
        return len.max(1);
    }
    let threads = available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
    len.div_ceil(threads).next_multiple_of(PART_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_byte_at_every_size() {
        for len in [0, 1, 4097, PARALLEL_COPY_BYTES_MIN - 1, PARALLEL_COPY_BYTES_MIN, PARALLEL_COPY_BYTES_MIN + 12_345]
        {
            let source: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let mut target = vec![255; len];
            copy_parallel(&mut target, &source);
            assert!(target == source, "{len} bytes");
        }
    }

    #[test]
    fn parts_cover_everything_with_few_threads() {
        for len in [PARALLEL_COPY_BYTES_MIN, PARALLEL_COPY_BYTES_MIN + 1, (1 << 30) + 7] {
            assert!(len.div_ceil(part_bytes(len)) <= THREADS_MAX);
        }
        assert_eq!((part_bytes(0), part_bytes(100)), (1, 100));
    }

    #[test]
    #[should_panic(expected = "length of its source")]
    fn different_lengths_are_a_mistake() {
        copy_parallel(&mut [0; 3], &[0; 4]);
    }
}
