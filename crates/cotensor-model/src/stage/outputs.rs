//! The outputs of a computation, in memory of the store.

use crate::engine::{Output, OutputAllocator, OutputSpec};
use crate::graph::key::output_identity;
use crate::tensor::{Array, Value};
use cotensor_core::{DType, Device, Error, ErrorKind, Kind, Result, Space};
use cotensor_store::{CopyReason, Holder, Key, Lease, Reservation, Retention, Store, TensorSpec, Ticket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The store, the names and the holder for the results of a computation.
pub(crate) struct Computation<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) key: Key,
    /// The space of the results; `None` for a preprocessed input.
    pub(crate) space: Option<Space>,
    pub(crate) kind: Kind,
    /// The beginning of the name of each result.
    pub(crate) labels: &'a [String],
    pub(crate) holder: &'a Holder,
}

/// Allocates the outputs of one run of a computation, and publishes them.
///
/// The sharing configuration may refuse an output. One refused output makes the whole result private: it is still in
/// the store, so that the budget counts it, but no other caller gets it.
pub(super) struct StoreOutputs<'a> {
    computation: &'a Computation<'a>,
    started: Instant,
    /// Whether the result stays private. Set when the store refuses an output.
    private: AtomicBool,
}

impl<'a> StoreOutputs<'a> {
    pub(super) fn new(computation: &'a Computation<'a>, private: bool) -> Self {
        Self { computation, started: Instant::now(), private: AtomicBool::new(private) }
    }

    /// Publishes the outputs of the run: with `ticket`, as the results of its claim.
    pub(super) fn publish(self, outputs: Vec<Output>, ticket: Option<Ticket>) -> Result<Vec<Value>> {
        let recompute = self.started.elapsed();
        // Every output is reserved before the first is published: each refusal is counted, and one makes all outputs
        // private.
        let mut reserved = Vec::with_capacity(outputs.len());
        for (index, output) in outputs.into_iter().enumerate() {
            reserved.push(match output {
                Output::Reserved(mut reservation) => {
                    reservation.set_recompute(recompute);
                    Reserved::InPlace(reservation)
                }
                Output::Array(array) => {
                    let spec = self.spec(index, array.dtype(), array.shape(), Device::Cpu, recompute);
                    Reserved::Copy(self.reserve_shared(&spec)?, spec, array)
                }
            });
        }
        let store = self.computation.store;
        match ticket {
            Some(ticket) if !reserved.is_empty() && !self.private.load(Ordering::Relaxed) => {
                let filled = reserved.into_iter().map(|reserved| self.fill(reserved)).collect::<Result<_>>()?;
                Ok(values(ticket.publish(filled)?))
            }
            ticket => {
                // The next caller in line computes at once, and shared reservations return their memory first.
                drop(ticket);
                for reserved in &mut reserved {
                    if let Reserved::Copy(shared, ..) = reserved {
                        *shared = None;
                    }
                }
                let publish = |reserved| {
                    let in_place = matches!(reserved, Reserved::InPlace(_));
                    let lease = self.fill(reserved)?.publish()?;
                    if in_place && !lease.is_private() {
                        // An earlier output than the refused one: without its name, its last lease frees it.
                        let _ = store.remove(lease.name());
                    }
                    Ok(lease)
                };
                Ok(values(reserved.into_iter().map(publish).collect::<Result<_>>()?))
            }
        }
    }

    /// The reservation of an output with its elements.
    fn fill(&self, reserved: Reserved) -> Result<Reservation> {
        let (shared, spec, array) = match reserved {
            Reserved::InPlace(reservation) => return Ok(reservation),
            Reserved::Copy(shared, spec, array) => (shared, spec, array),
        };
        let Computation { store, holder, space, .. } = self.computation;
        let mut reservation = shared.map_or_else(|| store.reserve_private(spec, holder), Ok)?;
        // A result without a space is a preprocessed input.
        let reason = if space.is_some() { CopyReason::EngineOutput } else { CopyReason::Preprocessed };
        reservation.write(array.bytes(), reason)?;
        Ok(reservation)
    }

    /// Reserves an output that other callers may get; `None` when the sharing configuration refuses it.
    fn reserve_shared(&self, spec: &TensorSpec) -> Result<Option<Reservation>> {
        match self.computation.store.reserve(spec.clone(), self.computation.holder) {
            Ok(reservation) => Ok(Some(reservation)),
            Err(error) if error.kind() == ErrorKind::Refused => {
                self.private.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn spec(&self, index: usize, dtype: DType, shape: &[usize], device: Device, recompute: Duration) -> TensorSpec {
        let Computation { key, space, kind, labels, holder, .. } = self.computation;
        TensorSpec {
            name: format!("{}/{}", labels.get(index).map_or("output", String::as_str), key.0.short()),
            dtype,
            shape: shape.to_vec(),
            device,
            kind: *kind,
            space: *space,
            producer: holder.name().to_owned(),
            retention: Retention::Cached { recompute },
            provenance: Some(output_identity(key.0, index)),
            keep_for: None,
            metadata: None,
            members: None,
        }
    }
}

impl OutputAllocator for StoreOutputs<'_> {
    fn allocate(&self, output: &OutputSpec<'_>) -> Result<Option<Reservation>> {
        let spec = self.spec(output.index, output.dtype, output.shape, output.device, self.started.elapsed());
        let shared = self.reserve_shared(&spec)?;
        let reservation = match shared {
            Some(reservation) if !self.private.load(Ordering::Relaxed) => reservation,
            // The shared reservation returns its memory first.
            shared => {
                drop(shared);
                self.computation.store.reserve_private(spec, self.computation.holder)?
            }
        };
        if reservation.device() != output.device {
            let message = format!("the store keeps tensors on {}, not on {}", reservation.device(), output.device);
            return Err(Error::unsupported(message));
        }
        Ok(Some(reservation))
    }

    fn record_conversion(&self, name: &str, bytes: usize) {
        self.computation.store.record_copy(name, CopyReason::EngineConversion, bytes);
    }

    fn record_state_copy(&self, bytes: u64) {
        let name = self.computation.labels.first().map_or("state", String::as_str);
        self.computation.store.record_copy(name, CopyReason::EngineState, bytes as usize);
    }
}

/// An output on its way into the store.
#[allow(clippy::large_enum_variant, reason = "a run has few outputs")]
enum Reserved {
    /// The engine wrote it into memory of the store.
    InPlace(Reservation),
    /// The engine allocated it. Without a reservation, it stays private.
    Copy(Option<Reservation>, TensorSpec, Array),
}

/// The result of a claimed computation, and the time that it took.
pub(crate) struct Made {
    pub(crate) ticket: Ticket,
    pub(crate) array: Array,
    pub(crate) recompute: Duration,
}

/// Publishes the results of several computations, which have one array each. `computation` has everything but the key. A result
/// that the sharing configuration refuses is not published: its ticket passes to another caller.
pub(super) fn publish_each(computation: &Computation<'_>, made: Vec<Made>) -> Result<()> {
    let mut filled = Vec::with_capacity(made.len());
    for Made { ticket, array, recompute } in made {
        let of_key = Computation { key: ticket.key(), ..*computation };
        let outputs = StoreOutputs::new(&of_key, false);
        let spec = outputs.spec(0, array.dtype(), array.shape(), Device::Cpu, recompute);
        if let Some(shared) = outputs.reserve_shared(&spec)? {
            filled.push((ticket, outputs.fill(Reserved::Copy(Some(shared), spec, array))?));
        }
    }
    Ticket::publish_each(filled).map(drop)
}

pub(super) fn values(leases: Vec<Lease>) -> Vec<Value> {
    leases.into_iter().map(Value::from).collect()
}
