//! Tensors in files: `.npy`, `.safetensors` and bare bytes; and whole modules in one tensor. Files are read and written from
//! front to back, so pipes will do, and into and out of the store's memory directly: no tensor is held a second time.

mod columns;
mod module;
mod npy;
mod tensors;

use cotensor_core::{DType, Error, ErrorKind, Kind, Layout, Result};
use cotensor_store::{CopyReason, Holder, Lease, Retention, Store, TensorSpec};
use std::io::{Read, Write};
use std::path::Path;
use std::str::FromStr;

pub use module::{Manifest, ModuleTensor, Role};

/// How a file holds tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Numpy's: one tensor, with its type and shape.
    Npy,
    /// Any number of named tensors.
    Safetensors,
    /// The elements alone, row by row, least significant byte first.
    Raw,
}

impl Format {
    /// The format that a file's name speaks of.
    ///
    /// # Errors
    /// `Invalid` for a name that speaks of none.
    pub fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("npy") => Ok(Self::Npy),
            Some("safetensors") => Ok(Self::Safetensors),
            Some("bin" | "raw") => Ok(Self::Raw),
            _ => Err(Error::invalid("the name ends in none of .npy, .safetensors, .raw and .bin: name the format")
                .in_file(path)),
        }
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "npy" => Ok(Self::Npy),
            "safetensors" => Ok(Self::Safetensors),
            "raw" => Ok(Self::Raw),
            _ => Err(Error::invalid(format!("{name:?} is no format; known are npy, safetensors, raw"))),
        }
    }
}

/// One tensor of a file.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name in the file; empty where the format has none.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    big_endian: bool,
    /// The first index runs fastest.
    columns_first: bool,
    /// Where its bytes start, in bytes behind the header.
    offset: u64,
}

impl Entry {
    /// Bare elements, for [`Format::Raw`].
    pub fn raw(dtype: DType, shape: Vec<usize>) -> Self {
        Self { name: String::new(), dtype, shape, big_endian: false, columns_first: false, offset: 0 }
    }

    /// The length of its elements, in bytes.
    ///
    /// # Errors
    /// `Invalid` for a shape that no memory holds.
    pub fn size_bytes(&self) -> Result<usize> {
        Ok(Layout::contiguous(self.dtype, &self.shape).map_err(|error| error.in_field("shape"))?.size_bytes())
    }
}

/// A file of tensors that is being read.
pub struct TensorReader<R> {
    source: R,
    entries: Vec<Entry>,
    /// Bytes behind the header that were read.
    at: u64,
    next: usize,
}

impl<R: Read> TensorReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported` naming the field, `Invalid` when `raw` says nothing about a format that says nothing
    /// itself, or something about one that does.
    pub fn open(mut source: R, format: Format, raw: Option<Entry>) -> Result<Self> {
        let entries = match (format, raw) {
            (Format::Npy, None) => vec![npy::read_header(&mut source)?],
            (Format::Safetensors, None) => tensors::read_header(&mut source)?,
            (Format::Raw, Some(entry)) => vec![entry],
            (Format::Raw, None) => return Err(Error::invalid("bare bytes need a dtype and a shape").in_field("dtype")),
            (_, Some(_)) => return Err(Error::invalid("this format has its own dtype and shape").in_field("dtype")),
        };
        for entry in &entries {
            entry.size_bytes()?;
        }
        Ok(Self { source, entries, at: 0, next: 0 })
    }

    /// The tensors, in the order of their bytes, which is the order in which they can be read.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Reads tensor number `index` into `target`; those before it are passed over.
    ///
    /// # Errors
    /// `Corrupt` when the file ends too early or does not end with its last tensor, `Invalid` for a tensor that was read or
    /// passed over already, or a target of another size.
    pub fn read(&mut self, index: usize, target: &mut [u8]) -> Result<()> {
        let entry = self.entries.get(index).filter(|_| index >= self.next);
        let entry = entry.ok_or_else(|| Error::invalid("tensors are read once, in the order of the file"))?;
        if entry.size_bytes()? != target.len() {
            return Err(Error::invalid("the target has another size"));
        }
        let skip = entry.offset.saturating_sub(self.at);
        let skipped = std::io::copy(&mut self.source.by_ref().take(skip), &mut std::io::sink());
        let skipped = skipped.map_err(|error| ended(&error))?;
        let filled = match skipped == skip {
            true if entry.columns_first => {
                columns::read(&mut self.source, &entry.shape, entry.dtype.size_bytes(), target)
            }
            true => self.source.read_exact(target),
            false => Err(std::io::ErrorKind::UnexpectedEof.into()),
        };
        let filled = filled.map_err(|error| ended(&error));
        filled.map_err(|error| if entry.name.is_empty() { error } else { error.in_field(entry.name.as_str()) })?;
        if entry.big_endian {
            target.chunks_exact_mut(entry.dtype.size_bytes()).for_each(<[u8]>::reverse);
        }
        self.at = entry.offset + target.len() as u64;
        self.next = index + 1;
        if self.next < self.entries.len() {
            return Ok(());
        }
        match self.source.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(Error::corrupt("bytes follow the last tensor")),
            Err(error) => Err(ended(&error)),
        }
    }

    /// Publishes tensor number `index` under `name`: it is read where it will stay.
    ///
    /// # Errors
    /// As [`read`](Self::read), and the store's.
    pub fn put(&mut self, index: usize, store: &dyn Store, holder: &Holder, put: &Put<'_>) -> Result<Lease> {
        let entry = self.entries.get(index).ok_or_else(|| Error::not_found("the file has no such tensor"))?;
        let spec = TensorSpec {
            device: cotensor_core::Device::Cpu,
            name: put.name.to_owned(),
            dtype: entry.dtype,
            shape: entry.shape.clone(),
            kind: put.kind,
            space: None,
            producer: put.producer.to_owned(),
            retention: put.retention,
            provenance: None,
        };
        let mut reservation = store.reserve(spec, holder)?;
        let target = reservation.bytes_mut();
        let target = target.ok_or_else(|| Error::unsupported("this store's memory is not the host's"))?;
        self.read(index, target)?;
        let bytes = target.len();
        let lease = reservation.publish()?;
        store.record_copy(put.name, CopyReason::FileImport, bytes);
        Ok(lease)
    }
}

/// How to publish what a file holds.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    /// The name to publish under.
    pub name: &'a str,
    /// What the tensor means.
    pub kind: Kind,
    /// Who made it, for people.
    pub producer: &'a str,
    /// Whether it stays when nobody leases it.
    pub retention: Retention,
}

/// Writes tensors to `target`: the names are what a format that has names calls them.
///
/// # Errors
/// `Invalid` for several tensors in a format for one, `Unsupported` for a dtype that the format does not have or a tensor
/// with gaps, else `Io`.
pub fn write(target: &mut impl Write, format: Format, tensors: &[(&str, &Lease)]) -> Result<()> {
    let mut tensors = tensors.to_vec();
    if format == Format::Safetensors {
        // Wide elements first: every one stays aligned.
        tensors.sort_by(|(left, a), (right, b)| {
            b.dtype().size_bytes().cmp(&a.dtype().size_bytes()).then_with(|| left.cmp(right))
        });
        let described: Vec<_> = tensors.iter().map(|(name, lease)| (*name, lease.dtype(), lease.shape())).collect();
        tensors::write_header(target, &described)?;
    } else {
        let [(_, lease)] = tensors[..] else {
            let message = format!("{} tensors; only .safetensors files hold several", tensors.len());
            return Err(Error::invalid(message).in_field("format"));
        };
        if format == Format::Npy {
            npy::write_header(target, lease.dtype(), lease.shape())?;
        }
    }
    for (name, lease) in tensors {
        let whole = lease.layout().is_contiguous().then(|| lease.bytes()).flatten();
        let bytes = whole.ok_or_else(|| {
            Error::unsupported("its elements do not lie side by side in the host's memory").in_field(name)
        })?;
        target.write_all(bytes).map_err(|error| Error::io("cannot write", &error))?;
    }
    target.flush().map_err(|error| Error::io("cannot write", &error))
}

/// An error of reading `field`, which it names when the file ends there.
fn ended_in(field: &str, error: &std::io::Error) -> Error {
    let error = ended(error);
    if error.kind() == ErrorKind::Corrupt { error.in_field(field) } else { error }
}

/// An error of reading a file.
fn ended(error: &std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::new(ErrorKind::Corrupt, "the file ends too early"),
        _ => Error::io("cannot read", error),
    }
}

#[cfg(test)]
mod tests;
