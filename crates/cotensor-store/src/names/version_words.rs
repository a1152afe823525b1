//! Which word of a shared table tells whether a name still means the version that somebody read: so readers need not ask.

use crate::sync::{Mutex, lock};
use std::collections::HashMap;

/// The words that readers see, all zero at first.
pub trait WordTable: Send + Sync {
    /// How many there are.
    fn count(&self) -> u32;

    /// Sets a word. What was written before, to whatever memory, is seen by who reads this value.
    fn set(&self, word: u32, value: u64);
}

/// A word, and what it holds as long as the version is the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionWord {
    /// Number of the word.
    pub word: u32,
    /// What it holds; never zero.
    pub generation: u64,
}

/// Who has which word. A word's generation never comes back: what a reader remembers of a word that was given to another
/// name is never what it finds there.
pub struct VersionWords<W> {
    words: W,
    table: Mutex<Table>,
}

/// A table with room for so many is not made smaller.
const TAKEN_KEPT: usize = 1024;

#[derive(Default)]
struct Table {
    /// By the store's slot of the name.
    taken: HashMap<u64, Taken>,
    free: Vec<u32>,
    /// WordTable that were in use at some time: all below this.
    used: u32,
    generation: u64,
}

struct Taken {
    version: u64,
    place: VersionWord,
}

impl<W: WordTable> VersionWords<W> {
    /// Nobody has a word yet.
    pub fn new(words: W) -> Self {
        Self { words, table: Mutex::new(Table::default()) }
    }

    /// The words.
    pub fn words(&self) -> &W {
        &self.words
    }

    /// Where a reader of this version of `name` sees whether it is still the newest; `None` when it is not, or no word is
    /// free. Asks `is_newest` after a word is taken: a newer version that came before has told nobody of it, and one that
    /// comes later ends the word.
    pub fn place(&self, name: u64, version: u64, is_newest: impl FnOnce() -> bool) -> Option<VersionWord> {
        let mut table = lock(&self.table);
        if let Some(taken) = table.taken.get(&name) {
            return (taken.version == version).then_some(taken.place);
        }
        let place = self.take(&mut table, name, version)?;
        drop(table);
        if is_newest() {
            return Some(place);
        }
        self.end(name);
        None
    }

    fn take(&self, table: &mut Table, name: u64, version: u64) -> Option<VersionWord> {
        let word = match table.free.pop() {
            Some(word) => word,
            None if table.used < self.words.count() => {
                table.used += 1;
                table.used - 1
            }
            None => return None,
        };
        table.generation += 1;
        let place = VersionWord { word, generation: table.generation };
        self.words.set(word, place.generation);
        table.taken.insert(name, Taken { version, place });
        Some(place)
    }

    /// `name` means something else from now on. To be called before anybody can be given that.
    pub fn end(&self, name: u64) {
        let mut table = lock(&self.table);
        if let Some(taken) = table.taken.remove(&name) {
            self.words.set(taken.place.word, 0);
            table.free.push(taken.place.word);
            let left = table.taken.len();
            if table.taken.capacity() > TAKEN_KEPT.max(4 * left) {
                table.taken.shrink_to(2 * left);
            }
        }
    }

    /// This version is there no more.
    pub fn gone(&self, name: u64, version: u64) {
        let newest = lock(&self.table).taken.get(&name).is_some_and(|taken| taken.version == version);
        if newest {
            self.end(name);
        }
    }
}
