//! Tensors in messages. Conversions to the store's types check every field.

use cotensor_core::{ContentHash, DType, Device, Error, Kind, Layout, Result, Space};
use cotensor_store::backend::VersionState;
use cotensor_store::{Members, Retention, TensorId, TensorSpec};
use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// One version of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Id {
    /// The identity of the name within the store.
    pub name_id: u64,
    /// The number of this publication of the name, from 1.
    pub version: u64,
}

impl From<TensorId> for Id {
    fn from(id: TensorId) -> Self {
        Self { name_id: id.name_id, version: id.version }
    }
}

impl From<Id> for TensorId {
    fn from(id: Id) -> Self {
        Self { name_id: id.name_id, version: id.version }
    }
}

/// The newest version that a name must have for a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// None: the name is free.
    Absent,
    /// This one.
    Version(Id),
}

impl Expected {
    /// The field of a request.
    #[must_use]
    pub fn of(expected: cotensor_store::Expected) -> Option<Self> {
        match expected {
            cotensor_store::Expected::Any => None,
            cotensor_store::Expected::Absent => Some(Self::Absent),
            cotensor_store::Expected::Version(id) => Some(Self::Version(id.into())),
        }
    }

    /// What the field of a request means.
    #[must_use]
    pub fn to_domain(field: Option<Self>) -> cotensor_store::Expected {
        match field {
            None => cotensor_store::Expected::Any,
            Some(Self::Absent) => cotensor_store::Expected::Absent,
            Some(Self::Version(id)) => cotensor_store::Expected::Version(id.into()),
        }
    }
}

/// The description of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The name.
    pub name: String,
    /// The element type, such as `float32`.
    pub dtype: String,
    /// The dimensions, in elements.
    pub shape: Vec<usize>,
    /// The device of its memory, such as `cpu` or `cuda:0`; `cpu` if absent.
    #[serde(default, with = "super::device_name")]
    #[schemars(with = "String")]
    pub device: Device,
    /// The kind, such as `text_embedding`; `other` if absent.
    #[serde(default = "other")]
    pub kind: String,
    /// The fingerprint of the encoder that computed it, 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// The producer's name, for display.
    #[serde(default)]
    pub producer: String,
    /// How long it stays without leases.
    #[serde(default)]
    pub keep: Keep,
    /// The longest time that it stays without leases, in milliseconds, unless `keep` is `while_leased`; none without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
    /// The hash of its computation, 64 hexadecimal digits. Tensors of equal provenance have equal bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<String>,
    /// What the publisher wants readers to know: the text of a JSON object, at most 4096 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// The members of a group, at most 4096; none for a plain tensor. A group has the dtype `uint8` and one dimension:
    /// the bytes from its start to the end of the last member. Each member is row-major and begins at the first
    /// multiple of 64 bytes after the previous one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<GroupMember>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupMember {
    /// The name within the group.
    pub name: String,
    /// The element type, such as `float32`.
    pub dtype: String,
    /// The dimensions, in elements.
    pub shape: Vec<usize>,
}

fn other() -> String {
    Kind::Other.name().to_owned()
}

/// How long a tensor stays without leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// It is freed with its last lease.
    WhileLeased,
    /// Until it is removed or evicted.
    #[default]
    Cached,
    /// As `cached`; computing it again takes this many microseconds.
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
            // Not less than the time: zero would free it at once.
            keep_ms: spec.keep_for.map(|time| u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)),
            provenance: spec.provenance.map(|hash| hash.to_string()),
            metadata: spec.metadata.as_deref().map(str::to_owned),
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
    /// `Invalid` with the name of the field.
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
            keep_for: self.keep_ms.filter(|_| self.keep != Keep::WhileLeased).map(Duration::from_millis),
            provenance: self.provenance.as_deref().map(|hex| hash(hex, "provenance")).transpose()?,
            metadata: self.metadata.as_deref().map(Arc::from),
            members: self.to_members()?,
        };
        spec.check_names()?;
        spec.metadata.as_deref().map_or(Ok(()), check_metadata)?;
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

/// Checks metadata of a tensor, but for their length.
///
/// # Errors
/// `Invalid` for a text that is not a JSON object.
pub fn check_metadata(text: &str) -> Result<()> {
    let parsed = serde_json::from_str::<BTreeMap<String, IgnoredAny>>(text);
    parsed.map(drop).map_err(|error| Error::invalid(format!("not a JSON object: {error}")).in_field("metadata"))
}

/// Reads a hash.
///
/// # Errors
/// `Invalid`, with `field` as its field, unless `hex` has 64 hexadecimal digits.
pub(crate) fn hash(hex: &str, field: &str) -> Result<ContentHash> {
    ContentHash::from_hex(hex).ok_or_else(|| Error::invalid("64 hexadecimal digits expected").in_field(field))
}

/// The state of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TensorState {
    /// It is the newest version of its name.
    Published,
    /// The name has a newer version. It is freed with its last lease.
    Superseded,
    /// The name was removed. It is freed with its last lease.
    Removed,
    /// It is the newest version of its name, and its bytes are on disk. The next lookup loads it.
    Spilled,
}

impl TensorState {
    /// The name in messages and tables.
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

/// The segment of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SegmentInfo {
    /// Its number in this session.
    pub id: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Whether it is a slab, in which its producer can still write. No process can write in a segment that is not a
    /// slab.
    #[serde(default)]
    pub slab: bool,
    /// The device of its memory, such as `cpu` or `cuda:0`; `cpu` if absent.
    #[serde(default, with = "super::device_name")]
    #[schemars(with = "String")]
    pub device: Device,
}

/// The slot of the shared index that shows whether a version is the newest of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IndexSlot {
    /// The number of the slot.
    pub slot: u32,
    /// The value of the slot while the version is the newest.
    pub generation: u64,
}

/// A leased tensor.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Descriptor {
    /// The version.
    pub id: Id,
    /// The description.
    pub spec: Spec,
    /// The stride of each dimension, in elements.
    pub strides: Vec<usize>,
    /// The offset of the first element in the segment, in bytes.
    pub offset_bytes: usize,
    /// The segment.
    pub segment: SegmentInfo,
    /// Whether the message has the segment's file descriptor, in the order of the message's tensors. Otherwise the
    /// session received it before, or requests it by `segment.fd`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fd: bool,
    /// The slot of the shared index, if the version has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexSlot>,
}

/// A tensor that the session published, and now leases.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Published {
    /// The version.
    pub id: Id,
    /// The segment's number in this session.
    pub segment: u64,
    /// The slot of the shared index, if the version has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexSlot>,
}

impl Descriptor {
    /// The layout of the elements in the segment.
    ///
    /// # Errors
    /// `Corrupt` when the layout exceeds the segment; `Invalid` for an unknown dtype or an impossible shape.
    pub fn layout(&self) -> Result<Layout> {
        let dtype = self.spec.dtype.parse::<DType>()?;
        let layout = Layout::strided(dtype, &self.spec.shape, &self.strides, self.offset_bytes)?;
        if layout.byte_range().end as u64 > self.segment.bytes {
            return Err(Error::corrupt(format!("{} reaches beyond its segment", self.spec.name)));
        }
        Ok(layout)
    }
}
