//! `SharedTensor`: the handle of one shared tensor.

use crate::lifecycle::{Residence, TensorCell, Via, WriteMode};
use crate::spec::{spec, window};
use crate::state::Content;
use crate::view::SharedTensorView;
use cotensor_core::{DType, Device, HeapMemory, Kind, Memory, Result};
use cotensor_store::{LocalStore, Retention, Store, TensorSpec};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A tensor that models acquire and release by name.
///
/// Its producer writes it until another model first acquires it, which publishes it for good. Counts are per
/// model: two acquires need two releases. Cloning the handle acquires nothing.
#[derive(Clone)]
pub struct SharedTensor(pub(crate) Arc<TensorCell>);

impl SharedTensor {
    /// A zeroed tensor without a manager, acquired once by `producer_model`. `shape` is in elements; `storage_type` is
    /// the name of a [`Device`]: `cpu`. For a device of browsers the tensor is on the cpu; see [`skipped`](Self::skipped).
    ///
    /// # Errors
    /// `Invalid` for an impossible shape or an unknown storage type, `Unsupported` for a device that this machine does
    /// not have.
    pub fn new(name: &str, shape: &[usize], dtype: DType, storage_type: &str, producer_model: &str) -> Result<Self> {
        Self::in_memory(Arc::new(HeapMemory), name, shape, dtype, storage_type, producer_model)
    }

    /// As [`new`](Self::new), in `memory`. `storage_type` names its device.
    ///
    /// # Errors
    /// As [`SharedTensor::new`].
    pub fn in_memory(
        memory: Arc<dyn Memory>,
        name: &str,
        shape: &[usize],
        dtype: DType,
        storage_type: &str,
        producer_model: &str,
    ) -> Result<Self> {
        Self::standalone(memory, name, shape, dtype, storage_type, producer_model, WriteMode::InPlace)
    }

    /// As [`in_memory`](Self::in_memory), for a producer that keeps the address of the memory; see
    /// [`SharedTensorView::memory`].
    ///
    /// # Errors
    /// As [`SharedTensor::new`]; `Unsupported` for memory without aliased mappings.
    pub fn aliased(
        memory: Arc<dyn Memory>,
        name: &str,
        shape: &[usize],
        dtype: DType,
        storage_type: &str,
        producer_model: &str,
    ) -> Result<Self> {
        Self::standalone(memory, name, shape, dtype, storage_type, producer_model, WriteMode::ByAddress)
    }

    fn standalone(
        memory: Arc<dyn Memory>,
        name: &str,
        shape: &[usize],
        dtype: DType,
        storage_type: &str,
        producer_model: &str,
        mode: WriteMode,
    ) -> Result<Self> {
        let device = memory.device();
        let wanted = device.storage(storage_type)?;
        let store = LocalStore::builder().memory(memory).small().build();
        let spec = spec(name, shape, dtype, Kind::Other, producer_model, Retention::WhileLeased).on(device);
        TensorCell::new(store, spec, wanted, Residence::Own, mode).map(Self)
    }

    /// A tensor of a manager. The store keeps it without holders, unless it is private.
    pub(crate) fn managed(
        store: Arc<dyn Store>,
        spec: TensorSpec,
        wanted: Device,
        residence: Residence,
        mode: WriteMode,
    ) -> Result<Self> {
        TensorCell::new(store, spec, wanted, residence, mode).map(Self)
    }

    /// The tensor's store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// The tensor's name.
    pub fn name(&self) -> &str {
        &self.0.spec.name
    }

    /// Dimensions, in elements.
    pub fn shape(&self) -> &[usize] {
        self.0.layout.shape()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.0.layout.dtype()
    }

    /// The tensor's kind.
    pub fn kind(&self) -> Kind {
        self.0.spec.kind
    }

    /// The model that produced the tensor.
    pub fn producer_model(&self) -> &str {
        &self.0.spec.producer
    }

    /// The size of the elements, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.0.layout.size_bytes()
    }

    /// The device of the tensor's memory.
    pub fn storage_type(&self) -> Device {
        self.0.device
    }

    /// The device that the storage type named, and why the tensor is not there; `None` for a tensor on that device.
    pub fn skipped(&self) -> Option<(Device, &'static str)> {
        let wanted = self.0.wanted;
        wanted.browser_only().filter(|_| wanted != self.0.device).map(|reason| (wanted, reason))
    }

    /// Acquires the tensor once more for `model`. The first acquire by a model other than the producer publishes it.
    ///
    /// # Errors
    /// `NotFound` after it was freed; `Refused` for a model other than the producer when the configuration keeps it
    /// private.
    pub fn acquire(&self, model: &str) -> Result<()> {
        self.0.acquire(&[model], None, Via::Handle)
    }

    /// Releases one acquire of `model`. The last release without live views frees a tensor without a manager, and makes
    /// a tensor of a manager evictable.
    ///
    /// # Errors
    /// `Conflict` when `model` does not hold it; `Io` when it was released and freed because its memory could not be
    /// sealed.
    pub fn release(&self, model: &str) -> Result<()> {
        self.0.release(model)
    }

    /// The number of acquires that were not released. Views do not count.
    pub fn get_reference_count(&self) -> u32 {
        self.holders().values().sum()
    }

    /// The number of acquires of each model.
    pub fn holders(&self) -> BTreeMap<String, u32> {
        self.0.read().counts(&self.0.spec.producer)
    }

    /// Whether `model` holds it.
    pub fn is_held_by(&self, model: &str) -> bool {
        self.0.read().holds(model, &self.0.spec.producer)
    }

    /// Whether the tensor is published and thus immutable.
    pub fn is_published(&self) -> bool {
        matches!(self.0.read().content, Content::Published { .. })
    }

    /// Whether the tensor's memory was freed.
    pub fn is_freed(&self) -> bool {
        !self.0.is_live()
    }

    /// Whether the configuration keeps the tensor private to its producer.
    pub fn is_private(&self) -> bool {
        self.0.residence == Residence::Private
    }

    /// Writes the bytes in place before publishing. `write` runs while the tensor is locked: it must not use this
    /// tensor or drop a view of it.
    ///
    /// # Errors
    /// `Conflict` after publishing, `NotFound` after it was freed, `Unsupported` on a device.
    pub fn write(&self, write: impl FnOnce(&mut [u8])) -> Result<()> {
        self.0.write_with(write)
    }

    /// Reads the bytes in place, row-major. Before publishing, `read` runs while the tensor is locked: it must not
    /// acquire, release or write this tensor, or create or drop a view of it.
    ///
    /// # Errors
    /// `NotFound` when it has no holder, `Unsupported` on a device.
    pub fn read<T>(&self, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        self.0.read_with(None, &self.0.layout, read)
    }

    /// A view of `size` elements from `offset` on, along each dimension, in the same memory. Writes of the producer
    /// before publishing are visible through the view. A live view holds the tensor.
    ///
    /// # Errors
    /// `Invalid` when it is out of bounds, `NotFound` after the tensor was freed.
    pub fn create_view(&self, name: &str, offset: &[usize], size: &[usize]) -> Result<SharedTensorView> {
        SharedTensorView::open(&self.0, name, window(&self.0.layout, offset, size)?)
    }
}

impl fmt::Debug for SharedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedTensor({} {} {:?}, held by {:?})", self.name(), self.dtype(), self.shape(), self.holders())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;
    use cotensor_core::testing::FakeDevice;

    #[test]
    fn counts_are_per_model() {
        let tensor = SharedTensor::new("x", &[2, 2], DType::F32, "cpu", "bert").unwrap();
        tensor.acquire("t5").unwrap();
        tensor.acquire("t5").unwrap();
        assert_eq!(tensor.get_reference_count(), 3);
        assert_eq!(tensor.release("llama").unwrap_err().kind(), ErrorKind::Conflict);
        tensor.release("t5").unwrap();
        tensor.release("t5").unwrap();
        assert_eq!(tensor.release("t5").unwrap_err().kind(), ErrorKind::Conflict);
        assert!(!tensor.is_freed());
        tensor.release("bert").unwrap();
        assert!(tensor.is_freed());
        assert_eq!(tensor.acquire("t5").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn last_release_frees_the_memory() {
        let device = FakeDevice::default();
        let tensor = SharedTensor::in_memory(Arc::new(device.clone()), "x", &[256], DType::F32, "fake", "a").unwrap();
        assert_eq!((device.live_bytes(), tensor.storage_type()), (1024, Device::Fake(0)));
        assert_eq!(tensor.write(|_| ()).unwrap_err().kind(), ErrorKind::Unsupported);
        tensor.acquire("b").unwrap();
        tensor.release("a").unwrap();
        let view = tensor.create_view("v", &[0], &[4]).unwrap();
        tensor.release("b").unwrap();
        assert_eq!(device.live_bytes(), 1024, "a live view keeps its parent alive");
        drop(view);
        assert_eq!(device.live_bytes(), 0);
        assert!(tensor.is_freed());
    }

    #[test]
    fn views_share_memory_and_see_writes_until_publishing() {
        let tensor = SharedTensor::new("x", &[4, 4], DType::U8, "cpu", "a").unwrap();
        let view = tensor.create_view("rows", &[1, 0], &[2, 4]).unwrap();
        let inner = view.create_view("cell", &[1, 2], &[1, 1]).unwrap();
        tensor.write(|bytes| bytes[2 * 4 + 2] = 42).unwrap();
        assert_eq!(inner.read(<[u8]>::to_vec).unwrap(), [42]);
        let base = tensor.read(|bytes| bytes.as_ptr() as usize).unwrap();
        assert_eq!(view.read(|bytes| bytes.as_ptr() as usize).unwrap(), base + 4);
        tensor.acquire("b").unwrap();
        assert!(tensor.is_published());
        assert_eq!(tensor.write(|_| ()).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(inner.read(|bytes| bytes.as_ptr() as usize).unwrap(), base + 10, "publishing moves nothing");
        assert!(tensor.create_view("out", &[3, 0], &[2, 4]).is_err());
        assert!(tensor.create_view("rank", &[0], &[1]).is_err());
    }

    #[test]
    fn storage_type_must_name_the_device_of_the_memory() {
        let make = |storage: &str| SharedTensor::new("x", &[2], DType::F32, storage, "a");
        assert_eq!(make("cpu").unwrap().storage_type(), Device::Cpu);
        assert_eq!(make("cpu").unwrap().skipped(), None);
        for wanted in [Device::WebGpu, Device::WebNn] {
            let tensor = make(&wanted.to_string()).unwrap();
            assert_eq!((tensor.storage_type(), tensor.skipped().unwrap().0), (Device::Cpu, wanted));
        }
        for (storage, kind) in [("cuda", ErrorKind::Unsupported), ("floppy", ErrorKind::Invalid)] {
            let error = make(storage).unwrap_err();
            assert_eq!((error.kind(), error.field()), (kind, Some("storage_type")));
        }
        let device = Arc::new(FakeDevice::default());
        let error = SharedTensor::in_memory(device, "x", &[2], DType::F32, "cpu", "a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
