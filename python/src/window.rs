//! A lease, and the private pages of it that Python's arrays show.

use crate::process::Own;
use cotensor::core::Segment;
use cotensor::{Error, ErrorKind, Lease, Store};
use cotensor_core::Result;
use cotensor_memory::PrivateMapping;
use cotensor_store::CopyReason;
use std::any::Any;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// A lease and its store, for as long as anything of Python's shows the tensor.
pub(crate) struct Held {
    lease: Own<Lease>,
    store: Own<Arc<dyn Store>>,
    /// What else is to stay as long.
    _keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl Held {
    pub(crate) fn new(lease: Lease, store: Arc<dyn Store>) -> Arc<Self> {
        Self::keeping(lease, store, None)
    }

    pub(crate) fn keeping(lease: Lease, store: Arc<dyn Store>, keep: Option<Arc<dyn Any + Send + Sync>>) -> Arc<Self> {
        Arc::new(Self { lease: Own::new(lease), store: Own::new(store), _keep: keep })
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Nobody's but the process's that made it.
    pub(crate) fn store(&self) -> Option<&Arc<dyn Store>> {
        self.store.is_ours().then_some(&*self.store)
    }
}

/// A leased tensor, and the private pages that the arrays of one `Tensor` object and of its windows show: numpy's, which are
/// read-only for numpy itself, and those by DLPack, which torch writes.
pub(crate) struct Pages {
    held: Arc<Held>,
    of_numpy: OnceLock<Arc<Writable>>,
    of_dlpack: OnceLock<Arc<Writable>>,
}

impl Pages {
    pub(crate) fn new(held: Arc<Held>) -> Arc<Self> {
        Arc::new(Self { held, of_numpy: OnceLock::new(), of_dlpack: OnceLock::new() })
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    /// Those of numpy's arrays: of the whole tensor, mapped by the first array.
    pub(crate) fn of_numpy(&self) -> Result<&Arc<Writable>> {
        self.mapped(&self.of_numpy)
    }

    /// Those of arrays by DLPack.
    pub(crate) fn of_dlpack(&self) -> Result<&Arc<Writable>> {
        self.mapped(&self.of_dlpack)
    }

    fn mapped<'a>(&self, pages: &'a OnceLock<Arc<Writable>>) -> Result<&'a Arc<Writable>> {
        if let Some(writable) = pages.get() {
            return Ok(writable);
        }
        let made = Writable::new(&self.held)?;
        Ok(pages.get_or_init(|| made))
    }

    /// Bytes of the pages that were written.
    pub(crate) fn written_bytes(&self) -> u64 {
        [&self.of_numpy, &self.of_dlpack]
            .iter()
            .filter_map(|pages| pages.get())
            .map(|pages| pages.written_bytes())
            .sum()
    }
}

/// For a small tensor whose private pages cannot be mapped, because the process has as many mappings as it may, a copy is made.
const COPIED_BYTES_MAX: usize = 256 << 10;

/// The bytes of a tensor for a reader that may write in place: each written page is private from then on, and counted.
pub(crate) struct Writable {
    address: NonNull<u8>,
    len: usize,
    memory: Option<Memory>,
    // Dropped last: ranges of slabs are used again when their lease is gone.
    held: Arc<Held>,
}

enum Memory {
    Mapped(PrivateMapping),
    /// For memory that cannot be mapped again. Eight bytes each, so that any element is aligned.
    Copied(#[allow(dead_code, reason = "used by its address")] Box<[u64]>),
}

// SAFETY: an address and what keeps it; code that writes there answers for it, as with any array.
unsafe impl Send for Writable {}
// SAFETY: as above.
unsafe impl Sync for Writable {}

impl Writable {
    /// The bytes that the lease's layout spans in its segment.
    fn new(held: &Arc<Held>) -> Result<Arc<Self>> {
        let lease = held.lease();
        let range = lease.layout().byte_range();
        let segment: &dyn Segment = lease.segment();
        let len = range.len();
        let (memory, address) = match PrivateMapping::of(segment, range.clone()) {
            Ok(copy) => {
                let address = copy.address();
                (Memory::Mapped(copy), address)
            }
            Err(error) if must_copy(&error, len) => {
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
        let window = Arc::new(Self { address, len, memory: Some(memory), held: Arc::clone(held) });
        if len > 0 {
            known().insert(address.as_ptr() as usize, Arc::downgrade(&window));
        }
        Ok(window)
    }

    /// The first byte of the tensor.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Bytes of the pages that were written.
    fn written_bytes(&self) -> u64 {
        match &self.memory {
            Some(Memory::Mapped(copy)) => copy.dirty_bytes().unwrap_or(0),
            _ => 0,
        }
    }

    /// Whether the bytes are still the tensor's, as far as is known.
    fn is_unwritten(&self) -> bool {
        matches!(&self.memory, Some(Memory::Mapped(copy)) if copy.dirty_bytes().is_ok_and(|bytes| bytes == 0))
    }
}

fn must_copy(error: &Error, len: usize) -> bool {
    match error.kind() {
        ErrorKind::Unsupported => true,
        ErrorKind::Io => len <= COPIED_BYTES_MAX,
        _ => false,
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        if self.len > 0 {
            // Before it is unmapped: the address may be another's then.
            known().remove(&(self.address.as_ptr() as usize));
        }
        let Some(Memory::Mapped(copy)) = self.memory.take() else { return };
        if let Ok(written @ 1..) = copy.close()
            && let Some(store) = self.held.store()
        {
            store.record_copy(self.held.lease().name(), CopyReason::CopyOnWrite, written as usize);
        }
    }
}

/// All of them by address: an array that comes back as an argument is a tensor already.
static KNOWN: Mutex<BTreeMap<usize, Weak<Writable>>> = Mutex::new(BTreeMap::new());

fn known() -> MutexGuard<'static, BTreeMap<usize, Weak<Writable>>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tensor that the array with its first byte at `address` was made of, unless it was written in place.
pub(crate) fn made_of(address: usize) -> Option<Arc<Held>> {
    let window = known().get(&address)?.upgrade()?;
    window.is_unwritten().then(|| Arc::clone(&window.held))
}

/// The tensor that has these bytes of the process' memory, and how far into the tensor they begin. None for other memory, and
/// for pages that were written in place.
pub(crate) fn published_at(address: usize, len: usize) -> Option<(Arc<Held>, usize)> {
    let (start, window) = {
        let known = known();
        let (start, window) = known.range(..=address).next_back()?;
        (*start, window.upgrade()?)
    };
    let offset = address - start;
    let end = offset.checked_add(len).filter(|end| *end <= window.len)?;
    let Some(Memory::Mapped(copy)) = &window.memory else { return None };
    let unwritten = copy.dirty_bytes_in(offset..end).is_ok_and(|bytes| bytes == 0);
    (unwritten && window.held.store().is_some()).then(|| (Arc::clone(&window.held), offset))
}
