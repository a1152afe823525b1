//! Version words: shared words that tell a reader whether its version of a name is still the newest, without a request.

use crate::sync::{Mutex, lock};
use std::collections::HashMap;

/// A table of words in memory that readers map. All words are zero at first.
pub trait WordTable: Send + Sync {
    /// The number of words.
    fn count(&self) -> u32;

    /// Sets a word with release ordering: a reader that loads this value sees all earlier writes.
    fn set(&self, word: u32, value: u64);
}

/// A word, and its value while the version is the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionWord {
    /// The index of the word.
    pub word: u32,
    /// The value; never zero.
    pub generation: u64,
}

/// The assignment of words to names. A generation is never used twice, so a word that passes to another name never
/// holds a value that a reader of the former name knows.
pub struct VersionWords<W> {
    words: W,
    table: Mutex<Assignments>,
}

/// The capacity below which the table does not shrink.
const CAPACITY_MIN: usize = 1024;

#[derive(Default)]
struct Assignments {
    /// By the id of the name.
    assigned: HashMap<u64, Assigned>,
    free: Vec<u32>,
    /// WordTable that were in use at some time: all below this.
    used: u32,
    generation: u64,
}

struct Assigned {
    version: u64,
    word: VersionWord,
}

impl<W: WordTable> VersionWords<W> {
    /// A table without assigned words.
    pub fn new(words: W) -> Self {
        Self { words, table: Mutex::new(Assignments::default()) }
    }

    /// The words.
    pub fn words(&self) -> &W {
        &self.words
    }

    /// The word of this version of `name`; `None` when the version is not the newest, or no word is free. `is_newest`
    /// is called after the assignment: a version that is published later invalidates the word, an earlier one makes
    /// `is_newest` false.
    pub fn assign(&self, name: u64, version: u64, is_newest: impl FnOnce() -> bool) -> Option<VersionWord> {
        let mut table = lock(&self.table);
        if let Some(assigned) = table.assigned.get(&name) {
            return (assigned.version == version).then_some(assigned.word);
        }
        let word = self.add(&mut table, name, version)?;
        drop(table);
        if is_newest() {
            return Some(word);
        }
        self.invalidate(name);
        None
    }

    fn add(&self, table: &mut Assignments, name: u64, version: u64) -> Option<VersionWord> {
        let index = match table.free.pop() {
            Some(index) => index,
            None if table.used < self.words.count() => {
                table.used += 1;
                table.used - 1
            }
            None => return None,
        };
        table.generation += 1;
        let word = VersionWord { word: index, generation: table.generation };
        self.words.set(index, word.generation);
        table.assigned.insert(name, Assigned { version, word });
        Some(word)
    }

    /// Invalidates the word of `name`. Called before any caller can lease its next version.
    pub fn invalidate(&self, name: u64) {
        let mut table = lock(&self.table);
        if let Some(assigned) = table.assigned.remove(&name) {
            self.words.set(assigned.word.word, 0);
            table.free.push(assigned.word.word);
            let left = table.assigned.len();
            if table.assigned.capacity() > CAPACITY_MIN.max(4 * left) {
                table.assigned.shrink_to(2 * left);
            }
        }
    }

    /// Invalidates the word of `name` if it belongs to this version, which was freed.
    pub fn invalidate_version(&self, name: u64, version: u64) {
        let newest = lock(&self.table).assigned.get(&name).is_some_and(|assigned| assigned.version == version);
        if newest {
            self.invalidate(name);
        }
    }
}
