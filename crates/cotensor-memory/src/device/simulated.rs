//! The memory of simulated devices, which processes share.

use crate::process::create_memfd;
use cotensor_core::{Device, Error, ErrorKind, Memory, MemoryKind, Result, Segment, SegmentMut, padded, range_within};
use rustix::fs::fstat;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most bytes of a segment. A larger request is an error, as on a device that has no more memory.
const SEGMENT_BYTES_MAX: usize = 1 << 30;
/// How many devices [`SimulatedMemory::all`] has.
const DEVICES: u32 = 8;

/// The memory of [`Device::Fake`], for several processes. A segment is a file without a name that this memory never maps: the host
/// cannot address its bytes. As with the memory of a GPU, its descriptor is not sealed. A program that simulates the device maps the
/// descriptor ([`PrivateMapping`](crate::PrivateMapping)).
///
/// It counts the bytes of this process's live segments, so that tests find leaks.
#[derive(Clone, Debug, Default)]
pub struct SimulatedMemory {
    index: u32,
    live_bytes: Arc<AtomicUsize>,
}

impl SimulatedMemory {
    /// The memory of `Device::Fake(index)`. The default is device 0.
    #[must_use]
    pub fn new(index: u32) -> Self {
        Self { index, live_bytes: Arc::default() }
    }

    /// The memories of the first simulated devices.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..DEVICES).map(Self::new)
    }

    /// Bytes of this process's live segments.
    pub fn live_bytes(&self) -> usize {
        self.live_bytes.load(Ordering::SeqCst)
    }

    fn segment(&self, file: File, len: usize) -> SimulatedSegment {
        self.live_bytes.fetch_add(len, Ordering::SeqCst);
        SimulatedSegment { file, len, memory: self.clone() }
    }
}

impl Memory for SimulatedMemory {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn device(&self) -> Device {
        Device::Fake(self.index)
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        padded(len)?;
        if len > SEGMENT_BYTES_MAX {
            let message = format!("{len} bytes; {} has {SEGMENT_BYTES_MAX}", self.device());
            return Err(Error::new(ErrorKind::OverBudget, message));
        }
        let io = |error: std::io::Error| Error::io("cannot reserve memory of the simulated device", &error);
        let file = File::from(create_memfd("simulated device")?);
        file.set_len(len as u64).map_err(io)?;
        Ok(Box::new(self.segment(file, len)))
    }

    fn import(&self, fd: OwnedFd, len: usize, kind: MemoryKind) -> Result<Arc<dyn Segment>> {
        let found = fstat(&fd).map_err(|error| Error::io("cannot inspect a descriptor", &error.into()))?.st_size;
        if kind != MemoryKind::Device || u64::try_from(found).ok() != Some(len as u64) {
            let message = format!("{found} bytes of {kind} memory are not {len} bytes of {}", self.device());
            return Err(Error::new(ErrorKind::Refused, message));
        }
        Ok(Arc::new(self.segment(fd.into(), len)))
    }
}

struct SimulatedSegment {
    file: File,
    len: usize,
    memory: SimulatedMemory,
}

impl Drop for SimulatedSegment {
    fn drop(&mut self) {
        self.memory.live_bytes.fetch_sub(self.len, Ordering::SeqCst);
    }
}

impl SegmentMut for SimulatedSegment {
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
        let written = self.file.write_all_at(source, range.start as u64);
        written.map_err(|error| Error::io("cannot write memory of the simulated device", &error))
    }

    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>> {
        Ok(Arc::from(self as Box<dyn Segment>))
    }
}

impl Segment for SimulatedSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn device(&self) -> Device {
        self.memory.device()
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        let range = range_within(offset, target.len(), self.len)?;
        let read = self.file.read_exact_at(target, range.start as u64);
        read.map_err(|error| Error::io("cannot read memory of the simulated device", &error))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::testing::{conformance, import_conformance};

    #[test]
    fn simulated_memory_conforms_and_leaks_nothing() {
        let device = SimulatedMemory::new(1);
        conformance(&device);
        import_conformance(&device);
        assert_eq!(device.live_bytes(), 0);
        let segment = device.reserve(10).unwrap().freeze().unwrap();
        assert_eq!((device.live_bytes(), segment.bytes()), (10, None));
        let error = device.reserve(SEGMENT_BYTES_MAX + 1).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::OverBudget, "as a device without room: {error}");
    }

    #[test]
    fn other_memory_is_not_imported() {
        let device = SimulatedMemory::default();
        let host = crate::MemfdMemory.reserve(10).unwrap().freeze().unwrap();
        let fd = host.fd().unwrap().try_clone_to_owned().unwrap();
        let refused = device.import(fd, 10, host.kind()).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
        let made = device.reserve(10).unwrap().freeze().unwrap();
        let fd = || made.fd().unwrap().try_clone_to_owned().unwrap();
        assert!(crate::MemfdMemory.import(fd(), 10, MemoryKind::Device).is_err());
        assert_eq!(crate::MemfdMemory.import(fd(), 10, MemoryKind::Memfd).err().unwrap().kind(), ErrorKind::Refused);
    }
}
