//! Bytes in JavaScript's memory.

use cotensor_core::{ContentHash, Error, Result};
use cotensor_graph::{GraphFiles, check_location};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    /// A `Uint8Array`.
    #[wasm_bindgen(js_name = Uint8Array, typescript_type = "Uint8Array")]
    #[derive(Clone)]
    pub type Bytes;

    #[wasm_bindgen(method, getter)]
    fn length(this: &Bytes) -> f64;

    /// The bytes from `begin` to `end`, without a copy.
    #[wasm_bindgen(method)]
    pub(crate) fn subarray(this: &Bytes, begin: f64, end: f64) -> Bytes;

    #[wasm_bindgen(js_namespace = ["Uint8Array", "prototype", "set"], js_name = call)]
    fn copy(target: &mut [u8], source: &Bytes);

    /// A new array with these bytes.
    #[wasm_bindgen(js_namespace = ["Uint8Array", "prototype", "slice"], js_name = call)]
    pub(crate) fn array_of(bytes: &[u8]) -> Bytes;
}

#[wasm_bindgen]
extern "C" {
    /// A `Float32Array`.
    #[wasm_bindgen(js_name = Float32Array, typescript_type = "Float32Array")]
    #[derive(Clone)]
    pub type Floats;

    #[wasm_bindgen(method, getter, js_name = length)]
    fn count(this: &Floats) -> f64;

    #[wasm_bindgen(method, js_name = subarray)]
    fn part(this: &Floats, begin: f64, end: f64) -> Floats;

    #[wasm_bindgen(js_namespace = ["Float32Array", "prototype", "set"], js_name = call)]
    fn copy_floats(target: &mut [f32], source: &Floats);
}

impl Floats {
    pub(crate) fn len(&self) -> usize {
        self.count() as usize
    }

    /// A copy of the numbers from `at` on: of `most` at most.
    pub(crate) fn copied(&self, at: usize, most: usize) -> Vec<f32> {
        let count = most.min(self.len().saturating_sub(at));
        let mut floats = vec![0.0; count];
        copy_floats(&mut floats, &self.part(at as f64, (at + count) as f64));
        floats
    }
}

/// The bytes of a reader's buffer: a call into JavaScript for each byte would be slow.
const BUFFER_BYTES: usize = 64 << 10;

impl Bytes {
    pub(crate) fn len(&self) -> u64 {
        self.length() as u64
    }

    /// Fills `target` from byte `offset`.
    ///
    /// # Errors
    /// `Io` past the end.
    pub(crate) fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(target.len() as u64).filter(|&end| end <= self.len());
        let end = end.ok_or_else(|| Error::io("reading", &io::ErrorKind::UnexpectedEof.into()))?;
        // Exact: an array has fewer than 2^53 bytes.
        copy(target, &self.subarray(offset as f64, end as f64));
        Ok(())
    }

    /// The hash of `len` bytes from byte `offset`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn hash(&self, offset: u64, len: u64) -> Result<ContentHash> {
        let len = usize::try_from(len).map_err(|_| Error::invalid("more than 4 GiB of bytes"))?;
        ContentHash::of_pieces(len, |at, piece| self.read(offset + at as u64, piece))
    }
}

/// Reads an array from its beginning.
pub(crate) struct BytesReader<'a> {
    bytes: &'a Bytes,
    at: u64,
}

impl<'a> BytesReader<'a> {
    pub(crate) fn of(bytes: &'a Bytes) -> BufReader<Self> {
        BufReader::with_capacity(BUFFER_BYTES, Self { bytes, at: 0 })
    }
}

impl Read for BytesReader<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let len = self.bytes.len().saturating_sub(self.at).min(target.len() as u64) as usize;
        self.bytes.read(self.at, &mut target[..len]).map_err(io::Error::other)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for BytesReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.bytes.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

thread_local! {
    /// The files that decoders of sounds read, by number. The decoders want sources that other threads may use, and a value of
    /// JavaScript is not one.
    static OPEN_FILES: RefCell<HashMap<u64, Bytes>> = RefCell::default();
}

/// A file in [`OPEN_FILES`], until it is dropped.
pub(crate) struct OpenFile(u64);

impl OpenFile {
    pub(crate) fn new(bytes: &Bytes) -> Self {
        OPEN_FILES.with_borrow_mut(|files| {
            let number = files.keys().max().map_or(0, |last| last + 1);
            files.insert(number, bytes.clone());
            Self(number)
        })
    }

    /// Fills `target` from byte `offset`.
    ///
    /// # Errors
    /// As [`Bytes::read`].
    pub(crate) fn read(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        OPEN_FILES.with_borrow(|files| {
            let file = files.get(&self.0).ok_or_else(|| Error::not_found("the file was closed"))?;
            file.read(offset as u64, target)
        })
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        OPEN_FILES.with_borrow_mut(|files| files.remove(&self.0));
    }
}

/// A graph's file and the files beside it, in JavaScript's memory.
#[derive(Clone)]
pub(crate) struct ScriptFiles {
    own: (PathBuf, Bytes),
    /// The files with external data by their location in the graph.
    external: Vec<(PathBuf, Bytes)>,
}

impl ScriptFiles {
    /// # Errors
    /// `Invalid` when the numbers of locations and files differ.
    pub(crate) fn new(file: &str, bytes: Bytes, locations: Vec<String>, external: Vec<Bytes>) -> Result<Self> {
        if locations.len() != external.len() {
            let message = format!("{} locations and {} files", locations.len(), external.len());
            return Err(Error::invalid(message).in_field("external"));
        }
        // No location of external data has this form, so no file has the same name.
        let own = (Path::new("/").join(file), bytes);
        Ok(Self { own, external: locations.into_iter().map(PathBuf::from).zip(external).collect() })
    }

    pub(crate) fn own_bytes(&self) -> &Bytes {
        &self.own.1
    }

    /// The bytes of a file.
    ///
    /// # Errors
    /// `NotFound` for another file.
    pub(crate) fn bytes(&self, file: &Path) -> Result<&Bytes> {
        let mut files = std::iter::once(&self.own).chain(&self.external);
        let found = files.find(|(path, _)| path == file);
        found.map(|(_, bytes)| bytes).ok_or_else(|| Error::not_found("no such file").in_file(file))
    }
}

impl GraphFiles for ScriptFiles {
    fn own(&self) -> Result<PathBuf> {
        Ok(self.own.0.clone())
    }

    fn external(&mut self, location: &str) -> Result<(PathBuf, u64)> {
        check_location(location)?;
        let found = self.external.iter().find(|(path, _)| path == Path::new(location));
        let (path, bytes) =
            found.ok_or_else(|| Error::not_found(format!("external data {location:?} is not given")))?;
        Ok((path.clone(), bytes.len()))
    }

    fn read(&self, file: &Path, offset: u64, target: &mut [u8]) -> Result<()> {
        self.bytes(file)?.read(offset, target)
    }
}

/// Notes the locations of external data; no file is there.
#[derive(Default)]
pub(crate) struct Locations(pub(crate) Vec<String>);

/// The most files with external data of one graph.
const LOCATIONS_MAX: usize = 1000;

impl GraphFiles for Locations {
    fn own(&self) -> Result<PathBuf> {
        Ok(PathBuf::new())
    }

    fn external(&mut self, location: &str) -> Result<(PathBuf, u64)> {
        check_location(location)?;
        if !self.0.iter().any(|known| known == location) {
            if self.0.len() == LOCATIONS_MAX {
                return Err(Error::corrupt(format!("more than {LOCATIONS_MAX} files with external data")));
            }
            self.0.push(location.to_owned());
        }
        Ok((PathBuf::from(location), u64::MAX))
    }

    fn read(&self, _: &Path, _: u64, target: &mut [u8]) -> Result<()> {
        target.fill(0);
        Ok(())
    }
}
