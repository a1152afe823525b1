use crate::{EmbeddedStore, Lease, Reservation, Retention, Store, TensorSpec};
use cotensor_core::{DType, Device, Error, ErrorKind, Kind, Layout, Memory, Result, Slice};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A tensor that models acquire and release by name.
///
/// Its producer writes it until another model first acquires it, which publishes it for good. Counts are per
/// model: two acquires need two releases. Cloning the handle acquires nothing.
#[derive(Clone)]
pub struct SharedTensor(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    spec: TensorSpec,
    layout: Layout,
    /// Where it was reserved.
    device: Device,
    state: RwLock<State>,
}

struct State {
    memory: Content,
    /// Model to its acquires.
    counts: BTreeMap<String, u32>,
    views: u32,
}

enum Content {
    /// Only the producer holds it, and may write.
    Writable(Box<Reservation>),
    /// Published; at least one lease while anybody holds it.
    Published(Vec<(String, Lease)>),
    Freed,
}

impl SharedTensor {
    /// A zeroed tensor of its own on the heap, held once by `producer`.
    ///
    /// # Errors
    /// `Invalid` for an impossible shape.
    pub fn new(name: &str, shape: &[usize], dtype: DType, producer: &str) -> Result<Self> {
        Self::in_memory(Arc::new(cotensor_core::HeapMemory), name, shape, dtype, producer)
    }

    /// The same in a memory of the caller's choice.
    ///
    /// # Errors
    /// As [`SharedTensor::new`].
    pub fn in_memory(
        memory: Arc<dyn Memory>,
        name: &str,
        shape: &[usize],
        dtype: DType,
        producer: &str,
    ) -> Result<Self> {
        let store = EmbeddedStore::builder().memory(memory).small().build();
        Self::reserve(store, name, shape, dtype, Kind::Other, producer, Retention::WhileLeased)
    }

    pub(super) fn reserve(
        store: Arc<dyn Store>,
        name: &str,
        shape: &[usize],
        dtype: DType,
        kind: Kind,
        producer: &str,
        retention: Retention,
    ) -> Result<Self> {
        let spec = TensorSpec {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            kind,
            space: None,
            producer: producer.to_owned(),
            retention,
            provenance: None,
        };
        let reservation = store.reserve(spec.clone(), &store.holder(producer))?;
        let (layout, device) = (reservation.layout().clone(), reservation.device());
        let counts = BTreeMap::from([(producer.to_owned(), 1)]);
        let state = RwLock::new(State { memory: Content::Writable(Box::new(reservation)), counts, views: 0 });
        Ok(Self(Arc::new(Inner { store, spec, layout, device, state })))
    }

    /// Its name.
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

    /// What it means.
    pub fn kind(&self) -> Kind {
        self.0.spec.kind
    }

    /// The model that made it.
    pub fn producer_model(&self) -> &str {
        &self.0.spec.producer
    }

    /// Bytes of its elements.
    pub fn size_bytes(&self) -> usize {
        self.0.layout.size_bytes()
    }

    /// Where it lies: the storage type.
    pub fn device(&self) -> Device {
        match &self.0.read().memory {
            Content::Published(leases) if !leases.is_empty() => leases[0].1.segment().device(),
            _ => self.0.device,
        }
    }

    /// Acquires the tensor once more for `model`. The first acquire by anybody but the producer publishes it.
    ///
    /// # Errors
    /// `NotFound` once it was freed.
    pub fn acquire(&self, model: &str) -> Result<()> {
        let mut state = self.0.write();
        if model != self.0.spec.producer {
            self.0.publish(&mut state)?;
        }
        match &mut state.memory {
            Content::Writable(_) => {}
            Content::Published(leases) => {
                let holder = self.0.store.holder(model);
                let lease = match leases.first() {
                    Some((_, lease)) => lease.another(&holder)?,
                    None => self.0.store.get(&self.0.spec.name, &holder)?,
                };
                leases.push((model.to_owned(), lease));
            }
            Content::Freed => return Err(self.0.freed()),
        }
        *state.counts.entry(model.to_owned()).or_default() += 1;
        // The lease of a producer that let go before it was published.
        self.0.settle(&mut state)
    }

    /// Gives one of `model`'s acquires back. With the last of all, and no view alive, a tensor of its own is freed;
    /// one of a manager becomes free to evict.
    ///
    /// # Errors
    /// `Conflict` when `model` does not hold it.
    pub fn release(&self, model: &str) -> Result<()> {
        let mut state = self.0.write();
        let Some(count) = state.counts.get_mut(model) else {
            let message = format!("{} is not held by {model:?}", self.name());
            return Err(Error::new(ErrorKind::Conflict, message));
        };
        *count -= 1;
        if *count == 0 {
            state.counts.remove(model);
        }
        self.0.settle(&mut state)
    }

    /// All acquires that were not released.
    pub fn reference_count(&self) -> u32 {
        self.0.read().counts.values().sum()
    }

    /// Models and their acquires.
    pub fn holders(&self) -> BTreeMap<String, u32> {
        self.0.read().counts.clone()
    }

    /// Whether another model has seen it, so that it can no longer be written.
    pub fn is_published(&self) -> bool {
        matches!(self.0.read().memory, Content::Published(_))
    }

    /// Whether its memory was given back.
    pub fn is_freed(&self) -> bool {
        matches!(self.0.read().memory, Content::Freed)
    }

    /// Writes in place, before publishing.
    ///
    /// # Errors
    /// `Conflict` once it is published or freed, `Unsupported` on a device.
    pub fn write(&self, write: impl FnOnce(&mut [u8])) -> Result<()> {
        match &mut self.0.write().memory {
            Content::Writable(reservation) => {
                let bytes =
                    reservation.bytes_mut().ok_or_else(|| Error::unsupported("the host cannot address this device"))?;
                write(bytes);
                Ok(())
            }
            Content::Published(_) => {
                Err(Error::new(ErrorKind::Conflict, format!("{} is published: it is immutable", self.name())))
            }
            Content::Freed => Err(self.0.freed()),
        }
    }

    /// Reads the bytes where they lie, row-major.
    ///
    /// # Errors
    /// `NotFound` once nobody holds it, `Unsupported` on a device.
    pub fn read<T>(&self, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        self.0.with_bytes(read)
    }

    /// A window: `size` elements from `offset` on, along each dimension. Same memory; what the producer
    /// writes before publishing is seen through it. A live view keeps the tensor alive.
    ///
    /// # Errors
    /// `Invalid` when it is out of bounds, `NotFound` once the tensor was freed.
    pub fn create_view(&self, name: &str, offset: &[usize], size: &[usize]) -> Result<SharedTensorView> {
        SharedTensorView::make(&self.0, name, window(&self.0.layout, offset, size)?)
    }
}

impl Inner {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn freed(&self) -> Error {
        Error::not_found(format!("{} was freed", self.spec.name))
    }

    fn publish(&self, state: &mut State) -> Result<()> {
        if !matches!(state.memory, Content::Writable(_)) {
            return Ok(());
        }
        if let Content::Writable(reservation) = std::mem::replace(&mut state.memory, Content::Freed) {
            let lease = reservation.publish()?;
            let producer = &self.spec.producer;
            let count = state.counts.get(producer).copied().unwrap_or(0);
            let mut leases = Vec::new();
            for _ in 1..count {
                leases.push((producer.clone(), lease.try_clone()?));
            }
            leases.push((producer.clone(), lease));
            state.memory = Content::Published(leases);
        }
        Ok(())
    }

    /// After an acquire or a view went: drops the lease that nobody counts, or the memory.
    fn settle(&self, state: &mut State) -> Result<()> {
        let done = state.counts.is_empty() && state.views == 0;
        if done && self.spec.retention != Retention::WhileLeased {
            // Of a manager: stays in its store, unleased, until memory is wanted.
            self.publish(state)?;
        }
        if let Content::Published(leases) = &mut state.memory {
            if done {
                leases.clear();
            }
            // While a view lives the last lease stays with it.
            while leases.len() > 1
                && let Some(index) = surplus(leases, &state.counts)
            {
                leases.swap_remove(index);
            }
        }
        if done && self.spec.retention == Retention::WhileLeased {
            state.memory = Content::Freed;
        }
        Ok(())
    }

    fn with_bytes<T>(&self, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let unaddressable = || Error::unsupported("the host cannot address this device");
        match &self.read().memory {
            Content::Writable(reservation) => Ok(read(reservation.bytes().ok_or_else(unaddressable)?)),
            Content::Published(leases) => {
                let (_, lease) =
                    leases.first().ok_or_else(|| Error::not_found(format!("nobody holds {}", self.spec.name)))?;
                Ok(read(lease.bytes().ok_or_else(unaddressable)?))
            }
            Content::Freed => Err(self.freed()),
        }
    }
}

impl fmt::Debug for SharedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedTensor({} {} {:?}, held by {:?})", self.name(), self.dtype(), self.shape(), self.holders())
    }
}

/// A window on a [`SharedTensor`]; keeps it alive.
pub struct SharedTensorView {
    name: String,
    parent: Arc<Inner>,
    layout: Layout,
}

impl SharedTensorView {
    fn make(parent: &Arc<Inner>, name: &str, layout: Layout) -> Result<Self> {
        let mut state = parent.write();
        let gone = match &state.memory {
            Content::Freed => true,
            Content::Published(leases) => leases.is_empty(),
            Content::Writable(_) => false,
        };
        if gone {
            return Err(parent.freed());
        }
        state.views += 1;
        Ok(Self { name: name.to_owned(), parent: Arc::clone(parent), layout })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Dimensions, in elements.
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// How its elements lie in the parent's memory.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Reads the bytes from the first element to the end of the last where they lie, gaps included.
    ///
    /// # Errors
    /// `Unsupported` on a device.
    pub fn read<T>(&self, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        self.parent.with_bytes(|bytes| read(&bytes[self.layout.byte_range()]))
    }

    /// A window on the window.
    ///
    /// # Errors
    /// As [`SharedTensor::create_view`].
    pub fn create_view(&self, name: &str, offset: &[usize], size: &[usize]) -> Result<SharedTensorView> {
        Self::make(&self.parent, name, window(&self.layout, offset, size)?)
    }
}

impl Drop for SharedTensorView {
    fn drop(&mut self) {
        let mut state = self.parent.write();
        state.views -= 1;
        // Only a failing seal could make this an error, and then the memory goes all the same.
        drop(self.parent.settle(&mut state));
    }
}

/// A lease whose model has more of them than acquires.
fn surplus(leases: &[(String, Lease)], counts: &BTreeMap<String, u32>) -> Option<usize> {
    leases.iter().position(|(model, _)| {
        let held = leases.iter().filter(|(other, _)| other == model).count();
        held > counts.get(model).map_or(0, |&count| count as usize)
    })
}

fn window(layout: &Layout, offset: &[usize], size: &[usize]) -> Result<Layout> {
    if offset.len() != size.len() {
        return Err(Error::invalid(format!("{} offsets for {} sizes", offset.len(), size.len())));
    }
    let slices: Vec<Slice> = offset.iter().zip(size).map(|(&start, &len)| Slice { start, len, step: 1 }).collect();
    layout.view(&slices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::testing::FakeDevice;

    #[test]
    fn counts_are_per_model() {
        let tensor = SharedTensor::new("x", &[2, 2], DType::F32, "bert").unwrap();
        tensor.acquire("t5").unwrap();
        tensor.acquire("t5").unwrap();
        assert_eq!(tensor.reference_count(), 3);
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
    fn freed_at_zero_returns_the_memory() {
        let device = FakeDevice::default();
        let tensor = SharedTensor::in_memory(Arc::new(device.clone()), "x", &[256], DType::F32, "a").unwrap();
        assert_eq!((device.live_bytes(), tensor.device()), (1024, Device::Cuda(0)));
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
        let tensor = SharedTensor::new("x", &[4, 4], DType::U8, "a").unwrap();
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
}
