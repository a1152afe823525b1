//! The store, as TypeScript calls it.

use crate::errors::Result;
use crate::handles::Handles;
use crate::host::PerformanceClock;
use crate::memory::{ScriptMemory, ScriptSegment, Segments};
use crate::spec::{Description, Request, bytes, recompute, slices, spec};
use cotensor_core::{Device, Error, Kind, Layout};
use cotensor_store::{
    CopyReason, Holder, Lease, LocalStore, MemoryControl, NameStore, Reservation, SharingConfig, StoreReports,
    TensorId, TensorStore, TensorView, check_name,
};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use wasm_bindgen::prelude::*;

/// A store whose memory JavaScript owns. Tensors and reservations are numbers.
#[wasm_bindgen]
pub struct StoreCore {
    store: Arc<LocalStore>,
    segments: Arc<Segments>,
    tensors: RefCell<Handles<Held>>,
    reservations: RefCell<Handles<(Reservation, u64)>>,
}

/// A lease that JavaScript holds.
enum Held {
    Tensor(Lease),
    View(TensorView),
}

impl Held {
    fn lease(&self) -> &Lease {
        match self {
            Held::Tensor(lease) => lease,
            Held::View(view) => view.parent(),
        }
    }

    fn layout(&self) -> &Layout {
        match self {
            Held::Tensor(lease) => lease.layout(),
            Held::View(view) => view.layout(),
        }
    }
}

impl StoreCore {
    fn keep(&self, held: Held) -> u32 {
        self.tensors.borrow_mut().add(held)
    }
}

#[wasm_bindgen]
impl StoreCore {
    /// A store of `devices`, each with the most bytes of its tensors; infinity means no limit.
    #[wasm_bindgen(constructor)]
    pub fn new(
        devices: Vec<String>,
        max_bytes: Vec<f64>,
        enable_shared_tensors: bool,
        allowed_types: Option<Vec<String>>,
        max_shared_tensor_size: f64,
    ) -> Result<Self> {
        let kind = |name: &String| name.parse::<Kind>().map_err(|error| error.in_field("allowedTypes"));
        let allowed_types = allowed_types.map(|names| names.iter().map(kind).collect::<cotensor_core::Result<_>>());
        let max_shared_tensor_size = bytes(max_shared_tensor_size, "maxSharedTensorSize")?;
        let config = SharingConfig {
            enable_shared_tensors,
            allowed_types: allowed_types.transpose()?,
            max_shared_tensor_size_bytes: Some(max_shared_tensor_size).filter(|&max| max != u64::MAX),
        };
        let segments = Arc::<Segments>::default();
        let mut builder = LocalStore::builder().small().clock(Arc::new(PerformanceClock)).config(config);
        for (device, max) in devices.iter().zip(max_bytes) {
            let device: Device = device.parse().map_err(|error: Error| error.in_field("device"))?;
            let memory = ScriptMemory { device, segments: Arc::clone(&segments) };
            builder = builder.memory(Arc::new(memory)).max_device_bytes(device, bytes(max, "budgets")?);
        }
        Ok(Self { store: builder.build(), segments, tensors: RefCell::default(), reservations: RefCell::default() })
    }

    /// Takes bytes from the budget of a device, and evicts other tensors if it must.
    pub fn reserve(&self, request: &Request, holder: &str) -> Result<u32> {
        let (spec, holder) = (spec(request)?, named(holder)?);
        let reservation = if request.private() {
            self.store.reserve_private(spec, &holder)?
        } else {
            self.store.reserve(spec, &holder)?
        };
        Ok(self.reservations.borrow_mut().add((reservation, self.segments.latest())))
    }

    /// Sets the milliseconds that computing a cached tensor again takes.
    #[wasm_bindgen(js_name = setRecompute)]
    pub fn set_recompute(&self, reservation: u32, milliseconds: f64) -> Result<()> {
        let time = recompute(milliseconds)?;
        self.reservations.borrow_mut().get_mut(reservation)?.0.set_recompute(time);
        Ok(())
    }

    /// The number of the segment of a reservation.
    #[wasm_bindgen(js_name = reservedSegment)]
    pub fn reserved_segment(&self, reservation: u32) -> Result<f64> {
        Ok(self.reservations.borrow().get(reservation)?.1 as f64)
    }

    /// The bytes of the elements of a reservation.
    #[wasm_bindgen(js_name = reservedBytes)]
    pub fn reserved_bytes(&self, reservation: u32) -> Result<f64> {
        Ok(self.reservations.borrow().get(reservation)?.0.layout().size_bytes() as f64)
    }

    /// Publishes a reservation, and leases the tensor to its holder.
    pub fn publish(&self, reservation: u32) -> Result<u32> {
        let (reservation, _) = self.reservations.borrow_mut().remove(reservation)?;
        Ok(self.keep(Held::Tensor(reservation.publish()?)))
    }

    /// Gives a reservation's bytes back.
    pub fn abandon(&self, reservation: u32) -> Result<()> {
        let removed = self.reservations.borrow_mut().remove(reservation)?;
        drop(removed);
        Ok(())
    }

    /// Leases the newest version of `name`.
    pub fn get(&self, name: &str, holder: &str) -> Result<u32> {
        Ok(self.keep(Held::Tensor(self.store.get(name, &named(holder)?)?)))
    }

    /// Leases one version of `name`.
    #[wasm_bindgen(js_name = getVersion)]
    pub fn get_version(&self, name: &str, version: f64, holder: &str) -> Result<u32> {
        let version = bytes(version, "version")?;
        let newest = self.store.find_name(name)?;
        let newest = newest.ok_or_else(|| Error::not_found(format!("no tensor is named {name:?}")))?;
        let freed = |error: Error| match error.kind() {
            cotensor_core::ErrorKind::NotFound => Error::not_found(format!(
                "version {version} of tensor {name:?} was freed or never existed; the newest is {}",
                newest.version
            )),
            _ => error,
        };
        let id = TensorId { version, ..newest };
        Ok(self.keep(Held::Tensor(self.store.lease(id, &named(holder)?).map_err(freed)?)))
    }

    /// Leases a tensor that JavaScript holds to another holder.
    #[wasm_bindgen(js_name = leaseFor)]
    pub fn lease_for(&self, tensor: u32, holder: &str) -> Result<u32> {
        let lease = self.tensors.borrow().get(tensor)?.lease().lease_for(&named(holder)?)?;
        Ok(self.keep(Held::Tensor(lease)))
    }

    /// Leases the same elements, of a tensor or of a view, to another holder.
    #[wasm_bindgen(js_name = sameFor)]
    pub fn same_for(&self, tensor: u32, holder: &str) -> Result<u32> {
        let holder = named(holder)?;
        let same = match self.tensors.borrow().get(tensor)? {
            Held::Tensor(lease) => Held::Tensor(lease.lease_for(&holder)?),
            Held::View(view) => Held::View(view.lease_for(&holder)?),
        };
        Ok(self.keep(same))
    }

    /// A view of a tensor or view: one offset, size and step for each dimension, in elements.
    pub fn view(&self, tensor: u32, offset: &[f64], size: &[f64], step: &[f64]) -> Result<u32> {
        let slices = slices(offset, size, step)?;
        let tensors = self.tensors.borrow();
        let held = tensors.get(tensor)?;
        let view = match held {
            Held::Tensor(lease) => lease.view(&slices),
            Held::View(view) => view.view(&slices),
        };
        let view = view.map_err(|error| error.in_field(held.lease().name()))?;
        drop(tensors);
        Ok(self.keep(Held::View(view)))
    }

    /// Releases a lease. Whether segments were freed.
    pub fn release(&self, tensor: u32) -> Result<bool> {
        let held = self.tensors.borrow_mut().remove(tensor)?;
        drop(held);
        Ok(self.segments.has_freed())
    }

    /// The number of the segment of a tensor.
    pub fn segment(&self, tensor: u32) -> Result<f64> {
        let tensors = self.tensors.borrow();
        let segment = tensors.get(tensor)?.lease().segment();
        let number = segment.as_any().and_then(|segment| segment.downcast_ref::<ScriptSegment>());
        Ok(number.map_or(0.0, |segment| segment.number as f64))
    }

    /// The description of a tensor or view, as JSON.
    pub fn describe(&self, tensor: u32) -> Result<String> {
        let tensors = self.tensors.borrow();
        let held = tensors.get(tensor)?;
        json(&Description::new(held.lease(), held.layout()))
    }

    /// The number of leases of each holder, as JSON.
    pub fn holders(&self, tensor: u32) -> Result<String> {
        let tensors = self.tensors.borrow();
        let holders = tensors.get(tensor)?.lease().holders();
        let holders: BTreeMap<&str, u32> = holders.iter().map(|(name, &count)| (&**name, count)).collect();
        json(&holders)
    }

    /// The newest version of `name`; nothing when there is no such name.
    #[wasm_bindgen(js_name = newestVersion)]
    pub fn newest_version(&self, name: &str) -> Result<Option<f64>> {
        Ok(self.store.find_name(name)?.map(|id| id.version as f64))
    }

    /// The names that start with `prefix`, in order.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>> {
        Ok(self.store.names(prefix)?.into_iter().map(|named| named.name).collect())
    }

    /// Removes a name. Its leases stay.
    pub fn remove(&self, name: &str) -> Result<()> {
        Ok(self.store.remove(name)?)
    }

    /// Sets the most bytes of a device, and evicts unleased tensors until they fit.
    #[wasm_bindgen(js_name = limitMemory)]
    pub fn limit_memory(&self, device: &str, max_bytes: f64) -> Result<()> {
        let device: Device = device.parse().map_err(|error: Error| error.in_field("device"))?;
        Ok(self.store.limit_memory(device, bytes(max_bytes, "maxBytes")?)?)
    }

    /// Frees all unleased tensors; the report as JSON.
    pub fn optimize(&self) -> Result<String> {
        json(&self.store.optimize())
    }

    /// The counters, as JSON.
    pub fn stats(&self) -> Result<String> {
        json(&self.store.stats())
    }

    /// Memory that could be saved, as JSON.
    pub fn recommendations(&self) -> Result<String> {
        json(&self.store.recommendations())
    }

    /// Every tensor and the latest copies, as JSON.
    pub fn diagnostics(&self) -> Result<String> {
        json(&self.store.diagnostics())
    }

    /// Counts a copy of a tensor's bytes.
    #[wasm_bindgen(js_name = recordCopy)]
    pub fn record_copy(&self, tensor: &str, reason: &str, copied_bytes: f64) -> Result<()> {
        let known = CopyReason::ALL.iter().find(|known| known.name() == reason);
        let known = known.ok_or_else(|| Error::invalid(format!("unknown reason of a copy {reason:?}")))?;
        let copied_bytes = usize::try_from(bytes(copied_bytes, "bytes")?).unwrap_or(usize::MAX);
        self.store.record_copy(tensor, *known, copied_bytes);
        Ok(())
    }

    /// The numbers of the segments that were freed since the last call.
    #[wasm_bindgen(js_name = takeFreed)]
    pub fn take_freed(&self) -> Vec<f64> {
        self.segments.take_freed()
    }
}

/// The holder of that name.
fn named(holder: &str) -> Result<Holder> {
    check_name(holder, "holder")?;
    Ok(Holder::new(holder))
}

fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string(value);
    Ok(text.map_err(|error| Error::invalid(error.to_string()))?)
}
