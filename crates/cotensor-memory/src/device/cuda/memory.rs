//! Segments in the memory of a CUDA device.

use super::context::Context;
use super::devices::CudaDevice;
use super::driver::CudaDriver;
use super::functions::Access;
use super::handle::Handle;
use super::mapping::Mapping;
use cotensor_core::sync::lock;
use cotensor_core::{Device, Error, ErrorKind, Memory, MemoryKind, Result, Segment, SegmentMut, padded, range_within};
use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// The memory of one CUDA device, which processes share by descriptors of its driver.
///
/// A segment of its own takes whole units of 2 MiB ([`Device::allocated_bytes`]). Segments are written and read by copies. The first
/// copy of a process opens the device's primary context, which takes memory of the device and some hundred milliseconds. Opening
/// segments of other processes needs none.
#[derive(Clone)]
pub struct CudaMemory(Arc<Opened>);

struct Opened {
    driver: Arc<CudaDriver>,
    device: CudaDevice,
    /// The number in this process, as the driver takes it.
    ordinal: i32,
    context: Mutex<Option<Arc<Context>>>,
}

impl CudaMemory {
    /// The memory of one of the driver's [`devices`](CudaDriver::devices).
    #[must_use]
    pub fn new(driver: &Arc<CudaDriver>, device: CudaDevice) -> Self {
        let ordinal = i32::try_from(device.ordinal).unwrap_or(i32::MAX);
        Self(Arc::new(Opened { driver: Arc::clone(driver), device, ordinal, context: Mutex::default() }))
    }

    /// The memories of all devices that the driver shows this process, for the builders of stores.
    ///
    /// # Errors
    /// As [`CudaDriver::devices`].
    pub fn all(driver: &Arc<CudaDriver>) -> Result<Vec<Arc<dyn Memory>>> {
        let memory = |device| -> Arc<dyn Memory> { Arc::new(Self::new(driver, device)) };
        Ok(driver.devices()?.into_iter().map(memory).collect())
    }

    /// Free bytes of the device, whichever processes have the others.
    ///
    /// # Errors
    /// `Io` when the context cannot be used.
    pub fn free_bytes(&self) -> Result<usize> {
        Ok(self.0.context()?.memory()?.0)
    }

    /// Bytes of the device with any values, mapped for writing.
    fn allocate(&self, len: usize) -> Result<(Arc<Context>, CudaSegmentMut)> {
        let Opened { driver, ordinal, .. } = &*self.0;
        let (bytes, context) = (self.allocated(len)?, self.0.context()?);
        let handle = Handle::create(driver, *ordinal, bytes).map_err(|error| self.explain(error, bytes, &context))?;
        let mapping = Mapping::new(driver, *ordinal, &handle, bytes, Access::ReadWrite)?;
        Ok((context, CudaSegmentMut { memory: self.clone(), handle, mapping, len }))
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
        write!(f, "CudaMemory({:?})", self.0.device)
    }
}

impl Opened {
    /// The context, which the first call opens.
    fn context(&self) -> Result<Arc<Context>> {
        self.driver.check_process()?;
        let mut context = lock(&self.context);
        if let Some(context) = &*context {
            return Ok(Arc::clone(context));
        }
        let opened = Arc::new(Context::open(&self.driver, self.device.handle)?);
        *context = Some(Arc::clone(&opened));
        Ok(opened)
    }
}

impl Memory for CudaMemory {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn device(&self) -> Device {
        self.0.device.device()
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        let (context, segment) = self.allocate(len)?;
        context.clear(&segment.mapping, 0, self.allocated(len)?)?;
        Ok(Box::new(segment))
    }

    fn copy_of(&self, source: &[u8]) -> Result<Box<dyn SegmentMut>> {
        let (context, mut segment) = self.allocate(source.len())?;
        segment.write_at(0, source)?;
        // The bytes behind the source are shared, too.
        let left = self.allocated(source.len())? - source.len();
        if left > 0 {
            context.clear(&segment.mapping, source.len(), left)?;
        }
        Ok(Box::new(segment))
    }

    fn import(&self, fd: OwnedFd, len: usize, kind: MemoryKind) -> Result<Arc<dyn Segment>> {
        if kind != MemoryKind::Device {
            let message = format!("{kind} memory is not memory of {}", self.device());
            return Err(Error::new(ErrorKind::Refused, message));
        }
        let Opened { driver, ordinal, .. } = &*self.0;
        driver.check_process()?;
        let bytes = self.allocated(len)?;
        // Only a mapping tells whether the descriptor has this length. The mapping keeps the memory without the handle.
        let handle = Handle::import(driver, fd.as_fd())?;
        let mapping = Mapping::new(driver, *ordinal, &handle, bytes, Access::Read)?;
        Ok(Arc::new(CudaSegment { memory: self.clone(), mapping, len, fd }))
    }
}

/// Memory that its producer writes.
struct CudaSegmentMut {
    memory: CudaMemory,
    handle: Handle,
    mapping: Mapping,
    len: usize,
}

impl SegmentMut for CudaSegmentMut {
    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }

    fn write_at(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        let range = range_within(offset, source.len(), self.len)?;
        if source.is_empty() {
            return Ok(());
        }
        self.memory.0.context()?.write(&self.mapping, range.start, source)
    }

    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>> {
        let Self { memory, handle, mapping, len } = *self;
        memory.0.context()?.synchronize()?;
        mapping.set_access(memory.0.ordinal, Access::Read)?;
        let fd = handle.export()?;
        Ok(Arc::new(CudaSegment { memory, mapping, len, fd }))
    }
}

/// Published memory: a read-only mapping, and the descriptor by which other processes open it. Both keep it.
struct CudaSegment {
    memory: CudaMemory,
    mapping: Mapping,
    len: usize,
    fd: OwnedFd,
}

impl Segment for CudaSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn device(&self) -> Device {
        self.memory.device()
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        let range = range_within(offset, target.len(), self.len)?;
        if target.is_empty() {
            return Ok(());
        }
        self.memory.0.context()?.read(&self.mapping, range.start, target)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_fake_cuda::FakeCuda;

    #[test]
    fn forked_process_has_errors_and_frees_nothing() {
        let fake = FakeCuda::start().unwrap();
        let driver = CudaDriver::load(&fake.library()).unwrap();
        let memory = CudaMemory::new(&driver, driver.devices().unwrap().remove(0));
        let segment = memory.copy_of(&[7; 100]).unwrap().freeze().unwrap();
        let fd = segment.fd().unwrap().try_clone_to_owned().unwrap();
        // SAFETY: the child allocates memory, which glibc supports after a fork, takes no lock of another thread, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let errors = [
                segment.read_at(0, &mut [0]).err(),
                memory.reserve(1).err(),
                memory.import(fd, 100, MemoryKind::Device).err(),
            ];
            let clear = |error: Option<Error>| error.is_some_and(|error| error.to_string().contains("forked"));
            let code = i32::from(!errors.into_iter().all(clear));
            drop((segment, memory, driver));
            // SAFETY: ends the child without cleaning up what belongs to its parent.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        let mut byte = [0];
        segment.read_at(99, &mut byte).unwrap();
        assert_eq!((byte, fake.used_bytes(0).unwrap()), ([7], 2 << 20));
    }

    #[test]
    fn published_memory_is_mapped_read_only() {
        let fake = FakeCuda::start().unwrap();
        let driver = CudaDriver::load(&fake.library()).unwrap();
        let memory = CudaMemory::new(&driver, driver.devices().unwrap().remove(0));
        let made = memory.reserve(100).unwrap().freeze().unwrap();
        let fd = made.fd().unwrap().try_clone_to_owned().unwrap();
        let found = memory.import(fd, 100, MemoryKind::Device).unwrap();
        for segment in [made, found] {
            let segment = segment.as_any().unwrap().downcast_ref::<CudaSegment>().unwrap();
            let context = memory.0.context().unwrap();
            let error = context.write(&segment.mapping, 0, &[1]).unwrap_err();
            assert!(error.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{error}");
            let mut byte = [7];
            segment.read_at(0, &mut byte).unwrap();
            assert_eq!(byte, [0]);
        }
    }
}
