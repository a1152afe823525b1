//! The packed form of a journal entry, by postcard. A machine may have hundreds of thousands of tensors, and two processes hold an
//! entry for each: 4.4 KB as parsed JSON, about 50 bytes packed.
//!
//! Only the supervisor and its servers read the format, of one version ([`BLOCK_VERSION`](super::BLOCK_VERSION)).

use super::event::{Entry, SpillFile};
use cotensor_client::protocol::{GroupMember, Id, Keep, Spec};
use cotensor_core::{ContentHash, Device, Error, Kind, RANK_MAX, Result};
use cotensor_store::MEMBERS_MAX;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Kinds by their numbers, which stay in the format. The order of `Kind::ALL` may change.
const KINDS: [Kind; 7] = [
    Kind::Other,
    Kind::TextEmbedding,
    Kind::VisionEmbedding,
    Kind::AudioEmbedding,
    Kind::VisionTextJoint,
    Kind::AudioTextJoint,
    Kind::Weight,
];

/// The beginning of an entry, which can be read alone.
#[derive(Serialize, Deserialize)]
struct Head {
    current: bool,
    removed: bool,
    is_spilled: bool,
    segment: u64,
}

/// The rest of an entry. Its identity is its key in the journal.
#[derive(Serialize, Deserialize)]
struct Body<'a> {
    offset: usize,
    versions: u64,
    name: &'a str,
    producer: &'a str,
    dtype: &'a str,
    kind: u8,
    /// Empty for host memory.
    device: Cow<'a, str>,
    shape: Cow<'a, [usize]>,
    members: Cow<'a, [GroupMember]>,
    keep: Keep,
    keep_ms: Option<u64>,
    left_ns: Option<u64>,
    space: Option<[u8; 32]>,
    provenance: Option<[u8; 32]>,
    key: Option<[u8; 32]>,
    created_ns: Option<u64>,
    spilled: Option<Cow<'a, SpillFile>>,
    metadata: Option<&'a str>,
}

/// An entry without its identity.
pub(super) struct PackedEntry(Box<[u8]>);

/// Parses the hexadecimal form of a hash.
///
/// # Errors
/// `Corrupt` for anything else.
pub(super) fn parse_hash(hex: &str) -> Result<ContentHash> {
    ContentHash::from_hex(hex).ok_or_else(|| Error::corrupt("64 hexadecimal digits expected"))
}

fn corrupt() -> Error {
    Error::corrupt("a packed journal entry cannot be read")
}

/// The value at the beginning of `bytes`, and the bytes behind it.
///
/// # Errors
/// `Corrupt` for other bytes.
pub(super) fn take<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8])> {
    postcard::take_from_bytes(bytes).map_err(|_| corrupt())
}

/// Adds a value to the end of `bytes`.
///
/// # Errors
/// Never for the values of a journal.
pub(super) fn put(value: &impl Serialize, bytes: Vec<u8>) -> Result<Vec<u8>> {
    postcard::to_extend(value, bytes).map_err(|error| Error::corrupt(error.to_string()))
}

impl PackedEntry {
    /// # Errors
    /// `Corrupt` for a malformed hash, an unknown kind, and too many dimensions or members.
    pub(super) fn pack(entry: &Entry) -> Result<Self> {
        let Entry { id: _, spec, segment, offset, key, versions, current, removed, spilled, created_ns, left_ns } =
            entry;
        check(&spec.shape, &spec.members)?;
        let hash = |hex: &Option<String>| hex.as_deref().map(|hex| Ok(*parse_hash(hex)?.as_bytes())).transpose();
        let head = Head { current: *current, removed: *removed, is_spilled: spilled.is_some(), segment: *segment };
        let kind = KINDS.iter().position(|kind| kind.name() == spec.kind).ok_or_else(corrupt)?;
        let body = Body {
            offset: *offset,
            versions: *versions,
            name: &spec.name,
            producer: &spec.producer,
            dtype: &spec.dtype,
            kind: u8::try_from(kind).map_err(|_| corrupt())?,
            device: if spec.device.is_host() { Cow::Borrowed("") } else { Cow::Owned(spec.device.to_string()) },
            shape: Cow::Borrowed(&spec.shape),
            members: Cow::Borrowed(&spec.members),
            keep: spec.keep,
            keep_ms: spec.keep_ms,
            left_ns: *left_ns,
            space: hash(&spec.space)?,
            provenance: hash(&spec.provenance)?,
            key: hash(key)?,
            created_ns: *created_ns,
            spilled: spilled.as_ref().map(Cow::Borrowed),
            metadata: spec.metadata.as_deref(),
        };
        Ok(Self(put(&body, put(&head, Vec::new())?)?.into_boxed_slice()))
    }

    /// Bytes of another process; [`unpack`](Self::unpack) checks them.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// # Errors
    /// `Corrupt` for bytes that are not an entry.
    pub(super) fn unpack(&self, id: Id) -> Result<Entry> {
        let (Head { current, removed, is_spilled, segment }, rest) = take(&self.0)?;
        let (body, rest) = take::<Body<'_>>(rest)?;
        check(&body.shape, &body.members)?;
        if !rest.is_empty() || is_spilled != body.spilled.is_some() {
            return Err(corrupt());
        }
        let hash = |bytes: Option<[u8; 32]>| bytes.map(|bytes| ContentHash::from_bytes(bytes).to_string());
        let device =
            if body.device.is_empty() { Device::default() } else { body.device.parse().map_err(|_| corrupt())? };
        let spec = Spec {
            name: body.name.to_owned(),
            dtype: body.dtype.to_owned(),
            shape: body.shape.into_owned(),
            device,
            kind: KINDS.get(usize::from(body.kind)).ok_or_else(corrupt)?.name().to_owned(),
            space: hash(body.space),
            producer: body.producer.to_owned(),
            keep: body.keep,
            keep_ms: body.keep_ms,
            provenance: hash(body.provenance),
            metadata: body.metadata.map(str::to_owned),
            members: body.members.into_owned(),
        };
        Ok(Entry {
            id,
            spec,
            segment,
            offset: body.offset,
            key: hash(body.key),
            versions: body.versions,
            current,
            removed,
            spilled: body.spilled.map(Cow::into_owned),
            created_ns: body.created_ns,
            left_ns: body.left_ns,
        })
    }

    /// Whether it is the current version of its name.
    pub(super) fn is_current(&self) -> bool {
        take::<Head>(&self.0).is_ok_and(|(head, _)| head.current)
    }

    /// The number of its segment; none for a spilled tensor.
    pub(super) fn segment(&self) -> Option<u64> {
        take::<Head>(&self.0).ok().filter(|(head, _)| !head.is_spilled).map(|(head, _)| head.segment)
    }
}

fn check(shape: &[usize], members: &[GroupMember]) -> Result<()> {
    let fits = |shape: &[usize]| shape.len() <= RANK_MAX;
    let all_fit = fits(shape) && members.len() <= MEMBERS_MAX && members.iter().all(|member| fits(&member.shape));
    if all_fit { Ok(()) } else { Err(corrupt()) }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use cotensor_core::{ContentHash, Device};

    /// An entry with all fields, or with the required ones.
    pub(in super::super) fn entry(full: bool) -> Entry {
        let hash = |text: &str| full.then(|| ContentHash::of(text.as_bytes()).to_string());
        let spec = Spec {
            name: "näme".to_owned(),
            dtype: "float32".to_owned(),
            shape: if full { vec![3, usize::MAX, 0] } else { Vec::new() },
            device: if full { Device::Cuda(3) } else { Device::Cpu },
            kind: "text_embedding".to_owned(),
            space: hash("space"),
            producer: "a producer".to_owned(),
            keep: if full { Keep::CachedMicros(u64::MAX) } else { Keep::WhileLeased },
            keep_ms: full.then_some(u64::MAX),
            provenance: hash("provenance"),
            metadata: full.then(|| r#"{"step": 3}"#.to_owned()),
            members: Vec::new(),
        };
        let file = serde_json::from_str(r#"{"number": 1, "path": "/spill/1", "bytes": 1, "hash": ""}"#).unwrap();
        Entry {
            id: Id { name_id: 70_000, version: 3 },
            spec,
            segment: 300,
            offset: 1 << 40,
            key: hash("key"),
            versions: 9,
            current: full,
            removed: !full,
            spilled: full.then_some(file),
            created_ns: full.then_some(u64::MAX),
            left_ns: full.then_some(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::entry;
    use super::*;
    use cotensor_client::protocol::GroupMember;

    #[test]
    fn packed_entry_round_trip() {
        for full in [true, false] {
            let entry = entry(full);
            let packed = PackedEntry::pack(&entry).unwrap();
            assert_eq!(packed.unpack(entry.id).unwrap(), entry);
            assert_eq!((packed.is_current(), packed.segment()), (full, (!full).then_some(300)));
            for end in 0..packed.0.len() {
                assert!(PackedEntry(packed.0[..end].into()).unpack(entry.id).is_err(), "cut at {end}");
            }
        }
        let kept = Entry { spec: Spec { keep: Keep::Cached, ..entry(false).spec }, ..entry(false) };
        assert_eq!(PackedEntry::pack(&kept).unwrap().unpack(kept.id).unwrap(), kept);
        let member = |name: &str, shape: &[usize]| GroupMember {
            name: name.to_owned(),
            dtype: "float16".to_owned(),
            shape: shape.to_vec(),
        };
        let members = vec![member("codes", &[3, 5]), member("skäla", &[])];
        let group = Entry {
            spec: Spec { dtype: "uint8".to_owned(), shape: vec![66], members, ..entry(true).spec },
            ..entry(true)
        };
        let packed = PackedEntry::pack(&group).unwrap();
        assert_eq!(packed.unpack(group.id).unwrap(), group);
        for end in 0..packed.0.len() {
            assert!(PackedEntry(packed.0[..end].into()).unpack(group.id).is_err(), "a group cut at {end}");
        }
        let odd = Entry { key: Some("no hash".to_owned()), ..entry(true) };
        assert!(PackedEntry::pack(&odd).is_err());
        let long = Entry { spec: Spec { shape: vec![1; RANK_MAX + 1], ..entry(true).spec }, ..entry(true) };
        assert!(PackedEntry::pack(&long).is_err());
    }

    #[test]
    fn every_kind_has_a_number() {
        assert!(Kind::ALL.iter().all(|kind| KINDS.contains(kind)));
    }

    /// Another hash means another format: supervisor and server of two builds need another `BLOCK_VERSION` then.
    #[test]
    fn bytes_of_the_format_are_fixed() {
        let bytes = [entry(true), entry(false)].map(|entry| PackedEntry::pack(&entry).unwrap().0).concat();
        assert_eq!(
            ContentHash::of(&bytes).to_string(),
            "ecbd0769e44b22be405831b408f454f90b40cacf13838814f7d2768bf4726a7f"
        );
    }

    #[test]
    fn plain_entry_is_at_most_64_bytes() {
        let packed = PackedEntry::pack(&Entry { created_ns: Some(1 << 50), ..entry(false) }).unwrap();
        assert!(packed.0.len() <= 64, "{} bytes", packed.0.len());
    }
}
