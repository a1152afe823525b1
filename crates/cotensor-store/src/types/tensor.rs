//! Tensors: their identity and their description.

use super::limits::{check_metadata, check_name};
use super::members::Members;
use cotensor_core::{ContentHash, DType, Device, Error, Kind, Layout, Result, Segment, Space};
use std::sync::Arc;
use std::time::Duration;

/// One version of one tensor in one store. The id of a private tensor counts in its process only: other clients of a daemon use it for tensors
/// of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId {
    /// The number of the name within the store.
    pub name_id: u64,
    /// The number of the publication of the name, from 1.
    pub version: u64,
}

/// How long a tensor stays without leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Freed with its last lease.
    WhileLeased,
    /// Until its memory is needed. Tensors with the least recompute time for each byte are evicted first.
    Cached {
        /// The time that computing it again takes; zero if unknown.
        recompute: Duration,
    },
}

/// The description of a tensor.
#[derive(Clone, Debug)]
pub struct TensorSpec {
    /// The name that publishing gives it.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    /// The device whose memory holds it.
    pub device: Device,
    /// The meaning of the tensor.
    pub kind: Kind,
    /// The encoder that made it, if one did.
    pub space: Option<Space>,
    /// The producer, for messages and reports.
    pub producer: String,
    /// How long it stays without leases.
    pub retention: Retention,
    /// The longest time that a [`Cached`](Retention::Cached) tensor stays after its last lease; `None` without a limit. Each
    /// new lease ends the time.
    pub keep_for: Option<Duration>,
    /// The identity of a computed value: the hash of stage key and output. Equal provenance means equal content, dtype
    /// and shape, so their hash is not computed.
    pub provenance: Option<ContentHash>,
    /// What the publisher wants readers to know: a JSON object, at most
    /// [`METADATA_BYTES_MAX`](crate::METADATA_BYTES_MAX) bytes.
    pub metadata: Option<Arc<str>>,
    /// The members of a group, which [`group`](TensorSpec::group) makes; `None` for a plain tensor.
    pub members: Option<Arc<Members>>,
}

impl TensorSpec {
    /// A tensor of kind [`Kind::Other`] in host memory, without a producer, that is freed with its last lease. Shape in
    /// elements.
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
            keep_for: None,
            provenance: None,
            metadata: None,
            members: None,
        }
    }

    /// A group: one tensor of bytes that consists of `members`. They are published, leased, versioned and freed
    /// together. The other fields are as in [`new`](TensorSpec::new).
    pub fn group(name: impl Into<String>, members: Arc<Members>) -> Self {
        let bytes = members.size_bytes();
        Self { members: Some(members), ..Self::new(name, DType::U8, &[bytes]) }
    }

    /// Refuses a segment on another device than the tensor's.
    ///
    /// # Errors
    /// `Invalid`.
    pub(crate) fn check_device(&self, segment: &dyn Segment) -> Result<()> {
        let (said, found) = (self.device, segment.device());
        if said == found {
            return Ok(());
        }
        Err(Error::invalid(format!("{} names the device {said}, but its segment is on {found}", self.name))
            .in_field("device"))
    }

    /// How the elements lie in a segment of their own: row-major.
    ///
    /// # Errors
    /// `Invalid` for an impossible shape, and for a group whose dtype and shape are not those of the bytes of its
    /// members.
    pub fn layout(&self) -> Result<Layout> {
        if let Some(members) = &self.members {
            let bytes = members.size_bytes();
            if self.dtype != DType::U8 || self.shape != [bytes] {
                let message = format!("a group of {bytes} bytes has the dtype uint8 and the shape [{bytes}]");
                return Err(Error::invalid(message).in_field("members"));
            }
        }
        Layout::contiguous(self.dtype, &self.shape)
    }

    /// The same tensor in the memory of `device`.
    #[must_use]
    pub fn on(self, device: Device) -> Self {
        Self { device, ..self }
    }

    /// Bytes of its name, its producer and its metadata.
    pub(crate) fn text_bytes(&self) -> usize {
        self.name.len() + self.producer.len() + self.metadata.as_ref().map_or(0, |metadata| metadata.len())
    }

    /// Checks its name, its producer and the length of its metadata.
    ///
    /// # Errors
    /// `Invalid` with the field, for an empty name, for more than [`NAME_BYTES_MAX`](crate::NAME_BYTES_MAX) bytes, and for
    /// metadata of more than [`METADATA_BYTES_MAX`](crate::METADATA_BYTES_MAX) bytes.
    pub fn check_names(&self) -> Result<()> {
        if self.name.is_empty() {
            return Err(Error::invalid("a name is required").in_field("name"));
        }
        check_metadata(self.metadata.as_deref())?;
        check_name(&self.name, "name").and_then(|()| check_name(&self.producer, "producer"))
    }
}
