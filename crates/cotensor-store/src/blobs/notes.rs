//! Notes in memory, for a store without a cache.

use cotensor_core::ContentHash;
use std::collections::HashMap;

/// The longest note, as in a [`BlobCache`](cotensor_core::BlobCache).
const NOTE_BYTES_MAX: usize = 1 << 20;
/// The most bytes of all notes. Beyond it all notes are dropped; a lost note only costs time.
const NOTES_BYTES_MAX: usize = 16 << 20;
/// Approximate bytes of a note beside its content.
const OVERHEAD_BYTES: usize = 64;

#[derive(Default)]
pub(crate) struct Notes {
    notes: HashMap<ContentHash, Vec<u8>>,
    bytes: usize,
}

impl Notes {
    pub(crate) fn get_note(&self, key: &ContentHash) -> Option<Vec<u8>> {
        self.notes.get(key).cloned()
    }

    pub(crate) fn put_note(&mut self, key: &ContentHash, note: &[u8]) {
        if note.len() > NOTE_BYTES_MAX {
            return;
        }
        let needed = note.len() + OVERHEAD_BYTES;
        if self.bytes + needed > NOTES_BYTES_MAX {
            *self = Self::default();
        }
        self.bytes += needed;
        if let Some(old) = self.notes.insert(*key, note.to_vec()) {
            self.bytes -= old.len() + OVERHEAD_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_note_wins_and_total_is_bounded() {
        let mut notes = Notes::default();
        let key = |i: u32| ContentHash::of(&i.to_le_bytes());
        notes.put_note(&key(0), b"old");
        notes.put_note(&key(0), b"new");
        assert_eq!(notes.get_note(&key(0)).unwrap(), b"new");
        assert_eq!(notes.bytes, 3 + OVERHEAD_BYTES);
        notes.put_note(&key(1), &vec![0; NOTE_BYTES_MAX + 1]);
        assert_eq!(notes.get_note(&key(1)), None);
        for i in 2..40 {
            notes.put_note(&key(i), &vec![0; NOTE_BYTES_MAX]);
            assert!(notes.bytes <= NOTES_BYTES_MAX);
            assert!(notes.get_note(&key(i)).is_some());
        }
        assert_eq!(notes.get_note(&key(0)), None);
    }
}
