//! Memory of a device that another library of this process owns, such as an array of PyTorch.

use super::context::CopyStream;
use super::functions::Vendor;
use super::memory::CudaMemory;
use super::produced::ProducedPlace;
use super::segment::{CudaSegment, CudaSegmentMut};
use super::slab::target_of;
use cotensor_core::{Device, Error, Memory, Result, Segment, SegmentMut, copy_by_host, range_within};
use std::fmt;
use std::sync::Arc;

/// Bytes at an address of a device.
pub struct CudaBytes {
    memory: CudaMemory,
    address: u64,
    len: usize,
    /// The stream whose work comes before a copy.
    after: Option<CopyStream>,
}

impl CudaMemory {
    /// The device's number in this process, as other libraries of the process count.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.opened().device.ordinal
    }

    /// Whether the driver is AMD's.
    #[must_use]
    pub fn is_amd(&self) -> bool {
        self.opened().driver.vendor() == Vendor::Amd
    }

    /// Whether other code may have the address of `segment`, so that the end of its memory waits for the work of this process.
    #[must_use]
    pub fn is_lent(segment: &dyn Segment) -> bool {
        let segment = segment.as_any().and_then(|segment| segment.downcast_ref::<CudaSegment>());
        segment.is_some_and(|segment| segment.mapping.is_lent())
    }

    /// A stream for one copy. The owner of an array lets it wait for the work that writes the array: [`CudaBytes::after`].
    ///
    /// # Errors
    /// As the first copy of a process, which opens the context.
    pub fn copy_stream(&self) -> Result<CopyStream> {
        self.opened().context()?.copy_stream()
    }

    /// Waits for the work of another stream of this process.
    ///
    /// # Errors
    /// `Conflict` for a stream that is captured into a graph; `Io` when the context is lost, or the driver does not know the stream.
    ///
    /// # Safety
    /// `stream` is a stream of the device's primary context, or a number that the driver has for a default stream.
    pub unsafe fn wait_for(&self, stream: usize) -> Result<()> {
        let context = self.opened().context()?;
        // SAFETY: the caller's promise.
        unsafe { context.wait_for(stream) }
    }

    /// Waits for the work that `stream` has now. The publication of `segment`, which has to be the next call, then waits for no other work of
    /// this process.
    ///
    /// # Errors
    /// As [`wait_for`](Self::wait_for); `Unsupported` for memory that is not of this device, or that other code has no address of.
    ///
    /// # Safety
    /// As [`wait_for`](Self::wait_for). No work that `stream` has not now writes the memory of `segment`.
    pub unsafe fn end_writes(&self, segment: &mut dyn SegmentMut, stream: usize) -> Result<()> {
        let own = segment.as_any_mut().and_then(|segment| segment.downcast_mut::<CudaSegmentMut>());
        let own = own.filter(|own| Arc::ptr_eq(&own.device, self.opened()));
        let own = own.ok_or_else(|| Error::unsupported("the tensor has no memory of this device for other code"))?;
        let context = self.opened().context()?;
        // SAFETY: the caller's promise.
        unsafe { context.wait_for_present(stream) }?;
        own.is_written = true;
        Ok(())
    }

    /// Waits for all work that this process has given to the device.
    ///
    /// # Errors
    /// `Io` when the context is lost.
    pub fn wait(&self) -> Result<()> {
        self.opened().context()?.synchronize()
    }

    /// The memory of the device, of the [installed](Self::installed) ones, that an address of this process belongs to.
    ///
    /// # Errors
    /// `Invalid` for an address that the driver does not know; as [`installed`](Self::installed), and as the first copy of a process, which
    /// opens the context.
    pub fn of_address(address: u64) -> Result<&'static Self> {
        Self::among(Self::installed()?, address)
    }

    /// The one of `memories`, which are of one driver, that an address of this process belongs to.
    pub(super) fn among(memories: &[Self], address: u64) -> Result<&Self> {
        let unknown = || Error::invalid(format!("{address:#x} is not an address of a CUDA device"));
        let context = memories.first().ok_or_else(unknown)?.opened().context()?;
        let ordinal = context.ordinal_of(address)?.ok_or_else(unknown)?;
        memories.iter().find(|memory| memory.opened().ordinal == ordinal).ok_or_else(unknown)
    }

    /// `len` bytes at an address of this device.
    ///
    /// # Safety
    /// The device can read them while the value exists, and nothing writes them during a copy.
    #[must_use]
    pub unsafe fn bytes_at(&self, address: u64, len: usize) -> CudaBytes {
        CudaBytes { memory: self.clone(), address, len, after: None }
    }
}

impl CudaBytes {
    /// The same bytes, copied after the work of a stream of their device.
    #[must_use]
    pub fn after(self, stream: CopyStream) -> Self {
        Self { after: Some(stream), ..self }
    }

    /// Waits for the work of that stream.
    ///
    /// # Errors
    /// As [`CopyStream::wait`].
    pub fn wait(&self) -> Result<()> {
        self.after.as_ref().map_or(Ok(()), CopyStream::wait)
    }

    /// The place in memory that [`CudaMemory::produce`] made, if it is such memory.
    #[must_use]
    pub fn produced(&self) -> Option<ProducedPlace> {
        self.memory.produced_at(self.address, self.len)
    }

    /// The device that has them.
    #[must_use]
    pub fn device(&self) -> Device {
        self.memory.device()
    }

    /// How many they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies all of them to `target` from the byte `offset` on: on the device if it is the same one, else through the host. Waits for the
    /// copy.
    ///
    /// # Errors
    /// `Invalid` unless they fit, `Io` when the context is lost.
    pub fn copy_to(&self, target: &mut dyn SegmentMut, offset: usize) -> Result<()> {
        let range = range_within(offset, self.len, target.len())?;
        if range.is_empty() {
            return Ok(());
        }
        let own = self.memory.opened();
        if let Some((_, start)) = target_of(target)?.filter(|(ordinal, _)| *ordinal == own.ordinal) {
            let address = start + offset as u64;
            // SAFETY: the creator of this value promised that the source can be read; `target` is borrowed, and has these bytes.
            return unsafe { own.context()?.copy(address, self.address, self.len, self.after.as_ref()) };
        }
        copy_by_host(
            self.len,
            |start, part| self.read(start, part),
            |start, part| target.write_at(offset + start, part),
        )
    }

    /// Copies bytes from the byte `offset` on to the host, and waits.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to).
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        let range = range_within(offset, target.len(), self.len)?;
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: the creator of this value promised that these bytes can be read.
        unsafe {
            self.memory.opened().context()?.read_address(self.address + range.start as u64, target, self.after.as_ref())
        }
    }
}

impl fmt::Debug for CudaBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaBytes({} at {:#x} of {:?})", self.len, self.address, self.memory)
    }
}
