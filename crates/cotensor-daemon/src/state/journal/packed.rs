//! The packed form of a journal entry. A machine may have hundreds of thousands of tensors, and two processes hold an
//! entry for each: 4.4 KB as parsed JSON, about 50 bytes packed.
//!
//! Only the supervisor and its servers read the format. They run the same program, or a newer one reads the format of
//! an older one.

use super::codec::{Reader, Writer, corrupt, parse_hash};
use super::event::Entry;
use cotensor_client::protocol::{Id, Keep, Spec};
use cotensor_core::{DType, Error, RANK_MAX, Result};

/// In place of the dtype of a group, whose members follow its shape.
const GROUP: &str = "";
/// After the dtype of a tensor with metadata, which is the last part. An earlier version wrote no metadata.
const METADATA: &str = "*";
/// After the dtype of a tensor that is kept for a time, before that of metadata. An earlier version wrote no time.
const KEPT_FOR: &str = "+";

const CURRENT: u8 = 1;
const SPACE: u8 = 1 << 1;
const PROVENANCE: u8 = 1 << 2;
const KEY: u8 = 1 << 3;
const SPILLED: u8 = 1 << 4;
const CREATED: u8 = 1 << 5;
const CACHED: u8 = 1 << 6;
const REMOVED: u8 = 1 << 7;

/// An entry without its identity, which is its key in the journal.
pub(super) struct PackedEntry(Box<[u8]>);

impl PackedEntry {
    /// # Errors
    /// `Corrupt` for a malformed hash or too many dimensions.
    pub(super) fn pack(entry: &Entry) -> Result<Self> {
        let shapes = entry.spec.members.iter().map(|member| &member.shape).chain([&entry.spec.shape]);
        if shapes.into_iter().any(|shape| shape.len() > RANK_MAX) {
            return Err(corrupt());
        }
        let Entry { id: _, spec, segment, offset, key, versions, current, removed, spilled, created_ns, left_ns } =
            entry;
        // `Cached` without a time and with zero are equal.
        let recompute = match spec.keep {
            Keep::CachedMicros(micros) => Some(micros),
            Keep::Cached => Some(0),
            Keep::WhileLeased => None,
        };
        let flags = [
            (CURRENT, *current),
            (SPACE, spec.space.is_some()),
            (PROVENANCE, spec.provenance.is_some()),
            (KEY, key.is_some()),
            (SPILLED, spilled.is_some()),
            (CREATED, created_ns.is_some()),
            (CACHED, recompute.is_some()),
            (REMOVED, *removed),
        ];
        let mut writer = Writer::default();
        writer.byte(flags.into_iter().filter(|(_, set)| *set).fold(0, |all, (flag, _)| all | flag));
        writer.number(*segment).number(*offset as u64).number(*versions);
        let dtype = if spec.members.is_empty() { spec.dtype.as_str() } else { GROUP };
        let mark = |has: bool, mark: &'static str| if has { mark } else { "" };
        let dtype = [dtype, mark(spec.keep_ms.is_some(), KEPT_FOR), mark(spec.metadata.is_some(), METADATA)].concat();
        for text in [&spec.name, &spec.producer, &dtype, &spec.kind] {
            writer.bytes(text.as_bytes());
        }
        writer.device(spec.device).shape(&spec.shape);
        if !spec.members.is_empty() {
            writer.number(spec.members.len() as u64);
            for member in &spec.members {
                writer.bytes(member.name.as_bytes()).bytes(member.dtype.as_bytes()).shape(&member.shape);
            }
        }
        if let Some(micros) = recompute {
            writer.number(micros);
        }
        if let Some(milliseconds) = spec.keep_ms {
            // The machine's clock is never 0.
            writer.number(milliseconds).number(left_ns.unwrap_or(0));
        }
        for hash in [&spec.space, &spec.provenance, key].into_iter().flatten() {
            writer.hash(&parse_hash(hash)?);
        }
        if let Some(created) = created_ns {
            writer.number(*created);
        }
        if let Some(file) = spilled {
            writer.bytes(&serde_json::to_vec(file).map_err(|error| Error::corrupt(error.to_string()))?);
        }
        if let Some(metadata) = &spec.metadata {
            writer.bytes(metadata.as_bytes());
        }
        Ok(Self(writer.0.into_boxed_slice()))
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
        let mut reader = Reader(&self.0);
        let flags = reader.byte()?;
        let has = |flag: u8| flags & flag != 0;
        let (segment, offset, versions) = (reader.number()?, reader.size()?, reader.number()?);
        let [name, producer, dtype, kind] = [reader.text()?, reader.text()?, reader.text()?, reader.text()?];
        let device = reader.device()?;
        let shape = reader.shape()?;
        let has_metadata = dtype.ends_with(METADATA);
        let dtype = dtype.trim_end_matches(METADATA);
        let is_kept_for = dtype.ends_with(KEPT_FOR);
        let dtype = dtype.trim_end_matches(KEPT_FOR).to_owned();
        let is_group = dtype == GROUP;
        let (dtype, members) =
            if is_group { (DType::U8.name().to_owned(), reader.members()?) } else { (dtype, Vec::new()) };
        let keep = match has(CACHED).then(|| reader.number()).transpose()? {
            Some(0) => Keep::Cached,
            Some(micros) => Keep::CachedMicros(micros),
            None => Keep::WhileLeased,
        };
        let kept_for = is_kept_for.then(|| Ok::<_, Error>((reader.number()?, reader.number()?))).transpose()?;
        let (keep_ms, left_ns) = (kept_for.map(|kept| kept.0), kept_for.map(|kept| kept.1).filter(|left| *left > 0));
        let mut hash = |flag| has(flag).then(|| reader.hash().map(|hash| hash.to_string())).transpose();
        let (space, provenance, key) = (hash(SPACE)?, hash(PROVENANCE)?, hash(KEY)?);
        let created_ns = has(CREATED).then(|| reader.number()).transpose()?;
        let spilled = has(SPILLED).then(|| reader.bytes().map(serde_json::from_slice)).transpose()?;
        let spilled = spilled.transpose().map_err(|error| Error::corrupt(error.to_string()))?;
        let metadata = has_metadata.then(|| reader.text()).transpose()?;
        if !reader.0.is_empty() {
            return Err(corrupt());
        }
        let spec =
            Spec { name, dtype, shape, device, kind, space, producer, keep, keep_ms, provenance, metadata, members };
        Ok(Entry {
            id,
            spec,
            segment,
            offset,
            key,
            versions,
            current: has(CURRENT),
            removed: has(REMOVED),
            spilled,
            created_ns,
            left_ns,
        })
    }

    /// Whether it is the current version of its name.
    pub(super) fn is_current(&self) -> bool {
        self.0.first().is_some_and(|flags| flags & CURRENT != 0)
    }

    /// The number of its segment; none for a spilled tensor.
    pub(super) fn segment(&self) -> Option<u64> {
        let mut reader = Reader(&self.0);
        let flags = reader.byte().ok()?;
        reader.number().ok().filter(|_| flags & SPILLED == 0)
    }
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
    }

    #[test]
    fn plain_entry_is_at_most_64_bytes() {
        let packed = PackedEntry::pack(&Entry { created_ns: Some(1 << 50), ..entry(false) }).unwrap();
        assert!(packed.0.len() <= 64, "{} bytes", packed.0.len());
    }
}
