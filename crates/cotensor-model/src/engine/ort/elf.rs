//! Whether a library has all of its bytes. The loader maps a file that is cut off, and the program ends by SIGBUS when it reads a
//! missing page.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The bytes at the beginning of an ELF file of 64 bits in this machine's order.
const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, if cfg!(target_endian = "little") { 1 } else { 2 }];
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
/// The type of segments that are mapped.
const LOADED: u32 = 1;

/// Whether the file has every byte of the segments that the loader maps. True for other kinds of files, of which the loader checks the
/// first bytes itself.
pub(super) fn is_complete(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return true };
    let Ok(length) = file.metadata().map(|metadata| metadata.len()) else { return true };
    let mut header = [0; HEADER_BYTES];
    if file.read_exact_at(&mut header, 0).is_err() || !header.starts_with(&MAGIC) {
        return true;
    }
    let (table, size, count) = (word(&header, 32), half(&header, 54), half(&header, 56));
    if usize::from(size) != SEGMENT_BYTES {
        return false;
    }
    (0..u64::from(count)).all(|number| {
        let mut segment = [0; SEGMENT_BYTES];
        let at = table.checked_add(number * SEGMENT_BYTES as u64);
        let read = at.is_some_and(|at| file.read_exact_at(&mut segment, at).is_ok());
        let end = word(&segment, 8).checked_add(word(&segment, 32));
        read && (kind(&segment) != LOADED || end.is_some_and(|end| end <= length))
    })
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn kind(segment: &[u8]) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|byte| segment[byte]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_is_cut_off_anywhere_is_not_complete() {
        let program = std::env::current_exe().unwrap();
        assert!(is_complete(&program));
        let whole = std::fs::read(&program).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy");
        for bytes in [HEADER_BYTES, HEADER_BYTES + 100, 4096, whole.len() / 3] {
            std::fs::write(&copy, &whole[..bytes]).unwrap();
            assert!(!is_complete(&copy), "{bytes}");
        }
        std::fs::write(&copy, b"not a library").unwrap();
        assert!(is_complete(&copy), "the loader refuses it");
    }
}
