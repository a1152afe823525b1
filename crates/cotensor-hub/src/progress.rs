//! What is done with the files of a model, for an observer.

use crate::cache::RepoFile;
use crate::download::Transfer;
use crate::id::ModelId;
use std::cell::Cell;

/// Called with the bytes that are done, the bytes of all files, and what is done.
pub(crate) type Observer = Box<dyn Fn(u64, u64, &str) + Send + Sync>;

/// The progress through several files. When it is dropped, the observer learns that all is done.
pub(crate) struct Progress<'a> {
    observer: Option<&'a Observer>,
    id: &'a ModelId,
    /// The bytes of the files before it.
    before: u64,
    /// The bytes of the current file.
    size: u64,
    /// The bytes of all files.
    total: u64,
    /// Whether the observer was called.
    began: Cell<bool>,
}

impl<'a> Progress<'a> {
    pub(crate) fn new(observer: Option<&'a Observer>, id: &'a ModelId, files: &[&RepoFile]) -> Self {
        let total = files.iter().map(|file| file.size).sum();
        Self { observer, id, before: 0, size: 0, total, began: Cell::new(false) }
    }

    /// Begins the next file.
    pub(crate) fn begin(&mut self, file: &RepoFile) {
        self.before += self.size;
        self.size = file.size;
    }

    /// This many bytes of the current file were hashed.
    pub(crate) fn verifies(&self, bytes: u64) {
        self.report(bytes, format_args!("verifying {}", self.id));
    }

    fn report(&self, bytes: u64, what: std::fmt::Arguments<'_>) {
        if let Some(observer) = self.observer {
            self.began.set(true);
            observer(self.before + bytes, self.total, &what.to_string());
        }
    }
}

impl Transfer for Progress<'_> {
    fn hashed(&self, bytes: u64) {
        self.verifies(bytes);
    }

    fn has(&self, bytes: u64) {
        self.report(bytes, format_args!("downloading {}", self.id));
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let Some(observer) = self.observer.filter(|_| self.began.get()) {
            observer(self.total, self.total, &format!("downloading {}", self.id));
        }
    }
}
