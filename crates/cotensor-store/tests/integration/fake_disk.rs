//! A spill storage for tests, and the tensors that they put.

use cotensor_core::{DType, Device, Error, ErrorKind, HeapMemory, Kind, Memory, Result, Segment};
use cotensor_store::{
    CopyReason, Holder, Lease, LocalStore, Retention, SpillStorage, SpilledSegment, TensorSpec, TensorStore,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A spill storage in memory. Its disk can be full or damaged.
#[derive(Default)]
pub(crate) struct FakeDisk {
    /// The numbers of the spilled segments.
    pub(crate) segments: Arc<Mutex<Vec<u64>>>,
    next: AtomicU64,
    pub(crate) full: AtomicBool,
    pub(crate) used_bytes: Arc<AtomicU64>,
    /// Zero sets no limit.
    pub(crate) bytes_max: AtomicU64,
    pub(crate) damaged: Arc<AtomicBool>,
    /// Whether reading a file fails.
    pub(crate) unreadable: Arc<AtomicBool>,
    /// The calls of work that may block.
    pub(crate) blocking_calls: AtomicU64,
    /// The number of restores that will fail for lack of descriptors.
    pub(crate) failing_restores: Arc<AtomicU64>,
}

struct FakeFile {
    number: u64,
    bytes: Vec<u8>,
    segments: Arc<Mutex<Vec<u64>>>,
    used_bytes: Arc<AtomicU64>,
    damaged: Arc<AtomicBool>,
    unreadable: Arc<AtomicBool>,
    failing_restores: Arc<AtomicU64>,
}

impl SpillStorage for FakeDisk {
    fn spill(&self, segment: &dyn Segment) -> Result<Arc<dyn SpilledSegment>> {
        if self.full.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Io, "no space left"));
        }
        let bytes = segment.bytes().unwrap().to_vec();
        let (bytes_max, len) = (self.bytes_max.load(Ordering::SeqCst), bytes.len() as u64);
        if bytes_max > 0 && self.used_bytes.load(Ordering::SeqCst) + len > bytes_max {
            return Err(Error::new(ErrorKind::OverBudget, "no space left"));
        }
        self.used_bytes.fetch_add(len, Ordering::SeqCst);
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        self.segments.lock().unwrap().push(number);
        Ok(Arc::new(FakeFile {
            number,
            bytes,
            segments: Arc::clone(&self.segments),
            used_bytes: Arc::clone(&self.used_bytes),
            damaged: Arc::clone(&self.damaged),
            unreadable: Arc::clone(&self.unreadable),
            failing_restores: Arc::clone(&self.failing_restores),
        }))
    }
}

impl SpilledSegment for FakeFile {
    fn number(&self) -> u64 {
        self.number
    }

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn restore(&self) -> Result<Arc<dyn Segment>> {
        if self.damaged.load(Ordering::SeqCst) {
            return Err(Error::corrupt("damaged"));
        }
        if self.unreadable.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Io, "read failed"));
        }
        let fails = |count: u64| count.checked_sub(1);
        if self.failing_restores.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            return Err(Error::new(ErrorKind::OverBudget, "no descriptor is left"));
        }
        let mut segment = HeapMemory.reserve(self.bytes.len())?;
        segment.write_at(0, &self.bytes)?;
        segment.freeze()
    }
}

impl Drop for FakeFile {
    fn drop(&mut self) {
        self.used_bytes.fetch_sub(self.bytes.len() as u64, Ordering::SeqCst);
        self.segments.lock().unwrap().retain(|number| *number != self.number);
    }
}

pub(crate) struct SharedDisk(pub(crate) Arc<FakeDisk>);

impl SpillStorage for SharedDisk {
    fn spill(&self, segment: &dyn Segment) -> Result<Arc<dyn SpilledSegment>> {
        self.0.spill(segment)
    }

    fn blocking(&self, work: &mut dyn FnMut()) {
        self.0.blocking_calls.fetch_add(1, Ordering::SeqCst);
        work();
    }
}

pub(crate) fn store(max: u64) -> (Arc<FakeDisk>, Arc<LocalStore>, Holder) {
    let disk = Arc::new(FakeDisk::default());
    let store = LocalStore::builder().max_memory_bytes(max).spill(Arc::new(SharedDisk(Arc::clone(&disk)))).build();
    let holder = store.holder("m");
    (disk, store, holder)
}

pub(crate) fn spec(name: &str, bytes: usize, recompute: Duration) -> TensorSpec {
    TensorSpec {
        device: Device::Cpu,
        name: name.to_owned(),
        dtype: DType::U8,
        shape: vec![bytes],
        kind: Kind::Other,
        space: None,
        producer: "test".to_owned(),
        retention: Retention::Cached { recompute },
        provenance: None,
        keep_for: None,
        metadata: None,
        members: None,
    }
}

pub(crate) fn put_as(store: &LocalStore, holder: &Holder, spec: TensorSpec, value: u8) -> Result<Lease> {
    let len = spec.shape[0];
    let mut reservation = store.reserve(spec, holder)?;
    reservation.write(&vec![value; len], CopyReason::Put)?;
    reservation.publish()
}

pub(crate) fn put(store: &LocalStore, holder: &Holder, name: &str, value: u8) -> Result<Lease> {
    put_as(store, holder, spec(name, 100, Duration::ZERO), value)
}
