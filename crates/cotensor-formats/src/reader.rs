//! Reads tensors from a file into the store's memory.

use crate::entry::FileTensor;
use crate::error::read_error;
use crate::format::Format;
use crate::{column_major, npy, safetensors};
use cotensor_core::{Error, Kind, Result};
use cotensor_store::{CopyReason, Holder, Lease, Retention, Store, TensorSpec};
use std::io::Read;
use std::time::Duration;

/// Reads the tensors of one file in order.
pub struct TensorReader<R> {
    source: R,
    entries: Vec<FileTensor>,
    /// Bytes read after the header.
    position: u64,
    /// Index of the first tensor that can still be read.
    next: usize,
}

impl<R: Read> TensorReader<R> {
    /// Reads the header. `raw` describes the tensor of a [`Raw`](Format::Raw) file and is `None` for the other formats.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported` naming the header field; `Invalid` when `raw` is missing for a raw file, or given for
    /// another format.
    pub fn open(mut source: R, format: Format, raw: Option<FileTensor>) -> Result<Self> {
        let entries = match (format, raw) {
            (Format::Npy, None) => vec![npy::read_header(&mut source)?],
            (Format::Safetensors, None) => safetensors::read_header(&mut source)?,
            (Format::Raw, Some(entry)) => vec![entry],
            (Format::Raw, None) => return Err(Error::invalid("raw files need a dtype and a shape").in_field("dtype")),
            (_, Some(_)) => {
                return Err(Error::invalid("the file's header has a dtype and a shape; omit yours").in_field("dtype"));
            }
        };
        for entry in &entries {
            entry.size_bytes()?;
        }
        Ok(Self { source, entries, position: 0, next: 0 })
    }

    /// The tensors, in file order. They can only be read in this order.
    pub fn entries(&self) -> &[FileTensor] {
        &self.entries
    }

    /// Reads tensor `index` into `target`, row-major and little-endian. Tensors before `index` are skipped.
    ///
    /// # Errors
    /// `Corrupt` when the file is truncated or has bytes after the last tensor; `Invalid` for a tensor that was read or
    /// skipped before, or a target of another size in bytes.
    pub fn read(&mut self, index: usize, target: &mut [u8]) -> Result<()> {
        let entry = self.entries.get(index).filter(|_| index >= self.next);
        let entry = entry.ok_or_else(|| Error::invalid("tensors are read once, in the order of the file"))?;
        if entry.size_bytes()? != target.len() {
            return Err(Error::invalid("the target has another size"));
        }
        let skip = entry.offset.saturating_sub(self.position);
        let skipped = std::io::copy(&mut self.source.by_ref().take(skip), &mut std::io::sink());
        let skipped = skipped.map_err(|error| read_error(&error))?;
        let filled = match skipped == skip {
            true if entry.column_major => {
                column_major::read(&mut self.source, &entry.shape, entry.dtype.size_bytes(), target)
            }
            true => self.source.read_exact(target),
            false => Err(std::io::ErrorKind::UnexpectedEof.into()),
        };
        let filled = filled.map_err(|error| read_error(&error));
        filled.map_err(|error| if entry.name.is_empty() { error } else { error.in_field(entry.name.as_str()) })?;
        if entry.big_endian {
            target.chunks_exact_mut(entry.dtype.part_bytes()).for_each(<[u8]>::reverse);
        }
        self.position = entry.offset + target.len() as u64;
        self.next = index + 1;
        if self.next < self.entries.len() {
            return Ok(());
        }
        match self.source.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(Error::corrupt("bytes follow the last tensor")),
            Err(error) => Err(read_error(&error)),
        }
    }

    /// Reads tensor `index` into memory of `store` and publishes it.
    ///
    /// # Errors
    /// As [`read`](Self::read) and [`TensorStore::reserve`](cotensor_store::TensorStore::reserve); `NotFound` for an
    /// index out of range.
    pub fn put(
        &mut self,
        index: usize,
        store: &dyn Store,
        holder: &Holder,
        options: &PublishOptions<'_>,
    ) -> Result<Lease> {
        let entry = self.entries.get(index).ok_or_else(|| Error::not_found("the file has no tensor of this index"))?;
        let spec = TensorSpec {
            kind: options.kind,
            producer: options.producer.to_owned(),
            retention: options.retention,
            keep_for: options.keep_for,
            ..TensorSpec::new(options.name, entry.dtype, &entry.shape)
        };
        let mut reservation = store.reserve(spec, holder)?;
        let target = reservation.bytes_mut();
        let target = target.ok_or_else(|| Error::unsupported("the store's memory is not host memory"))?;
        self.read(index, target)?;
        let bytes = target.len();
        let lease = reservation.publish()?;
        store.record_copy(options.name, CopyReason::FileImport, bytes);
        Ok(lease)
    }
}

/// How to publish a tensor read from a file.
#[derive(Clone, Copy, Debug)]
pub struct PublishOptions<'a> {
    /// The name to publish under.
    pub name: &'a str,
    /// The tensor's kind.
    pub kind: Kind,
    /// The producer's name, for reports.
    pub producer: &'a str,
    /// Whether the store keeps the tensor after its last lease.
    pub retention: Retention,
    /// The longest time that the store keeps it then; `None` without a limit.
    pub keep_for: Option<Duration>,
}
