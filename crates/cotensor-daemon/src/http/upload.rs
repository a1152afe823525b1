//! A tensor's memory while its bytes come over HTTP: it takes from the budget, and from the system, as they come. What was
//! only promised evicts nothing.

use crate::segment::Sealed;
use cotensor_core::{Error, Result};
use cotensor_store::EmbeddedStore;
use cotensor_store::backend::Charge;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The least that is taken at a time, in bytes, unless less is left.
const STEP_BYTES_MIN: u64 = 1 << 20;

/// Memory of a known length that is filled from its start.
pub(super) struct Upload {
    /// The tensor's, for errors.
    name: String,
    /// A memfd, which nobody maps.
    file: File,
    len: u64,
    filled: u64,
    /// For at most twice the bytes that are there, and a step.
    charge: Arc<Charge>,
}

impl Upload {
    /// For `len` bytes of a tensor, of which `charge` has none yet.
    ///
    /// # Errors
    /// `Io` when no more descriptors may be open.
    pub(super) fn new(name: &str, len: u64, charge: Arc<Charge>) -> Result<Self> {
        let fd = memfd_create("cotensor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|error| Error::io("making shared memory", &error.into()))?;
        Ok(Self { name: name.to_owned(), file: fd.into(), len, filled: 0, charge })
    }

    /// How many bytes have come.
    pub(super) fn filled(&self) -> u64 {
        self.filled
    }

    /// Adds the bytes that follow.
    ///
    /// # Errors
    /// `Invalid` for more than there is room for, `OverBudget`, `Io` when the system has no more memory.
    pub(super) fn add(mut self, part: &[u8], store: &EmbeddedStore) -> Result<Self> {
        let end = self.filled + part.len() as u64;
        if end > self.len {
            return Err(Error::invalid(format!("{} bytes by dtype and shape, more came", self.len)).in_field("shape"));
        }
        if end > self.charge.bytes() {
            let step = self.filled.max(STEP_BYTES_MIN).max(end - self.charge.bytes());
            let step = step.min(self.len - self.charge.bytes());
            self.charge = store.grant_more(self.charge, step).map_err(|error| error.in_field(self.name.as_str()))?;
        }
        // Fails where touching a page of a mapping would end the process.
        self.file.write_all_at(part, self.filled).map_err(|error| Error::io("filling shared memory", &error))?;
        self.filled = end;
        Ok(self)
    }

    /// The memory, which nobody can change any more, and its charge.
    ///
    /// # Errors
    /// `Invalid` when bytes are missing; `Io`.
    pub(super) fn seal(self) -> Result<(Sealed, Arc<Charge>)> {
        if self.filled != self.len {
            let message = format!("{} bytes by dtype and shape, {} came", self.len, self.filled);
            return Err(Error::invalid(message).in_field("shape"));
        }
        fcntl_add_seals(&self.file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW)
            .map_err(|error| Error::io("sealing shared memory", &error.into()))?;
        let len = usize::try_from(self.len).map_err(|_| Error::invalid("more bytes than this machine can address"))?;
        Ok((Sealed::known(self.file.into(), len)?, self.charge))
    }
}
