//! The conformance suite that every [`Memory`] passes, a device without hardware, and the wait of tests.

use crate::segment::range_within;
use crate::{ALIGNMENT, Device, Error, ErrorKind, Memory, MemoryKind, Result, Segment, SegmentMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long [`until`] waits: far above the time that any test needs.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until `done` returns true.
///
/// # Panics
/// With `what` when it does not after [`WAIT_TIMEOUT`].
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < WAIT_TIMEOUT, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs the conformance suite on `memory`.
///
/// # Panics
/// When the memory breaks a promise of [`Memory`], [`SegmentMut`] or [`Segment`].
pub fn conformance(memory: &dyn Memory) {
    for len in [0, 1, 63, 64, 4096, 4097, 1 << 20] {
        reserves_zeroed_and_aligned(memory, len);
    }
    keeps_what_was_written(memory);
    hands_out_clean_memory(memory);
    checks_bounds(memory);
    #[cfg(not(target_family = "wasm"))]
    shares_between_threads(memory);
    for len in [usize::MAX, usize::MAX - 62, isize::MAX as usize] {
        let refused = memory.reserve(len).err().map(|error| error.kind());
        assert_eq!(refused, Some(ErrorKind::Invalid), "the impossible length {len} must be refused");
    }
}

fn reserves_zeroed_and_aligned(memory: &dyn Memory, len: usize) {
    let segment = memory.reserve(len).expect("reserve");
    assert_eq!(segment.len(), len);
    assert_eq!(segment.is_empty(), len == 0);
    if let Some(bytes) = segment.bytes() {
        assert_eq!(bytes.len(), len);
        assert_eq!(bytes.as_ptr() as usize % ALIGNMENT, 0, "{len} bytes are misaligned");
    }
    let segment = segment.freeze().expect("freeze");
    let mut read = vec![1; len];
    segment.read_at(0, &mut read).expect("read");
    assert!(read.iter().all(|&byte| byte == 0), "reserved memory must be zeroed");
    assert_eq!((segment.len(), segment.kind(), segment.device()), (len, memory.kind(), memory.device()));
}

fn keeps_what_was_written(memory: &dyn Memory) {
    let mut segment = memory.reserve(10_000).expect("reserve");
    let data: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
    segment.write_at(0, &data[..5000]).expect("write");
    segment.write_at(5000, &data[5000..]).expect("write");
    let before = segment.bytes().map(<[u8]>::as_ptr);
    let segment = segment.freeze().expect("freeze");
    assert_eq!(before, segment.bytes().map(<[u8]>::as_ptr), "freezing must not move the bytes");
    let mut read = vec![0; 10_000];
    segment.read_at(0, &mut read).expect("read");
    assert_eq!(read, data);
    if let Some(bytes) = segment.bytes() {
        assert_eq!(bytes, data);
    }
}

/// Content of a freed segment must not appear in a new one.
fn hands_out_clean_memory(memory: &dyn Memory) {
    for len in [10_000, 9000, 20_000] {
        let mut used = memory.reserve(len).expect("reserve");
        used.write_at(0, &vec![255; len]).expect("write");
        drop(used);
        reserves_zeroed_and_aligned(memory, len);
        let copy = memory.copy_of(&vec![3; len / 2]).expect("copy");
        let mut filled = memory.reserve_to_fill(len / 2).expect("reserve");
        filled.write_at(0, &vec![3; len / 2]).expect("write");
        for segment in [copy, filled] {
            let segment = segment.freeze().expect("freeze");
            let mut read = vec![0; len / 2];
            segment.read_at(0, &mut read).expect("read");
            assert!(
                segment.len() == len / 2 && read.iter().all(|&byte| byte == 3),
                "all bytes are those that were written"
            );
        }
    }
}

fn checks_bounds(memory: &dyn Memory) {
    let mut segment = memory.reserve(100).expect("reserve");
    segment.write_at(100, &[]).expect("an empty write at the end is inside");
    assert!(segment.write_at(99, &[0, 0]).is_err());
    assert!(segment.write_at(usize::MAX, &[0]).is_err());
    let segment = segment.freeze().expect("freeze");
    assert!(segment.read_at(101, &mut []).is_err());
    assert!(segment.read_at(usize::MAX, &mut [0]).is_err());
}

#[cfg(not(target_family = "wasm"))]
fn shares_between_threads(memory: &dyn Memory) {
    let mut segment = memory.reserve(4096).expect("reserve");
    segment.write_at(0, &[7; 4096]).expect("write");
    let segment = segment.freeze().expect("freeze");
    let handles: Vec<_> = (0..4)
        .map(|_| {
            let segment = Arc::clone(&segment);
            std::thread::spawn(move || {
                let mut read = [0; 4096];
                segment.read_at(0, &mut read).expect("read");
                read
            })
        })
        .collect();
    drop(segment);
    for handle in handles {
        assert_eq!(handle.join().expect("reader"), [7; 4096]);
    }
}

/// Runs the conformance suite for memory that processes share: segments are opened from their descriptors.
///
/// # Panics
/// When the memory breaks a promise of [`Memory::import`] or [`Segment::fd`].
#[cfg(unix)]
pub fn import_conformance(memory: &dyn Memory) {
    let fd_of = |segment: &dyn Segment| {
        let fd = segment.fd().expect("a segment that processes share has a descriptor");
        fd.try_clone_to_owned().expect("duplicate")
    };
    for len in [1, 4096, 100_000] {
        let mut made = memory.reserve(len).expect("reserve");
        made.write_at(0, &vec![7; len]).expect("write");
        let made = made.freeze().expect("freeze");
        let (fd, kind) = (fd_of(&*made), made.kind());
        let found = memory.import(fd_of(&*made), len, kind).expect("import");
        assert_eq!((found.len(), found.kind(), found.device()), (len, kind, memory.device()));
        drop(made);
        let mut read = vec![0; len];
        found.read_at(0, &mut read).expect("read");
        assert!(read.iter().all(|&byte| byte == 7), "the segment outlives the one that exported it");
        if found.fd().is_some() {
            let again =
                memory.import(fd_of(&*found), len, kind).expect("an imported segment is exported like any other");
            assert_eq!(again.len(), len);
        }
        drop(found);
        // Where memory is allocated in units, a descriptor does not tell lengths apart that take the same units.
        let most = memory.device().allocated_bytes(len as u64) as usize;
        let refused = memory.import(fd, most + 1, kind).err().map(|error| error.kind());
        assert_eq!(refused, Some(ErrorKind::Refused), "{most} bytes are not one more");
    }
}

/// The most bytes of a [`FakeDevice`]'s segment. A larger request is an error; without the limit the allocation would
/// abort.
const FAKE_DEVICE_BYTES_MAX: usize = 1 << 30;

/// The memory of [`Device::Fake`]: the host cannot address its segments, and only explicit copies reach them.
///
/// Its segments have no descriptors, so processes cannot share them. It counts the bytes of live segments, so that
/// tests find leaks.
#[derive(Clone, Debug, Default)]
pub struct FakeDevice {
    index: u32,
    live_bytes: Arc<AtomicUsize>,
}

impl FakeDevice {
    /// The memory of `Device::Fake(index)`. The default is device 0.
    #[must_use]
    pub fn new(index: u32) -> Self {
        Self { index, live_bytes: Arc::default() }
    }

    /// Bytes of all live segments.
    pub fn live_bytes(&self) -> usize {
        self.live_bytes.load(Ordering::SeqCst)
    }
}

impl Memory for FakeDevice {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn device(&self) -> Device {
        Device::Fake(self.index)
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        if len > FAKE_DEVICE_BYTES_MAX {
            return Err(Error::invalid(format!("{len} bytes; the fake device has {FAKE_DEVICE_BYTES_MAX}")));
        }
        self.live_bytes.fetch_add(len, Ordering::SeqCst);
        Ok(Box::new(FakeSegment { data: vec![0; len], memory: self.clone() }))
    }
}

struct FakeSegment {
    data: Vec<u8>,
    memory: FakeDevice,
}

impl Drop for FakeSegment {
    fn drop(&mut self) {
        self.memory.live_bytes.fetch_sub(self.data.len(), Ordering::SeqCst);
    }
}

impl SegmentMut for FakeSegment {
    fn len(&self) -> usize {
        self.data.len()
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }

    fn write_at(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        let range = range_within(offset, source.len(), self.data.len())?;
        self.data[range].copy_from_slice(source);
        Ok(())
    }

    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>> {
        Ok(Arc::from(self as Box<dyn Segment>))
    }
}

impl Segment for FakeSegment {
    fn len(&self) -> usize {
        self.data.len()
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
        let range = range_within(offset, target.len(), self.data.len())?;
        target.copy_from_slice(&self.data[range]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fake_device_conforms_and_leaks_nothing() {
        let device = FakeDevice::default();
        conformance(&device);
        assert_eq!(device.live_bytes(), 0);
        assert_eq!(device.reserve(FAKE_DEVICE_BYTES_MAX + 1).err().unwrap().kind(), ErrorKind::Invalid);
        let segment = device.reserve(10).unwrap();
        assert_eq!(device.live_bytes(), 10);
        drop(segment);
        assert_eq!(device.live_bytes(), 0);
    }
}
