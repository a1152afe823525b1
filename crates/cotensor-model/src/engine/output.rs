use crate::tensor::Array;
use cotensor_core::{DType, Device, Error, Result};
use cotensor_store::Reservation;

/// An output of a graph.
#[allow(clippy::large_enum_variant, reason = "a run has few outputs")]
pub enum Output {
    /// In memory that the engine allocated.
    Array(Array),
    /// In memory of the store, from an [`OutputAllocator`]. The stage publishes it.
    Reserved(Reservation),
}

impl Output {
    /// The array.
    ///
    /// # Errors
    /// `Invalid` for an output in memory of a store.
    pub fn into_array(self) -> Result<Array> {
        match self {
            Output::Array(array) => Ok(array),
            Output::Reserved(reservation) => {
                Err(Error::invalid(format!("{} is in a store; publish it to read it", reservation.name())))
            }
        }
    }
}

impl From<Array> for Output {
    fn from(array: Array) -> Self {
        Output::Array(array)
    }
}

/// The description of an output for which an engine needs memory.
#[derive(Clone, Copy, Debug)]
pub struct OutputSpec<'a> {
    /// The position in the list of requested outputs.
    pub index: usize,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, in elements.
    pub shape: &'a [usize],
    /// The device whose memory the engine writes.
    pub device: Device,
}

/// Allocates memory for the outputs of a run.
pub trait OutputAllocator {
    /// Memory of the store for an output: the engine fills it and returns it from
    /// [`LoadedGraph::run`](super::LoadedGraph::run). `None` when the run has no store: the engine then allocates
    /// the output itself.
    ///
    /// # Errors
    /// `OverBudget` when the store has no room, `Unsupported` when the store has no memory on the device.
    fn allocate(&self, output: &OutputSpec<'_>) -> Result<Option<Reservation>>;

    /// Counts the conversion of an input or output to another element type. `bytes` is the size of the result.
    fn record_conversion(&self, name: &str, bytes: usize);

    /// Counts bytes that the engine copied in a [`RunState`](super::RunState).
    fn record_state_copy(&self, bytes: u64);
}

/// An allocator that leaves every output in the memory of the engine.
#[derive(Default)]
pub struct OwnMemory<'a> {
    counter: Option<&'a dyn OutputAllocator>,
}

impl<'a> OwnMemory<'a> {
    /// An allocator that passes the counts of conversions on to `counter`.
    pub fn counted_by(counter: &'a dyn OutputAllocator) -> Self {
        Self { counter: Some(counter) }
    }
}

impl OutputAllocator for OwnMemory<'_> {
    fn allocate(&self, _output: &OutputSpec<'_>) -> Result<Option<Reservation>> {
        Ok(None)
    }

    fn record_conversion(&self, name: &str, bytes: usize) {
        if let Some(counter) = self.counter {
            counter.record_conversion(name, bytes);
        }
    }

    fn record_state_copy(&self, bytes: u64) {
        if let Some(counter) = self.counter {
            counter.record_state_copy(bytes);
        }
    }
}
