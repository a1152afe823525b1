//! The memory of each device, in which this process makes tensors and opens those of other processes.

use cotensor_core::{Device, Error, ErrorKind, Memory, Result, Segment};
use cotensor_memory::process::duplicate_fd;
use cotensor_memory::{CudaMemory, MemfdPool};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// The most bytes of prefaulted host memory for large tensors.
const POOL_BYTES_MAX: usize = 1 << 30;

/// A memory for each device that this process can use.
pub(super) struct Memories {
    given: BTreeMap<Device, Arc<dyn Memory>>,
    /// Those of CUDA devices, if the driver is installed. The first use of one loads the driver; a failure is tried again.
    cuda: OnceLock<BTreeMap<Device, Arc<dyn Memory>>>,
    /// That of the host; unused if another memory was given for it.
    pub(super) pool: Arc<MemfdPool>,
}

impl Memories {
    /// A pool of memfds for the host, and `memories`, of which one may replace the pool.
    pub(super) fn new(memories: impl IntoIterator<Item = Arc<dyn Memory>>) -> Self {
        let pool = Arc::new(MemfdPool::new(POOL_BYTES_MAX));
        let host: Arc<dyn Memory> = Arc::clone(&pool) as _;
        Self { given: by_device(std::iter::once(host).chain(memories)), cuda: OnceLock::new(), pool }
    }

    /// The memory of `device`.
    ///
    /// # Errors
    /// `Unsupported` for a device that this client was built without, and for a CUDA device that the driver does not have; other errors of
    /// the driver.
    pub(super) fn of(&self, device: Device) -> Result<&dyn Memory> {
        if let Some(memory) = self.given.get(&device) {
            return Ok(&**memory);
        }
        let mut known: Vec<&Device> = self.given.keys().collect();
        if matches!(device, Device::Cuda(_)) {
            let found = self.cuda(installed).map_err(|error| {
                // The kind of a tensor that is missing is not that of a driver which is.
                let kind = if error.kind() == ErrorKind::NotFound { ErrorKind::Unsupported } else { error.kind() };
                Error::new(kind, format!("this client has no memory on {device}: {error}"))
            })?;
            if let Some(memory) = found.get(&device) {
                return Ok(&**memory);
            }
            known.extend(found.keys());
        }
        let known: Vec<String> = known.into_iter().map(Device::to_string).collect();
        Err(Error::unsupported(format!("this client has no memory on {device}; it has {}", known.join(", "))))
    }

    /// The memories that `open` finds, or that it found before.
    fn cuda(&self, open: impl FnOnce() -> Result<Vec<Arc<dyn Memory>>>) -> Result<&BTreeMap<Device, Arc<dyn Memory>>> {
        match self.cuda.get() {
            Some(found) => Ok(found),
            None => open().map(|found| self.cuda.get_or_init(|| by_device(found))),
        }
    }
}

fn by_device(memories: impl IntoIterator<Item = Arc<dyn Memory>>) -> BTreeMap<Device, Arc<dyn Memory>> {
    memories.into_iter().map(|memory| (memory.device(), memory)).collect()
}

fn installed() -> Result<Vec<Arc<dyn Memory>>> {
    Ok(CudaMemory::installed()?.iter().map(|memory| Arc::new(memory.clone()) as Arc<dyn Memory>).collect())
}

/// A duplicate of a segment's descriptor, to send.
pub(super) fn descriptor_of(segment: &dyn Segment) -> Result<OwnedFd> {
    let unshared = || {
        let (kind, device) = (segment.kind(), segment.device());
        Error::unsupported(format!("{kind} memory on {device} has no descriptor, so processes cannot share it"))
    };
    duplicate_fd(segment.fd().ok_or_else(unshared)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_is_tried_again_after_an_error() {
        let memories = Memories::new([]);
        let busy = || Err(Error::new(ErrorKind::OverBudget, "no memory now"));
        assert_eq!(memories.cuda(busy).err().unwrap().kind(), ErrorKind::OverBudget);
        assert!(memories.cuda(|| Ok(Vec::new())).unwrap().is_empty());
        assert!(memories.cuda(busy).is_ok(), "the memories are kept");
    }
}
