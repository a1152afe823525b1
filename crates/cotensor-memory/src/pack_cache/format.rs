//! The format of a pack: a header, a table of blobs, and the blobs, each at a multiple of 64 bytes.
//!
//! ```text
//! 0   magic "cotensor"          8 bytes
//! 8   version                   u32; all numbers are little-endian
//! 12  entries                   u32
//! 16  size of the whole file    u64
//! 24  BLAKE3 of the table       32 bytes
//! 56  zero                      8 bytes
//! 64  table: hash 32, offset u64, length u64 for each entry
//! ..  blobs
//! ```

use cotensor_core::{ALIGNMENT, ContentHash, Error, Result, TENSOR_BYTES_MAX, padded};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"cotensor";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 48;
/// The most blobs of a pack.
const ENTRIES_MAX: usize = 1_000_000;

/// One blob of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackEntry {
    /// The hash of the bytes.
    pub hash: ContentHash,
    /// The position of the bytes in the file.
    pub range: Range<usize>,
}

/// Parses the header and the table of a pack. `file` is the whole file; its blobs are not read.
///
/// # Errors
/// `Corrupt` for a wrong magic, version, size or checksum, and for entries that are out of bounds, misaligned or
/// overlapping.
pub fn parse_pack_table(file: &[u8]) -> Result<Vec<PackEntry>> {
    let header = file.get(..HEADER_BYTES).ok_or_else(|| Error::corrupt("the file is shorter than the header"))?;
    if &header[..8] != MAGIC {
        return Err(Error::corrupt("not a pack").in_field("magic"));
    }
    if u32_at(header, 8) != VERSION {
        return Err(Error::corrupt(format!("version {}, {VERSION} expected", u32_at(header, 8))).in_field("version"));
    }
    if u64_at(header, 16) != file.len() as u64 {
        return Err(Error::corrupt(format!("{} bytes, {} expected", file.len(), u64_at(header, 16))).in_field("size"));
    }
    let count = u32_at(header, 12) as usize;
    if count > ENTRIES_MAX {
        return Err(Error::corrupt(format!("{count} entries; at most {ENTRIES_MAX}")).in_field("entries"));
    }
    let table_end = HEADER_BYTES + count * ENTRY_BYTES;
    let table =
        file.get(HEADER_BYTES..table_end).ok_or_else(|| Error::corrupt("the table is cut off").in_field("table"))?;
    if ContentHash::of(table).as_bytes() != &header[24..56] {
        return Err(Error::corrupt("the checksum is wrong").in_field("table"));
    }
    let mut entries = Vec::with_capacity(count);
    let mut previous_end = table_end;
    for (index, row) in table.chunks_exact(ENTRY_BYTES).enumerate() {
        let wrong = |what: &str| Error::corrupt(what.to_owned()).in_field(format!("entry {index}"));
        let bounded = |at| usize::try_from(u64_at(row, at)).map_err(|_| wrong("out of bounds"));
        let (offset, len) = (bounded(32)?, bounded(40)?);
        let end = offset.checked_add(len).filter(|&end| end <= file.len()).ok_or_else(|| wrong("out of bounds"))?;
        if !offset.is_multiple_of(ALIGNMENT) {
            return Err(wrong("misaligned"));
        }
        if offset < previous_end {
            return Err(wrong("overlaps an earlier entry"));
        }
        previous_end = end;
        let mut hash = [0; 32];
        hash.copy_from_slice(&row[..32]);
        entries.push(PackEntry { hash: ContentHash::from_bytes(hash), range: offset..end });
    }
    Ok(entries)
}

/// The positions of blobs, given by hash and length in bytes, in a new pack, and the length of its file.
pub(super) fn plan(blobs: &[(ContentHash, usize)]) -> Result<(Vec<PackEntry>, usize)> {
    if blobs.len() > ENTRIES_MAX {
        return Err(Error::invalid(format!("{} blobs; a pack has at most {ENTRIES_MAX}", blobs.len())));
    }
    let mut at = HEADER_BYTES + blobs.len() * ENTRY_BYTES;
    let mut entries = Vec::with_capacity(blobs.len());
    for &(hash, len) in blobs {
        let start = padded(at)?;
        let end = start.checked_add(len).filter(|&end| end as u64 <= TENSOR_BYTES_MAX);
        at = end.ok_or_else(|| Error::invalid("the blobs are larger than a pack can be"))?;
        entries.push(PackEntry { hash, range: start..at });
    }
    Ok((entries, at))
}

/// Writes the header and the table.
pub(super) fn write_table(entries: &[PackEntry], file: &mut [u8]) {
    let size = file.len() as u64;
    let table_end = HEADER_BYTES + entries.len() * ENTRY_BYTES;
    for (entry, row) in entries.iter().zip(file[HEADER_BYTES..table_end].chunks_exact_mut(ENTRY_BYTES)) {
        row[..32].copy_from_slice(entry.hash.as_bytes());
        row[32..40].copy_from_slice(&(entry.range.start as u64).to_le_bytes());
        row[40..48].copy_from_slice(&(entry.range.len() as u64).to_le_bytes());
    }
    let checksum = ContentHash::of(&file[HEADER_BYTES..table_end]);
    file[..8].copy_from_slice(MAGIC);
    file[8..12].copy_from_slice(&VERSION.to_le_bytes());
    file[12..16].copy_from_slice(&(entries.len() as u32).to_le_bytes());
    file[16..24].copy_from_slice(&size.to_le_bytes());
    file[24..56].copy_from_slice(checksum.as_bytes());
    file[56..64].fill(0);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Vec<u8> {
        let contents = [(ContentHash::of(b"a"), 100), (ContentHash::of(b"b"), 0), (ContentHash::of(b"c"), 64)];
        let (entries, len) = plan(&contents).unwrap();
        let mut file = vec![0; len];
        write_table(&entries, &mut file);
        assert_eq!(parse_pack_table(&file).unwrap(), entries);
        file
    }

    #[test]
    fn every_truncation_is_refused() {
        let file = sample();
        for len in 0..file.len() {
            assert!(parse_pack_table(&file[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn any_flipped_bit_of_header_or_table_is_refused() {
        let file = sample();
        for at in 0..HEADER_BYTES - 8 + 3 * ENTRY_BYTES {
            // The last 8 bytes of the header are reserved.
            let at = if at >= 56 { at + 8 } else { at };
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            assert!(parse_pack_table(&damaged).is_err(), "{at}");
        }
    }

    #[test]
    fn invalid_entries_with_a_valid_checksum_are_refused() {
        let rewrite = |change: &dyn Fn(&mut [PackEntry])| {
            let mut file = sample();
            let mut entries = parse_pack_table(&file).unwrap();
            change(&mut entries);
            write_table(&entries, &mut file);
            parse_pack_table(&file).unwrap_err().to_string()
        };
        assert!(rewrite(&|entries| entries[2].range = entries[0].range.clone()).contains("overlaps"));
        assert!(rewrite(&|entries| entries[0].range.start += 1).contains("misaligned"));
        assert!(rewrite(&|entries| entries[2].range.end += 1).contains("out of bounds"));
        assert!(rewrite(&|entries| entries[0].range = 0..1).contains("overlaps"));
    }

    #[test]
    fn blobs_beyond_the_limits_are_refused() {
        let hash = ContentHash::of(b"a");
        for lens in [&[usize::MAX][..], &[usize::MAX - 130], &[1, usize::MAX - 63]] {
            let contents: Vec<_> = lens.iter().map(|&len| (hash, len)).collect();
            assert_eq!(plan(&contents).unwrap_err().kind(), cotensor_core::ErrorKind::Invalid, "{lens:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), good in any::<bool>()) {
            let mut file = bytes;
            if good && file.len() >= 64 {
                let size = (file.len() as u64).to_le_bytes();
                file[..8].copy_from_slice(MAGIC);
                file[8..12].copy_from_slice(&VERSION.to_le_bytes());
                file[16..24].copy_from_slice(&size);
            }
            let _ = parse_pack_table(&file);
        }
    }
}
