//! The memory of each device, in which this process makes tensors and opens those of other processes.

use cotensor_core::{Device, Error, Memory, Result, Segment};
use cotensor_memory::MemfdPool;
use cotensor_memory::process::duplicate_fd;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The most bytes of prefaulted host memory for large tensors.
const POOL_BYTES_MAX: usize = 1 << 30;

/// A memory for each device that this process can use.
pub(super) struct Memories(BTreeMap<Device, Arc<dyn Memory>>);

impl Memories {
    /// A pool of memfds for the host, and `memories`, of which one may replace the pool.
    pub(super) fn new(memories: impl IntoIterator<Item = Arc<dyn Memory>>) -> Self {
        let host: Arc<dyn Memory> = Arc::new(MemfdPool::new(POOL_BYTES_MAX));
        Self(std::iter::once(host).chain(memories).map(|memory| (memory.device(), memory)).collect())
    }

    /// The memory of `device`.
    ///
    /// # Errors
    /// `Unsupported` for a device that this client was built without.
    pub(super) fn of(&self, device: Device) -> Result<&dyn Memory> {
        self.0.get(&device).map(|memory| &**memory).ok_or_else(|| {
            let known: Vec<String> = self.0.keys().map(Device::to_string).collect();
            Error::unsupported(format!("this client has no memory on {device}; it has {}", known.join(", ")))
        })
    }
}

/// A duplicate of a segment's descriptor, to send.
pub(super) fn descriptor_of(segment: &dyn Segment) -> Result<OwnedFd> {
    let unshared = || {
        let (kind, device) = (segment.kind(), segment.device());
        Error::unsupported(format!("{kind} memory on {device} has no descriptor, so processes cannot share it"))
    };
    duplicate_fd(segment.fd().ok_or_else(unshared)?)
}
