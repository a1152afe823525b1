//! The note with the content hashes of a graph's weights, which the store keeps.

use cotensor_core::ContentHash;

/// The hashes and a checksum, which detects a truncated or damaged note.
pub(super) fn write_note(hashes: &[ContentHash]) -> Vec<u8> {
    let mut note: Vec<u8> = hashes.iter().flat_map(|hash| *hash.as_bytes()).collect();
    note.extend_from_slice(ContentHash::of(&note).as_bytes());
    note
}

/// Reads the `count` hashes of a note; `None` for a damaged note.
pub(super) fn read_note(note: &[u8], count: usize) -> Option<Vec<ContentHash>> {
    let (hashes, checksum) = note.split_last_chunk::<32>()?;
    if hashes.len() != count * 32 || ContentHash::of(hashes).as_bytes() != checksum {
        return None;
    }
    Some(hashes.as_chunks::<32>().0.iter().copied().map(ContentHash::from_bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_reads_back_and_damaged_notes_are_refused() {
        let hashes = [ContentHash::of(b"a"), ContentHash::of(b"b")];
        let note = write_note(&hashes);
        assert_eq!(read_note(&note, 2), Some(hashes.to_vec()));
        assert_eq!(read_note(&note, 1), None);
        assert_eq!(read_note(&note[..95], 2), None);
        assert_eq!(read_note(&[], 0), None);
        assert_eq!(read_note(&write_note(&[]), 0), Some(vec![]));
    }
}
