//! Blocks of a handover: segments, packed entries and claims, thousands in one message. The first byte is the format's
//! version.

use super::codec::{Reader, Writer, corrupt};
use super::packed::PackedEntry;
use cotensor_client::protocol::{Id, SegmentInfo};
use cotensor_core::{ContentHash, Error, Result};

/// The version of the format, the first byte of a block. JSON never begins with it.
pub(crate) const BLOCK_VERSION: u8 = 3;

const SEGMENT: u8 = 1;
const ENTRY: u8 = 2;
const CLAIM: u8 = 3;

/// One item of a block.
pub(super) enum Item {
    Segment(SegmentInfo),
    Entry(Id, PackedEntry),
    Claim(ContentHash, Box<[Id]>),
}

/// Writes a block.
pub(super) struct Block(Writer);

impl Block {
    pub(super) fn new() -> Self {
        let mut writer = Writer::default();
        writer.byte(BLOCK_VERSION);
        Self(writer)
    }

    /// The block's length so far, in bytes.
    pub(super) fn len(&self) -> usize {
        self.0.0.len()
    }

    pub(super) fn segment(&mut self, segment: &SegmentInfo) {
        self.0.byte(SEGMENT).number(segment.id).number(segment.bytes).byte(segment.slab.into()).device(segment.device);
    }

    pub(super) fn entry(&mut self, (name_id, version): (u64, u64), entry: &PackedEntry) {
        self.0.byte(ENTRY).number(name_id).number(version).bytes(entry.as_bytes());
    }

    pub(super) fn claim(&mut self, key: &ContentHash, results: &[Id]) {
        self.0.byte(CLAIM).hash(key).number(results.len() as u64);
        for id in results {
            self.0.number(id.name_id).number(id.version);
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
            BLOCK_VERSION => Ok(Self(reader)),
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
                let packed = PackedEntry::from_bytes(reader.bytes()?);
                packed.unpack(id)?;
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

#[cfg(test)]
mod tests {
    use super::super::packed::testing::entry;
    use super::*;
    use cotensor_core::Device;

    #[test]
    fn block_round_trip_and_truncated_block() {
        let entry = entry(true);
        let mut block = Block::new();
        block.segment(&SegmentInfo { id: 7, bytes: 1 << 41, slab: true, device: Device::Fake(2) });
        block.entry((entry.id.name_id, entry.id.version), &PackedEntry::pack(&entry).unwrap());
        let (key, ids) = (ContentHash::of(b"claim"), [entry.id, Id { name_id: 1, version: u64::MAX }]);
        block.claim(&key, &ids);
        let bytes = block.into_bytes();
        let items: Vec<Item> = Items::of(&bytes).unwrap().collect::<Result<_>>().unwrap();
        let [Item::Segment(segment), Item::Entry(id, packed), Item::Claim(claimed, results)] = &items[..] else {
            panic!("{} items", items.len());
        };
        assert_eq!((segment.id, segment.bytes, segment.slab), (7, 1 << 41, true));
        assert_eq!(packed.unpack(*id).unwrap(), entry);
        assert_eq!((*claimed, &results[..]), (key, &ids[..]));
        let whole = |bytes: &[u8]| Items::of(bytes)?.collect::<Result<Vec<_>>>().map(|items| items.len());
        let lens: Vec<usize> = (1..bytes.len()).filter_map(|end| whole(&bytes[..end]).ok()).collect();
        assert_eq!(lens, [0, 1, 2], "only whole items are read");
        assert!(whole(&[BLOCK_VERSION + 1]).is_err() && whole(&[]).is_err());
        assert!(
            whole(&[BLOCK_VERSION, CLAIM]).is_err()
                && whole(&[[BLOCK_VERSION, CLAIM].as_slice(), &[0xff; 60]].concat()).is_err()
        );
    }
}
