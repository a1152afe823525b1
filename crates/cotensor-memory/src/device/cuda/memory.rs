//! The memory of a CUDA device.

use super::context::Context;
use super::devices::CudaDevice;
use super::driver::CudaDriver;
use super::functions::Access;
use super::handle::Handle;
use super::lendable::Lendable;
use super::mapping::Mapping;
use super::opened::Opened;
use super::produced_slab::Produced;
use super::segment::{CudaSegment, CudaSegmentMut};
use super::slab::CudaSlab;
use cotensor_core::{Device, Error, ErrorKind, Memory, MemoryKind, Result, Segment, SegmentMut, SlabMemory, padded};
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// The pauses before a device without memory is asked again, about half a second in all. A budget has its bytes back some milliseconds
/// before the device: a lease ends before its mapping does, and the driver frees the memory of a killed process up to 70 ms later.
pub(super) const PAUSES_MS: [u64; 8] = [2, 5, 10, 20, 50, 100, 150, 200];

/// The memory of one CUDA device, which processes share by descriptors of its driver.
///
/// A segment of its own takes whole units of 2 MiB ([`Device::allocated_bytes`]). Segments are written and read by copies. The first
/// copy of a process opens the device's primary context, which takes memory of the device and some hundred milliseconds. Opening
/// segments of other processes needs none.
#[derive(Clone)]
pub struct CudaMemory {
    opened: Arc<Opened>,
    /// Memory that other libraries of this process have for their arrays, by its address.
    produced: Arc<Mutex<BTreeMap<u64, Arc<Produced>>>>,
}

impl CudaMemory {
    /// The memory of one of the driver's [`devices`](CudaDriver::devices).
    #[must_use]
    pub fn new(driver: &Arc<CudaDriver>, device: CudaDevice) -> Self {
        Self { opened: Arc::new(Opened::new(driver, device)), produced: Arc::default() }
    }

    /// The memories of all devices that the driver shows this process.
    ///
    /// # Errors
    /// As [`CudaDriver::devices`].
    pub fn all(driver: &Arc<CudaDriver>) -> Result<Vec<Self>> {
        Ok(driver.devices()?.into_iter().map(|device| Self::new(driver, device)).collect())
    }

    /// The memories of all devices of the [installed driver](CudaDriver::open), which the first call loads: one for each device, so that the
    /// process has one context and one stream of it, however many stores it has.
    ///
    /// # Errors
    /// As [`CudaDriver::open`] and [`CudaDriver::devices`]; a later call tries again.
    pub fn installed() -> Result<&'static [Self]> {
        static INSTALLED: OnceLock<Vec<CudaMemory>> = OnceLock::new();
        if let Some(found) = INSTALLED.get() {
            return Ok(found);
        }
        let found = Self::all(&CudaDriver::open()?)?;
        Ok(INSTALLED.get_or_init(|| found))
    }

    /// Free bytes of the device, whichever processes have the others.
    ///
    /// # Errors
    /// `Io` when the context cannot be used.
    pub fn free_bytes(&self) -> Result<usize> {
        Ok(self.opened.context()?.memory()?.0)
    }

    pub(super) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    pub(super) fn produced_table(&self) -> &Mutex<BTreeMap<u64, Arc<Produced>>> {
        &self.produced
    }

    /// The device's identity, which all processes see.
    #[must_use]
    pub fn uuid(&self) -> &str {
        &self.opened.device.uuid
    }

    /// The address of a segment of another device for programs of this one, which may read there while the segment exists: its drop waits
    /// for their work, too. None where the driver does not let this device read the other one's memory, and for segments of other drivers.
    ///
    /// # Errors
    /// `Io` when the context of this device is lost.
    pub fn peer_address(&self, segment: &dyn Segment) -> Result<Option<u64>> {
        let segment = segment.as_any().and_then(|segment| segment.downcast_ref::<CudaSegment>());
        let Some(segment) = segment.filter(|segment| Arc::ptr_eq(&segment.device.driver, &self.opened.driver)) else {
            return Ok(None);
        };
        self.opened.driver.check_process()?;
        if !segment.mapping.mapping().let_read(self.opened.ordinal)? {
            return Ok(None);
        }
        Ok(Some(segment.mapping.lend(self.opened.context()?)))
    }

    /// Memory of its own for a tensor of `len` bytes, with any values.
    fn allocate(&self, len: usize) -> Result<(Arc<Context>, CudaSegmentMut)> {
        let (context, handle, mapping) = self.create(len, &PAUSES_MS)?;
        let mapping = Arc::new(Lendable::new(Arc::new(mapping)));
        Ok((context, CudaSegmentMut { mapping, handle, device: Arc::clone(&self.opened), len, is_written: false }))
    }

    /// Memory of the device for `len` bytes, with any values, mapped for writing. A device without memory is asked again after each pause,
    /// in milliseconds.
    pub(super) fn create(&self, len: usize, pauses: &[u64]) -> Result<(Arc<Context>, Handle, Mapping)> {
        let Opened { driver, ordinal, .. } = &*self.opened;
        let (bytes, context) = (self.allocated(len)?, self.opened.context()?);
        let explain = |error| self.explain(error, bytes, &context);
        let create = || Handle::create(driver, *ordinal, bytes);
        let is_full = |tried: &Result<Handle>| tried.as_ref().is_err_and(|error| error.kind() == ErrorKind::OverBudget);
        let mut tried = create();
        for pause in pauses.iter().copied().map(Duration::from_millis) {
            if !is_full(&tried) {
                break;
            }
            std::thread::sleep(pause);
            tried = create();
        }
        let handle = tried.map_err(explain)?;
        let mapping = Mapping::of_created(driver, *ordinal, &handle, bytes, Access::ReadWrite).map_err(explain)?;
        Ok((context, handle, mapping))
    }

    /// The bytes that a segment takes from the device.
    fn allocated(&self, len: usize) -> Result<usize> {
        let bytes = self.device().allocated_bytes(padded(len)? as u64);
        usize::try_from(bytes).map_err(|_| Error::invalid(format!("{len} bytes are more than a segment may have")))
    }

    /// Adds what the device has to an error about memory that it does not have.
    fn explain(&self, error: Error, bytes: usize, context: &Context) -> Error {
        let device = self.device();
        match context.memory() {
            Ok((free, total)) if error.kind() == ErrorKind::OverBudget => {
                let message = format!("{device} has {free} of {total} bytes left, not {bytes}: {}", error.message());
                Error::new(ErrorKind::OverBudget, message)
            }
            _ => error.prefixed(device),
        }
    }
}

impl fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaMemory({:?})", self.opened.device)
    }
}

impl Memory for CudaMemory {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn device(&self) -> Device {
        self.opened.device.device()
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        let (context, segment) = self.allocate(len)?;
        context.clear(segment.mapping.mapping(), 0, self.allocated(len)?)?;
        Ok(Box::new(segment))
    }

    fn reserve_aliased(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        self.reserve(len)
    }

    fn reserve_to_fill(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        let (context, segment) = self.allocate(len)?;
        // The bytes behind the tensor are shared, too.
        let left = self.allocated(len)? - len;
        if left > 0 {
            context.clear(segment.mapping.mapping(), len, left)?;
        }
        Ok(Box::new(segment))
    }

    fn copy_of(&self, source: &[u8]) -> Result<Box<dyn SegmentMut>> {
        let mut segment = self.reserve_to_fill(source.len())?;
        segment.write_at(0, source)?;
        Ok(segment)
    }

    fn import(&self, fd: OwnedFd, len: usize, kind: MemoryKind) -> Result<Arc<dyn Segment>> {
        if !matches!(kind, MemoryKind::Device | MemoryKind::Slab) {
            let message = format!("{kind} memory is not memory of {}", self.device());
            return Err(Error::new(ErrorKind::Refused, message));
        }
        let Opened { driver, ordinal, .. } = &*self.opened;
        driver.check_process()?;
        let bytes = self.allocated(len)?;
        // Only a mapping tells whether the descriptor has this length. The mapping keeps the memory without the handle and the descriptor,
        // which a forked child would keep, too: the device would get its memory back at the end of the child only.
        let named = |error: Error| error.prefixed(format_args!("{}: opening {bytes} bytes", self.device()));
        let handle = Handle::import(driver, *ordinal, fd.as_fd()).map_err(named)?;
        let mapping = Mapping::of_imported(driver, *ordinal, &handle, bytes).map_err(named)?;
        let mapping = Arc::new(Lendable::new(Arc::new(mapping)));
        Ok(Arc::new(CudaSegment { mapping, fd: None, device: Arc::clone(&self.opened), kind, len, _whole: None }))
    }

    fn has_slabs(&self) -> bool {
        true
    }

    fn create_slab(&self, len: usize) -> Result<Arc<dyn SlabMemory>> {
        let (context, handle, writable) = self.create(len, &PAUSES_MS)?;
        // Other processes map all of it.
        context.clear(&writable, 0, writable.bytes())?;
        let Opened { driver, ordinal, .. } = &*self.opened;
        let readable = Mapping::of_created(driver, *ordinal, &handle, writable.bytes(), Access::Read)?;
        Ok(Arc::new(CudaSlab::new(Arc::clone(&self.opened), writable, readable, handle.export()?, len)))
    }
}
