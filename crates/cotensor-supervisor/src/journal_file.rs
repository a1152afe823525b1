//! The memfd with a journal, of which the service manager has a descriptor.

use cotensor_core::{Error, Result};
use cotensor_memory::process::create_memfd;
use serde::Serialize;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd};

/// A memfd with the lines of a journal.
pub(super) struct JournalFile {
    pub(super) file: File,
    /// The bytes of whole lines.
    written: u64,
}

impl JournalFile {
    pub(super) fn create() -> Result<Self> {
        let file = create_memfd("cotensor journal").map_err(|error| error.prefixed("journal"))?.into();
        Ok(Self { file, written: 0 })
    }

    /// The length in bytes.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Appends a line with one call, so that a reader finds whole lines.
    ///
    /// # Errors
    /// `Io`. The journal is as before then.
    pub(super) fn append(&mut self, line: &[u8]) -> Result<()> {
        if let Err(error) = self.file.write_all(line) {
            // No line may follow a part of this one.
            let end = self.file.set_len(self.written).and_then(|()| self.file.seek(SeekFrom::Start(self.written)));
            if let Err(error) = end {
                tracing::debug!("the journal ends with a part of a line: {error}");
            }
            return Err(Error::io("writing the journal", &error));
        }
        self.written += line.len() as u64;
        Ok(())
    }
}

impl AsFd for JournalFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The line of a header or an event.
///
/// # Errors
/// `Invalid` for a value that JSON does not have.
pub(super) fn line(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value).map_err(|error| Error::invalid(error.to_string()))?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{SealFlags, fcntl_add_seals};
    use std::os::unix::fs::FileExt;

    #[test]
    fn part_of_a_line_is_removed() {
        let mut journal = JournalFile::create().unwrap();
        journal.append(b"one\n").unwrap();
        // The kernel writes page by page, and the second page has room for a few bytes.
        let page = rustix::param::page_size();
        journal.file.set_len(page as u64 + 4).unwrap();
        fcntl_add_seals(&journal.file, SealFlags::GROW).unwrap();
        assert!(journal.append(&vec![b'x'; 2 * page]).is_err());
        let mut bytes = [0; 8];
        assert_eq!((journal.file.read_at(&mut bytes, 0).unwrap(), &bytes[..4]), (4, &b"one\n"[..]));
    }
}
