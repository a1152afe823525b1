//! The packed form of journal entries. A machine may have hundreds of thousands of tensors, and two processes hold an entry for
//! each: 4.4 KB as parsed JSON, about 50 bytes packed.
//!
//! The format is the supervisor's and its servers' own: they run the same program, or a newer one reads an older one's.
//! Numbers are LEB128. The first byte of a block is the format's version.

use super::event::Entry;
use cotensor_client::protocol::{GroupMember, Id, Keep, SegmentInfo, Spec};
use cotensor_core::{ContentHash, DType, Device, Error, RANK_MAX, Result};
use cotensor_store::MEMBERS_MAX;

/// The first byte of a block. JSON never begins with it.
pub(crate) const BLOCK: u8 = 2;

/// In place of the dtype of a group, whose members follow its shape.
const GROUP: &str = "";

const SEGMENT: u8 = 1;
const ENTRY: u8 = 2;
const CLAIM: u8 = 3;

const CURRENT: u8 = 1;
const SPACE: u8 = 1 << 1;
const PROVENANCE: u8 = 1 << 2;
const KEY: u8 = 1 << 3;
const SPILLED: u8 = 1 << 4;
const CREATED: u8 = 1 << 5;
const CACHED: u8 = 1 << 6;
const REMOVED: u8 = 1 << 7;

/// An entry without its identity, which is its key in the journal.
pub(super) struct Packed(Box<[u8]>);

impl Packed {
    /// # Errors
    /// `Corrupt` for a malformed hash or too many dimensions.
    pub(super) fn of(entry: &Entry) -> Result<Self> {
        let shapes = entry.spec.members.iter().map(|member| &member.shape).chain([&entry.spec.shape]);
        if shapes.into_iter().any(|shape| shape.len() > RANK_MAX) {
            return Err(corrupt());
        }
        let Entry { id: _, spec, segment, offset, key, versions, current, removed, spilled, created_ns } = entry;
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
        for text in [&spec.name, &spec.producer, dtype, &spec.kind] {
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
        for hash in [&spec.space, &spec.provenance, key].into_iter().flatten() {
            writer.hash(&parsed(hash)?);
        }
        if let Some(created) = created_ns {
            writer.number(*created);
        }
        if let Some(file) = spilled {
            writer.bytes(&serde_json::to_vec(file).map_err(|error| Error::corrupt(error.to_string()))?);
        }
        Ok(Self(writer.0.into_boxed_slice()))
    }

    /// # Errors
    /// `Corrupt` for bytes that are no entry.
    pub(super) fn entry(&self, id: Id) -> Result<Entry> {
        let mut reader = Reader(&self.0);
        let flags = reader.byte()?;
        let has = |flag: u8| flags & flag != 0;
        let (segment, offset, versions) = (reader.number()?, reader.size()?, reader.number()?);
        let [name, producer, dtype, kind] = [reader.text()?, reader.text()?, reader.text()?, reader.text()?];
        let device = reader.device()?;
        let shape = reader.shape()?;
        let is_group = dtype == GROUP;
        let (dtype, members) =
            if is_group { (DType::U8.name().to_owned(), reader.members()?) } else { (dtype, Vec::new()) };
        let keep = match has(CACHED).then(|| reader.number()).transpose()? {
            Some(0) => Keep::Cached,
            Some(micros) => Keep::CachedMicros(micros),
            None => Keep::WhileLeased,
        };
        let mut hash = |flag| has(flag).then(|| reader.hash().map(|hash| hash.to_string())).transpose();
        let (space, provenance, key) = (hash(SPACE)?, hash(PROVENANCE)?, hash(KEY)?);
        let created_ns = has(CREATED).then(|| reader.number()).transpose()?;
        let spilled = has(SPILLED).then(|| reader.bytes().map(serde_json::from_slice)).transpose()?;
        let spilled = spilled.transpose().map_err(|error| Error::corrupt(error.to_string()))?;
        if !reader.0.is_empty() {
            return Err(corrupt());
        }
        let spec = Spec { name, dtype, shape, device, kind, space, producer, keep, provenance, members };
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

/// One item of a block.
pub(super) enum Item {
    Segment(SegmentInfo),
    Entry(Id, Packed),
    Claim(ContentHash, Box<[Id]>),
}

/// Writes a block.
pub(super) struct Block(Writer);

impl Block {
    pub(super) fn new() -> Self {
        let mut writer = Writer::default();
        writer.byte(BLOCK);
        Self(writer)
    }

    /// The block's length so far, in bytes.
    pub(super) fn len(&self) -> usize {
        self.0.0.len()
    }

    pub(super) fn segment(&mut self, segment: &SegmentInfo) {
        self.0.byte(SEGMENT).number(segment.id).number(segment.bytes).byte(segment.slab.into()).device(segment.device);
    }

    pub(super) fn entry(&mut self, (slot, version): (u64, u64), entry: &Packed) {
        self.0.byte(ENTRY).number(slot).number(version).bytes(&entry.0);
    }

    pub(super) fn claim(&mut self, key: &ContentHash, results: &[Id]) {
        self.0.byte(CLAIM).hash(key).number(results.len() as u64);
        for id in results {
            self.0.number(id.slot).number(id.version);
        }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0.0
    }
}

/// Reads the items of a block.
pub(super) struct Items<'a>(Reader<'a>);

impl<'a> Items<'a> {
    /// # Errors
    /// `Corrupt` for a block of another version.
    pub(super) fn of(block: &'a [u8]) -> Result<Self> {
        let mut reader = Reader(block);
        match reader.byte()? {
            BLOCK => Ok(Self(reader)),
            other => Err(Error::corrupt(format!("a block of version {other}"))),
        }
    }

    fn next_item(&mut self) -> Result<Item> {
        let reader = &mut self.0;
        Ok(match reader.byte()? {
            SEGMENT => {
                let (id, bytes, slab) = (reader.number()?, reader.number()?, reader.byte()? != 0);
                Item::Segment(SegmentInfo { id, bytes, slab, device: reader.device()? })
            }
            ENTRY => {
                let id = reader.id()?;
                let packed = Packed(reader.bytes()?.into());
                packed.entry(id)?;
                Item::Entry(id, packed)
            }
            CLAIM => {
                let (key, count) = (reader.hash()?, reader.size()?);
                // Of two bytes each at least: a count beyond them does not reserve memory.
                let ids = (0..count.min(reader.0.len())).map(|_| reader.id()).collect::<Result<Vec<_>>>()?;
                Item::Claim(key, if ids.len() == count { ids.into() } else { return Err(corrupt()) })
            }
            _ => return Err(corrupt()),
        })
    }
}

impl Iterator for Items<'_> {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = (!self.0.0.is_empty()).then(|| self.next_item())?;
        if item.is_err() {
            self.0.0 = &[];
        }
        Some(item)
    }
}

/// A hash as messages write it.
///
/// # Errors
/// `Corrupt` for anything else.
pub(super) fn parsed(hex: &str) -> Result<ContentHash> {
    ContentHash::from_hex(hex).ok_or_else(|| Error::corrupt("64 hexadecimal digits expected"))
}

fn corrupt() -> Error {
    Error::corrupt("the supervisor's entry of a tensor cannot be read")
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn byte(&mut self, byte: u8) -> &mut Self {
        self.0.push(byte);
        self
    }

    fn number(&mut self, mut number: u64) -> &mut Self {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8)
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64).0.extend_from_slice(bytes);
        self
    }

    fn hash(&mut self, hash: &ContentHash) -> &mut Self {
        self.0.extend_from_slice(hash.as_bytes());
        self
    }

    fn shape(&mut self, shape: &[usize]) -> &mut Self {
        self.number(shape.len() as u64);
        for dim in shape {
            self.number(*dim as u64);
        }
        self
    }

    /// Host memory takes one byte: an empty name.
    fn device(&mut self, device: Device) -> &mut Self {
        match device {
            Device::Cpu => self.bytes(&[]),
            device => self.bytes(device.to_string().as_bytes()),
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.0.split_first().ok_or_else(corrupt)?;
        self.0 = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64> {
        let mut number = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                return Err(corrupt());
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(corrupt())
    }

    fn size(&mut self) -> Result<usize> {
        usize::try_from(self.number()?).map_err(|_| corrupt())
    }

    fn id(&mut self) -> Result<Id> {
        Ok(Id { slot: self.number()?, version: self.number()? })
    }

    fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.size()?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or_else(corrupt)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn device(&mut self) -> Result<Device> {
        match &self.text()?[..] {
            "" => Ok(Device::Cpu),
            name => name.parse().map_err(|_| corrupt()),
        }
    }

    fn shape(&mut self) -> Result<Vec<usize>> {
        let rank = self.size()?;
        if rank > RANK_MAX {
            return Err(corrupt());
        }
        (0..rank).map(|_| self.size()).collect()
    }

    fn members(&mut self) -> Result<Vec<GroupMember>> {
        let count = self.size()?;
        if !(1..=MEMBERS_MAX).contains(&count) {
            return Err(corrupt());
        }
        (0..count).map(|_| Ok(GroupMember { name: self.text()?, dtype: self.text()?, shape: self.shape()? })).collect()
    }

    fn text(&mut self) -> Result<String> {
        Ok(std::str::from_utf8(self.bytes()?).map_err(|_| corrupt())?.to_owned())
    }

    fn hash(&mut self) -> Result<ContentHash> {
        let (hash, rest) = self.0.split_first_chunk().ok_or_else(corrupt)?;
        self.0 = rest;
        Ok(ContentHash::from_bytes(*hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(full: bool) -> Entry {
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
            provenance: hash("provenance"),
            members: Vec::new(),
        };
        let file = serde_json::from_str(r#"{"number": 1, "path": "/spill/1", "bytes": 1, "hash": ""}"#).unwrap();
        Entry {
            id: Id { slot: 70_000, version: 3 },
            spec,
            segment: 300,
            offset: 1 << 40,
            key: hash("key"),
            versions: 9,
            current: full,
            removed: !full,
            spilled: full.then_some(file),
            created_ns: full.then_some(u64::MAX),
        }
    }

    #[test]
    fn entries_unpack_as_they_were_packed() {
        for full in [true, false] {
            let entry = entry(full);
            let packed = Packed::of(&entry).unwrap();
            assert_eq!(packed.entry(entry.id).unwrap(), entry);
            assert_eq!((packed.is_current(), packed.segment()), (full, (!full).then_some(300)));
            for end in 0..packed.0.len() {
                assert!(Packed(packed.0[..end].into()).entry(entry.id).is_err(), "cut at {end}");
            }
        }
        let kept = Entry { spec: Spec { keep: Keep::Cached, ..entry(false).spec }, ..entry(false) };
        assert_eq!(Packed::of(&kept).unwrap().entry(kept.id).unwrap(), kept);
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
        let packed = Packed::of(&group).unwrap();
        assert_eq!(packed.entry(group.id).unwrap(), group);
        for end in 0..packed.0.len() {
            assert!(Packed(packed.0[..end].into()).entry(group.id).is_err(), "a group cut at {end}");
        }
        let odd = Entry { key: Some("no hash".to_owned()), ..entry(true) };
        assert!(Packed::of(&odd).is_err());
    }

    #[test]
    fn a_plain_entry_takes_few_bytes() {
        let packed = Packed::of(&Entry { created_ns: Some(1 << 50), ..entry(false) }).unwrap();
        assert!(packed.0.len() <= 64, "{} bytes", packed.0.len());
    }

    #[test]
    fn blocks_are_read_back_and_what_is_cut_off_is_refused() {
        let entry = entry(true);
        let mut block = Block::new();
        block.segment(&SegmentInfo { id: 7, bytes: 1 << 41, slab: true, device: Device::Fake(2) });
        block.entry((entry.id.slot, entry.id.version), &Packed::of(&entry).unwrap());
        let (key, ids) = (ContentHash::of(b"claim"), [entry.id, Id { slot: 1, version: u64::MAX }]);
        block.claim(&key, &ids);
        let bytes = block.into_bytes();
        let items: Vec<Item> = Items::of(&bytes).unwrap().collect::<Result<_>>().unwrap();
        let [Item::Segment(segment), Item::Entry(id, packed), Item::Claim(claimed, results)] = &items[..] else {
            panic!("{} items", items.len());
        };
        assert_eq!((segment.id, segment.bytes, segment.slab), (7, 1 << 41, true));
        assert_eq!(packed.entry(*id).unwrap(), entry);
        assert_eq!((*claimed, &results[..]), (key, &ids[..]));
        let whole = |bytes: &[u8]| Items::of(bytes)?.collect::<Result<Vec<_>>>().map(|items| items.len());
        let lens: Vec<usize> = (1..bytes.len()).filter_map(|end| whole(&bytes[..end]).ok()).collect();
        assert_eq!(lens, [0, 1, 2], "whole items alone are read");
        assert!(whole(&[BLOCK + 1]).is_err() && whole(&[]).is_err());
        assert!(whole(&[BLOCK, CLAIM]).is_err() && whole(&[[BLOCK, CLAIM].as_slice(), &[0xff; 60]].concat()).is_err());
    }
}
