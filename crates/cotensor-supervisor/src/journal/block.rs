//! Blocks of a handover: segments, packed entries and claims, thousands in one message. The first byte is the format's
//! version.

use super::packed::{PackedEntry, put, take};
use cotensor_client::protocol::{Id, SegmentInfo};
use cotensor_core::{ContentHash, Error, Result};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The version of the format, the first byte of a block. JSON never begins with it.
pub(crate) const BLOCK_VERSION: u8 = 4;

/// One item of a block.
#[derive(Serialize, Deserialize)]
pub(super) enum Item<'a> {
    Segment(SegmentInfo),
    /// An entry as [`PackedEntry`].
    Entry(Id, &'a [u8]),
    Claim([u8; 32], Cow<'a, [Id]>),
}

/// Writes a block.
pub(super) struct Block(Vec<u8>);

impl Block {
    pub(super) fn new() -> Self {
        Self(vec![BLOCK_VERSION])
    }

    /// The block's length so far, in bytes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// # Errors
    /// As [`put`].
    pub(super) fn add(&mut self, item: &Item<'_>) -> Result<()> {
        self.0 = put(item, std::mem::take(&mut self.0))?;
        Ok(())
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl<'a> Item<'a> {
    pub(super) fn entry(id: Id, entry: &'a PackedEntry) -> Self {
        Self::Entry(id, entry.as_bytes())
    }

    pub(super) fn claim(key: &ContentHash, results: &'a [Id]) -> Self {
        Self::Claim(*key.as_bytes(), Cow::Borrowed(results))
    }
}

/// Reads the items of a block.
pub(super) struct Items<'a>(&'a [u8]);

impl<'a> Items<'a> {
    /// # Errors
    /// `Corrupt` for a block of another version.
    pub(super) fn of(block: &'a [u8]) -> Result<Self> {
        match block.split_first() {
            Some((&BLOCK_VERSION, items)) => Ok(Self(items)),
            Some((other, _)) => Err(Error::corrupt(format!("a block of version {other}"))),
            None => Err(Error::corrupt("an empty block")),
        }
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Item<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let taken = take(self.0);
        // Nothing can be read behind an item that cannot.
        self.0 = taken.as_ref().map_or(&[], |(_, rest)| rest);
        Some(taken.map(|(item, _)| item))
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
        let segment = SegmentInfo { id: 7, bytes: 1 << 41, slab: true, device: Device::Fake(2) };
        block.add(&Item::Segment(segment)).unwrap();
        block.add(&Item::entry(entry.id, &PackedEntry::pack(&entry).unwrap())).unwrap();
        let (key, ids) = (ContentHash::of(b"claim"), [entry.id, Id { name_id: 1, version: u64::MAX }]);
        block.add(&Item::claim(&key, &ids)).unwrap();
        let bytes = block.into_bytes();
        let items: Vec<Item<'_>> = Items::of(&bytes).unwrap().collect::<Result<_>>().unwrap();
        let [Item::Segment(segment), Item::Entry(id, packed), Item::Claim(claimed, results)] = &items[..] else {
            panic!("{} items", items.len());
        };
        assert_eq!((segment.id, segment.bytes, segment.slab), (7, 1 << 41, true));
        assert_eq!(PackedEntry::from_bytes(packed).unpack(*id).unwrap(), entry);
        assert_eq!((claimed, &results[..]), (key.as_bytes(), &ids[..]));
        let whole = |bytes: &[u8]| Items::of(bytes)?.collect::<Result<Vec<_>>>().map(|items| items.len());
        let lens: Vec<usize> = (1..bytes.len()).filter_map(|end| whole(&bytes[..end]).ok()).collect();
        assert_eq!(lens, [0, 1, 2], "only whole items are read");
        assert!(whole(&[BLOCK_VERSION + 1]).is_err() && whole(&[]).is_err());
        assert!(
            whole(&[BLOCK_VERSION, 2]).is_err()
                && whole(&[[BLOCK_VERSION, 2].as_slice(), &[0xff; 60]].concat()).is_err()
        );
    }
}
