//! The content of a file: the bytes of its segment. Their hash is kept elsewhere.

use crate::descriptors::{are_scarce, none_left};
use crate::state::segment::Sealed;
use cotensor_client::open_regular;
use cotensor_core::{Error, Hasher, Result, SegmentMut};
use cotensor_memory::MemfdMut;
use cotensor_supervisor::SpillFile;
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// The context of the hash.
const CONTEXT: &str = "cotensor spill v1";
/// Bytes that are read, hashed and written at a time.
pub(super) const PIECE_BYTES: usize = 4 << 20;

/// Writes `bytes` bytes of `source` to a new file. Returns the hash of its pieces.
pub(super) fn write(path: &Path, source: &File, bytes: u64) -> std::io::Result<String> {
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, bytes.max(1)) {
        // Not every file system can reserve space.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes)?,
        Err(error) => return Err(error.into()),
    }
    let mut piece = vec![0; PIECE_BYTES];
    let mut hasher = Hasher::new(CONTEXT);
    let mut at = 0;
    while at < bytes {
        let len = PIECE_BYTES.min((bytes - at) as usize);
        source.read_exact_at(&mut piece[..len], at)?;
        hasher.field(&piece[..len]);
        file.write_all(&piece[..len])?;
        at += len as u64;
    }
    Ok(hasher.finish().to_string())
}

/// Reads a file into new memory.
///
/// # Errors
/// `Corrupt` for another length or another hash, `NotFound` for a file that was removed, `OverBudget` when descriptors are scarce; `Io`.
pub(super) fn read(SpillFile { path, bytes, hash, .. }: &SpillFile) -> Result<Sealed> {
    let io = |error: std::io::Error| Error::io("reading a spilled segment", &error).in_file(path);
    let corrupt = |what: &str| Error::corrupt(format!("the spilled file {what}")).in_file(path);
    let len = usize::try_from(*bytes).map_err(|_| corrupt("is too long"))?;
    let mut file = open_regular(path, OFlags::RDONLY).map_err(io)?;
    if file.metadata().map_err(io)?.len() != *bytes {
        return Err(corrupt("has another length"));
    }
    let mut memory = MemfdMut::create(len)?;
    // The segment keeps a duplicate, which is made while these two are open.
    if file.try_clone().map_or(true, are_scarce) {
        return Err(none_left());
    }
    let mut piece = vec![0; PIECE_BYTES];
    let mut hasher = Hasher::new(CONTEXT);
    let mut at = 0;
    while at < len {
        let part = piece.get_mut(..PIECE_BYTES.min(len - at)).unwrap_or_default();
        file.read_exact(part).map_err(io)?;
        hasher.field(part);
        memory.write_at(at, part)?;
        at += part.len();
    }
    if hasher.finish().to_string() != *hash {
        return Err(corrupt("has changed"));
    }
    Sealed::of(memory)
}
