//! Private copy-on-write mappings of published tensors, for readers that may write in place.

use crate::held_lease::HeldLease;
use cotensor::ErrorKind;
use cotensor::core::Segment;
use cotensor_core::Result;
use cotensor_core::sync::lock;
use cotensor_memory::PrivateMapping;
use cotensor_store::CopyReason;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The bytes of a tensor for a reader that may write in place. The first write to a page makes a private copy of it,
/// which is counted.
pub(crate) struct TensorMapping {
    address: NonNull<u8>,
    len: usize,
    memory: Option<Memory>,
    // Dropped last: a slab reuses a range once its lease ends.
    held: Arc<HeldLease>,
}

enum Memory {
    Mapped(PrivateMapping),
    /// For memory that cannot be mapped again. Words of eight bytes align every element type.
    Copied(#[allow(dead_code, reason = "accessed by its address")] Box<[u64]>),
}

// SAFETY: an address and its owner; code that writes there is responsible for races, as with any array.
unsafe impl Send for TensorMapping {}
// SAFETY: as above.
unsafe impl Sync for TensorMapping {}

impl TensorMapping {
    /// Maps the bytes that the lease's layout spans in its segment.
    ///
    /// # Errors
    /// `OverBudget` at the process's limit of mappings, `Io` when the kernel refuses the mapping.
    pub(super) fn new(held: &Arc<HeldLease>) -> Result<Arc<Self>> {
        let lease = held.lease();
        let range = lease.layout().byte_range();
        let segment: &dyn Segment = lease.segment();
        let len = range.len();
        let (memory, address) = match PrivateMapping::of(segment, range.clone()) {
            Ok(mapping) => {
                let address = mapping.address();
                (Memory::Mapped(mapping), address)
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                let mut words = vec![0u64; len.div_ceil(8)].into_boxed_slice();
                segment.read_at(range.start, &mut bytemuck::cast_slice_mut(&mut words)[..len])?;
                if let Some(store) = held.store() {
                    store.record_copy(lease.name(), CopyReason::PrivateCopy, len);
                }
                let address = NonNull::from(&mut *words).cast();
                (Memory::Copied(words), address)
            }
            Err(error) => return Err(error),
        };
        let mapping = Arc::new(Self { address, len, memory: Some(memory), held: Arc::clone(held) });
        if len > 0 {
            mappings().insert(address.as_ptr() as usize, Arc::downgrade(&mapping));
        }
        Ok(mapping)
    }

    /// The first byte of the tensor.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Bytes of the pages that this process has written.
    pub(super) fn private_bytes(&self) -> u64 {
        match &self.memory {
            Some(Memory::Mapped(mapping)) => mapping.dirty_bytes().unwrap_or(0),
            _ => 0,
        }
    }

    /// Whether the bytes still equal the tensor's. False for a copy, whose writes the kernel does not report.
    fn is_unwritten(&self) -> bool {
        matches!(&self.memory, Some(Memory::Mapped(mapping)) if mapping.dirty_bytes().is_ok_and(|bytes| bytes == 0))
    }
}

impl Drop for TensorMapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // Before it is unmapped: afterwards the kernel may reuse the address.
            mappings().remove(&(self.address.as_ptr() as usize));
        }
        let Some(Memory::Mapped(mapping)) = self.memory.take() else { return };
        if let Ok(written @ 1..) = mapping.close()
            && let Some(store) = self.held.store()
        {
            store.record_copy(self.held.lease().name(), CopyReason::CopyOnWrite, written as usize);
        }
    }
}

/// Every mapping by its address. It finds the tensor of an array that is passed back as an argument.
static MAPPINGS: Mutex<BTreeMap<usize, Weak<TensorMapping>>> = Mutex::new(BTreeMap::new());

fn mappings() -> MutexGuard<'static, BTreeMap<usize, Weak<TensorMapping>>> {
    lock(&MAPPINGS)
}

/// The tensor whose mapping begins at `address`. None for other memory, and after a write in place.
pub(crate) fn lease_at(address: usize) -> Option<Arc<HeldLease>> {
    let mapping = mappings().get(&address)?.upgrade()?;
    mapping.is_unwritten().then(|| Arc::clone(&mapping.held))
}

/// The published tensor whose mapping contains `len` bytes at `address`, and their offset in the tensor in bytes. None for other
/// memory, such as that of a call, and after a write to one of these pages.
pub(crate) fn published_at(address: usize, len: usize) -> Option<(Arc<HeldLease>, usize)> {
    let (start, mapping) = {
        let mappings = mappings();
        let (start, mapping) = mappings.range(..=address).next_back()?;
        (*start, mapping.upgrade()?)
    };
    let offset = address - start;
    let end = offset.checked_add(len).filter(|end| *end <= mapping.len)?;
    let Some(Memory::Mapped(pages)) = &mapping.memory else { return None };
    let is_published = mapping.held.store().is_some() && !mapping.held.lease().is_private();
    let unwritten = pages.dirty_bytes_in(offset..end).is_ok_and(|bytes| bytes == 0);
    (unwritten && is_published).then(|| (Arc::clone(&mapping.held), offset))
}
