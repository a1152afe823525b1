use crate::graph::WeightPlace;
use cotensor_core::{ContentHash, Error, Result};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// The multiple of bytes at which each tensor starts in a file.
const ALIGNMENT: u64 = 64;

/// Writes tensors to one file.
pub(super) struct Writer<'p> {
    path: &'p Path,
    location: String,
    file: BufWriter<File>,
    end: u64,
    /// Tied weights that an exporter wrote twice are written once.
    by_content: HashMap<ContentHash, u64>,
}

impl<'p> Writer<'p> {
    pub(super) fn create(path: &'p Path, location: String) -> Result<Self> {
        let file = File::create_new(path).map_err(|error| Error::io("writing", &error).in_file(path))?;
        Ok(Self { path, location, file: BufWriter::new(file), end: 0, by_content: HashMap::new() })
    }

    /// Writes a tensor, and returns its place.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<WeightPlace> {
        let start = self.end.next_multiple_of(ALIGNMENT);
        let offset = *self.by_content.entry(ContentHash::of(bytes)).or_insert(start);
        if offset == start {
            let gap = vec![0; (start - self.end) as usize];
            let written = self.file.write_all(&gap).and_then(|()| self.file.write_all(bytes));
            written.map_err(|error| Error::io("writing", &error).in_file(self.path))?;
            self.end = start + bytes.len() as u64;
        }
        Ok(WeightPlace { location: self.location.clone(), offset })
    }

    /// Returns the length of the file.
    pub(super) fn finish(mut self) -> Result<u64> {
        self.file.flush().map_err(|error| Error::io("writing", &error).in_file(self.path))?;
        Ok(self.end)
    }
}
