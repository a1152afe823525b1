//! Tensors as messages describe them; conversions check everything.

use cotensor_core::{ContentHash, DType, Device, Error, Kind, Layout, Result, Space};
use cotensor_store::backend::VersionState;
use cotensor_store::{Members, Retention, TensorId, TensorSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// One version of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Id {
    /// Identity of the name within the store.
    pub slot: u64,
    /// Counts up from 1 with every publication.
    pub version: u64,
}

impl From<TensorId> for Id {
    fn from(id: TensorId) -> Self {
        Self { slot: id.slot, version: id.version }
    }
}

impl From<Id> for TensorId {
    fn from(id: Id) -> Self {
        Self { slot: id.slot, version: id.version }
    }
}

/// What is to be published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The name to publish under.
    pub name: String,
    /// Element type, such as `float32`.
    pub dtype: String,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    /// The device whose memory holds it, such as `cpu` or `cuda:0`; `cpu` when it is missing.
    #[serde(default, with = "super::device_name")]
    #[schemars(with = "String")]
    pub device: Device,
    /// What the tensor means, such as `text_embedding`.
    #[serde(default = "other")]
    pub kind: String,
    /// Fingerprint of the encoder that made it, 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// Who made it, for people.
    #[serde(default)]
    pub producer: String,
    /// What happens to it when nobody leases it.
    #[serde(default)]
    pub keep: Keep,
    /// How it was made, 64 hexadecimal digits: equal provenance is equal content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<String>,
    /// The members of a group, at most 4096; none for a plain tensor. A group has the dtype `uint8` and one dimension: the bytes
    /// from its start to the end of the last member. Each member is row-major and begins at the first multiple of 64 bytes
    /// after the previous one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<GroupMember>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupMember {
    /// The name within the group.
    pub name: String,
    /// Element type, such as `float32`.
    pub dtype: String,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
}

fn other() -> String {
    Kind::Other.name().to_owned()
}

/// How long a tensor stays when nobody leases it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Freed with its last lease.
    WhileLeased,
    /// Until it is removed or its memory is wanted.
    #[default]
    Cached,
    /// As `cached`; making it again takes this many microseconds.
    CachedMicros(u64),
}

impl From<Retention> for Keep {
    fn from(retention: Retention) -> Self {
        match retention {
            Retention::WhileLeased => Keep::WhileLeased,
            Retention::Cached { recompute } if recompute.is_zero() => Keep::Cached,
            Retention::Cached { recompute } => {
                Keep::CachedMicros(u64::try_from(recompute.as_micros()).unwrap_or(u64::MAX))
            }
        }
    }
}

impl From<&TensorSpec> for Spec {
    fn from(spec: &TensorSpec) -> Self {
        Self {
            name: spec.name.clone(),
            dtype: spec.dtype.name().to_owned(),
            shape: spec.shape.clone(),
            device: spec.device,
            kind: spec.kind.name().to_owned(),
            space: spec.space.map(|space| space.0.to_string()),
            producer: spec.producer.clone(),
            keep: spec.retention.into(),
            provenance: spec.provenance.map(|hash| hash.to_string()),
            members: spec.members.as_deref().map(described).unwrap_or_default(),
        }
    }
}

fn described(members: &Members) -> Vec<GroupMember> {
    let each = members.iter().map(|member| GroupMember {
        name: member.name().to_owned(),
        dtype: member.layout().dtype().name().to_owned(),
        shape: member.layout().shape().to_vec(),
    });
    each.collect()
}

impl Spec {
    /// The same tensor with the dtype and shape of `layout`.
    #[must_use]
    pub fn with_layout(mut self, layout: &Layout) -> Self {
        self.dtype = layout.dtype().name().to_owned();
        self.shape = layout.shape().to_vec();
        self
    }

    /// Converts it to the store's type.
    ///
    /// # Errors
    /// `Invalid` naming the field.
    pub fn to_domain(&self) -> Result<TensorSpec> {
        let micros = match self.keep {
            Keep::WhileLeased => None,
            Keep::Cached => Some(0),
            Keep::CachedMicros(micros) => Some(micros),
        };
        let spec = TensorSpec {
            device: self.device,
            name: self.name.clone(),
            dtype: self.dtype.parse::<DType>().map_err(|error| error.in_field("dtype"))?,
            shape: self.shape.clone(),
            kind: self.kind.parse::<Kind>().map_err(|error| error.in_field("kind"))?,
            space: self.space.as_deref().map(|hex| hash(hex, "space").map(Space)).transpose()?,
            producer: self.producer.clone(),
            retention: micros.map_or(Retention::WhileLeased, |micros| Retention::Cached {
                recompute: Duration::from_micros(micros),
            }),
            provenance: self.provenance.as_deref().map(|hex| hash(hex, "provenance")).transpose()?,
            members: self.to_members()?,
        };
        spec.check_names()?;
        spec.layout().map_err(|error| error.in_field("shape"))?;
        Ok(spec)
    }

    fn to_members(&self) -> Result<Option<Arc<Members>>> {
        if self.members.is_empty() {
            return Ok(None);
        }
        // Parsed first: `Members::new` stops at its limits, and the length of the message bounds this list.
        let parsed = self.members.iter().map(|member| {
            let dtype = member.dtype.parse::<DType>().map_err(|error| error.in_field(member.name.as_str()))?;
            Ok((member.name.as_str(), dtype, member.shape.as_slice()))
        });
        Members::new(parsed.collect::<Result<Vec<_>>>()?).map(Some)
    }
}

/// A hash as messages write it.
///
/// # Errors
/// `Invalid` naming `field` for anything but 64 hexadecimal digits.
pub(crate) fn hash(hex: &str, field: &str) -> Result<ContentHash> {
    ContentHash::from_hex(hex).ok_or_else(|| Error::invalid("64 hexadecimal digits expected").in_field(field))
}

/// What a version is to its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TensorState {
    /// The name means it.
    Published,
    /// A newer version was published. It is freed with its last lease.
    Superseded,
    /// The name was removed. It is freed with its last lease.
    Removed,
    /// The name means it. Its bytes are on disk until somebody asks for it.
    Spilled,
}

impl TensorState {
    /// The name used in messages and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Superseded => "superseded",
            Self::Removed => "removed",
            Self::Spilled => "spilled",
        }
    }
}

impl From<VersionState> for TensorState {
    fn from(state: VersionState) -> Self {
        match state {
            VersionState::Published => Self::Published,
            VersionState::Superseded => Self::Superseded,
            VersionState::Removed => Self::Removed,
            VersionState::Spilled => Self::Spilled,
        }
    }
}

/// The allocation that a tensor lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SegmentInfo {
    /// Its number in this session.
    pub id: u64,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Whether it is a slab: its producer can still write in it. Otherwise nobody can.
    #[serde(default)]
    pub slab: bool,
    /// The device whose memory holds it, such as `cpu` or `cuda:0`; `cpu` when it is missing.
    #[serde(default, with = "super::device_name")]
    #[schemars(with = "String")]
    pub device: Device,
}

/// Where the shared index tells whether a name still means this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IndexSlot {
    /// Number of the slot.
    pub slot: u32,
    /// What the slot holds as long as the version is the newest.
    pub generation: u64,
}

/// A leased tensor.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Descriptor {
    /// Which version of which tensor.
    pub id: Id,
    /// What it is.
    pub spec: Spec,
    /// Distance between neighbours along each dimension, in elements.
    pub strides: Vec<usize>,
    /// Where its first element lies in the segment, in bytes.
    pub offset_bytes: usize,
    /// Where its bytes are.
    pub segment: SegmentInfo,
    /// Whether the next of the message's file descriptors, in the order of reading, is the segment's; otherwise the
    /// session has got it already, or asks for it by `segment.fd`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fd: bool,
    /// Where the newest version can be seen without asking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexSlot>,
}

/// What became of a tensor that the session made: leased to it, in memory that it has.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Published {
    /// Which version of which tensor.
    pub id: Id,
    /// The segment's number in this session.
    pub segment: u64,
    /// Where the newest version can be seen without asking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexSlot>,
}

impl Descriptor {
    /// How the elements lie, checked to be inside the segment.
    ///
    /// # Errors
    /// `Corrupt` when they do not.
    pub fn layout(&self) -> Result<Layout> {
        let dtype = self.spec.dtype.parse::<DType>()?;
        let layout = Layout::strided(dtype, &self.spec.shape, &self.strides, self.offset_bytes)?;
        if layout.byte_range().end as u64 > self.segment.bytes {
            return Err(Error::corrupt(format!("{} reaches beyond its segment", self.spec.name)));
        }
        Ok(layout)
    }
}
