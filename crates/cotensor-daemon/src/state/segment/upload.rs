//! The memory of a tensor that comes over HTTP. It grows, in the budget and in the system, with the received
//! bytes: the announced length evicts no tensor.

use super::Sealed;
use cotensor_core::{Error, Layout, Result};
use cotensor_memory::process::{check_memory, create_segment_memfd};
use cotensor_store::backend::Charge;
use cotensor_store::{CopyReason, Holder, Lease, LocalStore, Publication, StoreReports, TensorSpec};
use rustix::fs::{SealFlags, fcntl_add_seals};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The smallest step of growth in bytes, unless fewer bytes remain.
const STEP_BYTES_MIN: u64 = 1 << 20;

/// Makes room for a descriptor that the daemon keeps: returns it, perhaps with another number, or `OverBudget` at the daemon's limit.
pub(crate) type RoomFor = fn(&LocalStore, OwnedFd) -> Result<OwnedFd>;

/// Memory of a known length that is filled from its start.
pub(crate) struct Upload {
    /// The name of the tensor, for errors.
    name: String,
    /// A memfd that is not mapped.
    file: File,
    len: u64,
    filled: u64,
    /// The charge of at most twice the received bytes and one step.
    charge: Arc<Charge>,
}

impl Upload {
    /// An empty upload of `len` bytes. `charge` counts no bytes yet.
    ///
    /// # Errors
    /// `OverBudget` when no more descriptors may be open, or when the system or a control group has less memory left; `Io`.
    pub(crate) fn new(
        name: &str,
        len: u64,
        charge: Arc<Charge>,
        store: &LocalStore,
        room_for: RoomFor,
    ) -> Result<Self> {
        // All of it, so that an upload that cannot fit is refused before it is sent.
        drop(check_memory(usize::try_from(len).unwrap_or(usize::MAX))?);
        let fd = room_for(store, create_segment_memfd()?)?;
        Ok(Self { name: name.to_owned(), file: fd.into(), len, filled: 0, charge })
    }

    /// The number of received bytes.
    pub(crate) fn filled(&self) -> u64 {
        self.filled
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// `Invalid` for more bytes than announced, `OverBudget`, `Io` when the system has no memory.
    pub(crate) fn add(mut self, part: &[u8], store: &LocalStore) -> Result<Self> {
        let end = self.filled + part.len() as u64;
        if end > self.len {
            return Err(
                Error::invalid(format!("{} bytes by dtype and shape, more received", self.len)).in_field("shape")
            );
        }
        if end > self.charge.bytes() {
            let step = self.filled.max(STEP_BYTES_MIN).max(end - self.charge.bytes());
            let step = step.min(self.len - self.charge.bytes());
            self.charge = store.grant_more(self.charge, step).map_err(|error| error.in_field(self.name.as_str()))?;
        }
        let _pending = check_memory(part.len())?;
        // Without memory this fails, whereas writing to a mapping would end the process.
        self.file.write_all_at(part, self.filled).map_err(|error| Error::io("filling shared memory", &error))?;
        self.filled = end;
        Ok(self)
    }

    /// Seals the memory and publishes it as the tensor of `spec`.
    ///
    /// # Errors
    /// `Invalid` when bytes are missing; `OverBudget`; `Io`.
    pub(crate) fn publish(
        self,
        spec: TensorSpec,
        layout: Layout,
        store: &LocalStore,
        holder: &Holder,
    ) -> Result<Lease> {
        let (segment, charge) = self.seal()?;
        store.record_copy(&spec.name, CopyReason::Network, layout.size_bytes());
        let charge = store.grant_in(&charge, &spec)?;
        store.adopt(spec, layout, Arc::new(segment), charge, Publication::default(), holder)
    }

    /// Seals the memory. Returns it with its charge.
    ///
    /// # Errors
    /// `Invalid` when bytes are missing; `Io`.
    fn seal(self) -> Result<(Sealed, Arc<Charge>)> {
        if self.filled != self.len {
            let message = format!("{} bytes by dtype and shape, {} received", self.len, self.filled);
            return Err(Error::invalid(message).in_field("shape"));
        }
        fcntl_add_seals(&self.file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW)
            .map_err(|error| Error::io("sealing shared memory", &error.into()))?;
        let len = usize::try_from(self.len).map_err(|_| Error::invalid("more bytes than this machine can address"))?;
        Ok((Sealed::known(self.file.into(), len)?, self.charge))
    }
}
