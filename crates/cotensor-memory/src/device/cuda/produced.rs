//! Memory that another library of this process takes for its arrays, such as PyTorch for those of a pool.
//!
//! The library writes it at its address as long as it has the memory. A store can publish an array in it without a copy: the memory is
//! then a slab of this process, and the array a range of it. The range keeps the array, so that the library does not use its bytes again,
//! until no process has a lease. When the library gives memory back, only its own addresses end: processes that lease tensors there, and
//! the daemon, have descriptors and mappings of their own.

use super::memory::CudaMemory;
use super::produced_slab::Produced;
use super::slab::ALIGNMENT;
use cotensor_core::sync::lock;
use cotensor_core::{Error, Result, SegmentMut, SlabMemory};
use std::any::Any;
use std::sync::Arc;

/// An array in memory of [`CudaMemory::produce`].
pub struct ProducedPlace {
    memory: CudaMemory,
    produced: Arc<Produced>,
    start: usize,
    len: usize,
}

impl CudaMemory {
    /// Makes memory for arrays of another library of this process, which may write `len` bytes of zeros at the returned address until it
    /// calls [`end_produced`](Self::end_produced). It takes whole units of 2 MiB, and no budget of a store counts it before an array in it is
    /// published.
    ///
    /// # Errors
    /// `OverBudget` when the device has no memory left; as the first copy of a process, which opens the context.
    pub fn produce(&self, len: usize) -> Result<u64> {
        // A library that finds no memory gives back what it keeps for later arrays, and asks again.
        let (context, handle, writable) = self.create(len, &[])?;
        // Processes that lease an array map all of the memory, and the driver promises no zeros.
        context.clear(&writable, 0, writable.bytes())?;
        let address = writable.address();
        lock(self.produced_table()).insert(address, Arc::new(Produced::new(writable, handle)));
        Ok(address)
    }

    /// Ends the addresses of memory that [`produce`](Self::produce) made, after the work that `stream` has now. Leases of tensors in it keep
    /// their memory.
    ///
    /// # Errors
    /// `Invalid` for another address. `Conflict` while `stream` is captured into a graph, and `Io`: the memory stays until the process ends.
    ///
    /// # Safety
    /// Only work that `stream` has now uses the address. `stream` is a stream of the device's primary context, or a number that the driver has
    /// for a default stream.
    pub unsafe fn end_produced(&self, address: u64, stream: usize) -> Result<()> {
        self.opened().driver.check_process()?;
        let found = lock(self.produced_table()).remove(&address);
        let found = found.ok_or_else(|| Error::invalid(format!("{address:#x} is no memory that was produced here")))?;
        let context = self.opened().context()?;
        // SAFETY: the caller's promise.
        let waited = unsafe { context.wait_for_present(stream) };
        if waited.is_err() {
            // Unmapping under a running kernel would end all work of the process.
            std::mem::forget(found);
        }
        waited
    }

    /// The array of `len` bytes at an address, if it lies in memory of [`produce`](Self::produce), and where a tensor of a slab may start.
    #[must_use]
    pub fn produced_at(&self, address: u64, len: usize) -> Option<ProducedPlace> {
        let table = lock(self.produced_table());
        let (first, produced) = table.range(..=address).next_back()?;
        let start = usize::try_from(address - first).ok()?;
        let is_inside = start.checked_add(len).is_some_and(|end| end <= produced.writable.bytes());
        let produced = Arc::clone(produced);
        drop(table);
        (is_inside && len > 0 && start.is_multiple_of(ALIGNMENT)).then(|| ProducedPlace {
            memory: self.clone(),
            produced,
            start,
            len,
        })
    }
}

impl ProducedPlace {
    /// The memory as a slab, and the array as a range of it, which is not copied. `owner` keeps the array until no process leases the
    /// tensor. The caller has waited for the work that writes the array.
    ///
    /// # Errors
    /// `Conflict` for an array that is published already; the driver's.
    pub fn share(self, owner: Box<dyn Any + Send + Sync>) -> Result<(Arc<dyn SlabMemory>, Box<dyn SegmentMut>)> {
        let Self { memory, produced, start, len } = self;
        let slab = produced.slab(memory.opened())?;
        let range = slab.place(start, len, owner)?;
        Ok((slab, range))
    }
}
