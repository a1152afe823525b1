//! Tensors: their identity and their description.

use cotensor_core::{ContentHash, DType, Device, Error, Kind, Result, Space};
use std::time::Duration;

/// One version of one tensor in one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId {
    /// Identity of the name within the store.
    pub slot: u64,
    /// Counts up from 1 with every publication of the name.
    pub version: u64,
}

/// How long a tensor stays when nobody leases it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Freed with its last lease.
    WhileLeased,
    /// Kept until memory is wanted; what is cheapest to make again per byte goes first.
    Cached {
        /// What it would take to make it again.
        recompute: Duration,
    },
}

/// What is to be reserved. Shape in elements.
#[derive(Clone, Debug)]
pub struct TensorSpec {
    /// The name to publish under.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    /// The device whose memory holds it.
    pub device: Device,
    /// What the tensor means.
    pub kind: Kind,
    /// Which encoder made it, when one did.
    pub space: Option<Space>,
    /// Who made it, for people.
    pub producer: String,
    /// What happens to it when nobody leases it.
    pub retention: Retention,
    /// Identity of the value by how it was made (stage key and output), when it was; equal provenance is equal
    /// content, dtype and shape, so it stands in for their hash, which then never has to be computed.
    pub provenance: Option<ContentHash>,
}

/// The longest name of a tensor, a holder or a producer, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;

impl TensorSpec {
    /// A tensor of kind [`Kind::Other`] in host memory, without a producer, that is freed with its last lease. Shape in elements.
    pub fn new(name: impl Into<String>, dtype: DType, shape: &[usize]) -> Self {
        Self {
            name: name.into(),
            dtype,
            shape: shape.to_vec(),
            device: Device::Cpu,
            kind: Kind::Other,
            space: None,
            producer: String::new(),
            retention: Retention::WhileLeased,
            provenance: None,
        }
    }

    /// The same tensor in the memory of `device`.
    #[must_use]
    pub fn on(self, device: Device) -> Self {
        Self { device, ..self }
    }

    /// Bytes of its name and its producer.
    pub(crate) fn text_bytes(&self) -> usize {
        self.name.len() + self.producer.len()
    }

    /// Whether a tensor can be called that, by a producer called that.
    ///
    /// # Errors
    /// `Invalid` naming the field, for what is empty or longer than [`NAME_BYTES_MAX`].
    pub fn check_names(&self) -> Result<()> {
        if self.name.is_empty() {
            return Err(Error::invalid("a name is required").in_field("name"));
        }
        check_name(&self.name, "name").and_then(|()| check_name(&self.producer, "producer"))
    }
}

/// Whether a name is no longer than [`NAME_BYTES_MAX`].
///
/// # Errors
/// `Invalid` naming `field` when it is.
pub fn check_name(name: &str, field: &str) -> Result<()> {
    match name.len() > NAME_BYTES_MAX {
        true => Err(Error::invalid(format!("longer than {NAME_BYTES_MAX} bytes")).in_field(field)),
        false => Ok(()),
    }
}
