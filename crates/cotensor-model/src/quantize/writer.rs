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
    places: Vec<WeightPlace>,
    /// Tied weights that an exporter wrote twice are written once.
    by_content: HashMap<ContentHash, u64>,
}

/// Where the tensors are, and the length of the file.
pub(super) struct Places {
    pub(super) all: Vec<WeightPlace>,
    pub(super) end: u64,
}

impl<'p> Writer<'p> {
    pub(super) fn create(path: &'p Path, location: String) -> Result<Self> {
        let file = File::create_new(path).map_err(|error| Error::io("writing", &error).in_file(path))?;
        Ok(Self { path, location, file: BufWriter::new(file), end: 0, places: Vec::new(), by_content: HashMap::new() })
    }

    pub(super) fn write(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        let bytes = bytes.as_ref();
        let start = self.end.next_multiple_of(ALIGNMENT);
        let offset = *self.by_content.entry(ContentHash::of(bytes)).or_insert(start);
        self.places.push(WeightPlace { location: self.location.clone(), offset });
        if offset == start {
            let gap = vec![0; (start - self.end) as usize];
            let written = self.file.write_all(&gap).and_then(|()| self.file.write_all(bytes));
            written.map_err(|error| Error::io("writing", &error).in_file(self.path))?;
            self.end = start + bytes.len() as u64;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Places> {
        self.file.flush().map_err(|error| Error::io("writing", &error).in_file(self.path))?;
        Ok(Places { all: self.places, end: self.end })
    }
}
