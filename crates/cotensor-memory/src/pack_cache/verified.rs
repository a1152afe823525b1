//! Verification of packs: the blobs of each pack are hashed once after each boot.

use super::format::PackEntry;
use super::notes::Notes;
use cotensor_core::{ContentHash, FileStamp, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

/// Threads that hash one pack.
const THREADS_MAX: usize = 4;

/// Records verified packs in notes, so that other processes do not hash them again. A note is valid for one
/// stamp of the file and one boot.
pub(super) struct VerifiedPacks {
    notes: Notes,
    /// The kernel's identifier of this boot. Without it, every process verifies.
    boot: Option<String>,
}

impl VerifiedPacks {
    pub(super) fn new(notes: Notes) -> Self {
        Self { notes, boot: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok() }
    }

    /// Whether the pack at `path` with this stamp was verified.
    pub(super) fn contains(&self, path: &Path, stamp: FileStamp) -> bool {
        let note = self.note(stamp);
        note.is_some() && self.notes.get(&key(path)) == note
    }

    pub(super) fn insert(&self, path: &Path, stamp: FileStamp) {
        if let Some(note) = self.note(stamp) {
            // Best effort: without the note the next process verifies again.
            let _ = self.notes.put(&key(path), &note);
        }
    }

    fn note(&self, stamp: FileStamp) -> Option<Vec<u8>> {
        Some(format!("{} {stamp}", self.boot.as_ref()?.trim()).into_bytes())
    }
}

/// The key of a pack's note, which the next boot replaces.
fn key(path: &Path) -> ContentHash {
    let mut hasher = Hasher::new("cotensor verified pack v1");
    hasher.field(path.file_name().unwrap_or_default().as_encoded_bytes());
    hasher.finish()
}

/// The first of `entries` whose bytes in `pack` do not match its hash.
pub(super) fn damaged<'a>(pack: &[u8], entries: &'a [PackEntry]) -> Option<&'a PackEntry> {
    let next = AtomicUsize::new(0);
    let search = || loop {
        let entry = entries.get(next.fetch_add(1, Ordering::Relaxed))?;
        if pack.get(entry.range.clone()).map(ContentHash::of) != Some(entry.hash) {
            return Some(entry);
        }
    };
    let threads = available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(search)).collect();
        let own = search();
        let found =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        found.flatten().chain(own).min_by_key(|entry| entry.range.start)
    })
}
