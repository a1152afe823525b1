//! The files of spilled segments, and their budget.

use cotensor_core::{Error, ErrorKind, Result, size};
use cotensor_supervisor::SpillFile;
use std::collections::HashMap;
use std::path::PathBuf;

/// The files of a daemon's spilled segments.
pub(crate) struct SpillTable {
    folder: PathBuf,
    /// Part of each file's name: a daemon whose socket another one has taken removes only its own files.
    tag: u32,
    bytes_max: u64,
    /// The number of the last file.
    last: u64,
    /// Bytes of all files, also of those that are not complete.
    bytes: u64,
    /// The files that are complete, by number.
    files: HashMap<u64, SpillFile>,
}

impl SpillTable {
    /// A table of files in `folder`. `tag` differs between daemons.
    pub(crate) fn new(folder: PathBuf, tag: u32, bytes_max: u64) -> Self {
        Self { folder, tag, bytes_max, last: 0, bytes: 0, files: HashMap::new() }
    }

    /// A new file for `bytes` bytes, which count until [`remove`](Self::remove). [`complete`](Self::complete) follows when it is written.
    ///
    /// # Errors
    /// `OverBudget` beyond the limit.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<SpillFile> {
        if self.bytes.checked_add(bytes).is_none_or(|total| total > self.bytes_max) {
            let message = format!(
                "{} are spilled: {} more are beyond --max-spill {}",
                size(self.bytes),
                size(bytes),
                size(self.bytes_max)
            );
            return Err(Error::new(ErrorKind::OverBudget, message).in_file(&self.folder));
        }
        self.bytes += bytes;
        self.last += 1;
        let path = self.folder.join(format!("{}-{:08x}.tensors", self.last, self.tag));
        Ok(SpillFile { number: self.last, path, bytes, hash: String::new() })
    }

    /// Notes that a reserved file is written, with the hash that it has.
    pub(crate) fn complete(&mut self, file: SpillFile) {
        self.files.insert(file.number, file);
    }

    /// Adds a file of a former server. It counts also beyond the limit.
    pub(crate) fn adopt(&mut self, file: SpillFile) {
        self.last = self.last.max(file.number);
        self.bytes += file.bytes;
        self.complete(file);
    }

    /// The complete file with a number.
    pub(crate) fn file(&self, number: u64) -> Option<SpillFile> {
        self.files.get(&number).cloned()
    }

    /// Removes a file, complete or not.
    pub(crate) fn remove(&mut self, file: &SpillFile) {
        self.files.remove(&file.number);
        self.bytes -= file.bytes;
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Reserve(u64),
        Complete(usize),
        Remove(usize),
        /// A next server has the complete files.
        Replace {
            bytes_max: u64,
        },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => prop_oneof![0_u64..60, Just(u64::MAX)].prop_map(Step::Reserve),
            3 => (0_usize..8).prop_map(Step::Complete),
            3 => (0_usize..8).prop_map(Step::Remove),
            1 => (0_u64..150).prop_map(|bytes_max| Step::Replace { bytes_max }),
        ];
        proptest::collection::vec(step, 1..60)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// In any order of events, files of one folder have different paths and numbers, bytes count from the reservation to the
        /// removal, and a reservation fails exactly when it is beyond the limit.
        #[test]
        fn files_differ_and_their_bytes_are_bounded(steps in steps()) {
            let table = |bytes_max| SpillTable::new(PathBuf::from("/spill"), 7, bytes_max);
            let (mut all, mut files, mut numbers) = (table(100), Vec::<(SpillFile, bool)>::new(), 0);
            for step in steps {
                match step {
                    Step::Reserve(bytes) => {
                        let total = files.iter().map(|(file, _)| file.bytes).sum::<u64>().checked_add(bytes);
                        let fits = total.is_some_and(|total| total <= all.bytes_max);
                        let reserved = all.reserve(bytes);
                        prop_assert_eq!(reserved.is_ok(), fits);
                        if let Ok(file) = reserved {
                            prop_assert!(file.number > numbers && all.file(file.number).is_none(), "it is not written");
                            prop_assert!(files.iter().all(|(other, _)| other.path != file.path));
                            numbers = file.number;
                            files.push((file, false));
                        }
                    }
                    Step::Complete(which) => if let Some((file, complete)) = files.get_mut(which) {
                        file.hash = "hash".to_owned();
                        *complete = true;
                        all.complete(file.clone());
                    },
                    Step::Remove(which) => if which < files.len() {
                        let (file, _) = files.remove(which);
                        all.remove(&file);
                        prop_assert_eq!(all.file(file.number), None);
                    },
                    Step::Replace { bytes_max } => {
                        all = table(bytes_max);
                        files.retain(|(_, complete)| *complete);
                        files.iter().for_each(|(file, _)| all.adopt(file.clone()));
                        numbers = files.iter().map(|(file, _)| file.number).max().unwrap_or(0);
                    }
                }
                prop_assert_eq!(all.bytes(), files.iter().map(|(file, _)| file.bytes).sum::<u64>());
                let found = files.iter().filter_map(|(file, _)| all.file(file.number));
                prop_assert!(found.eq(files.iter().filter(|(_, complete)| *complete).map(|(file, _)| file.clone())));
            }
        }
    }
}
