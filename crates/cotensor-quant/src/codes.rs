//! Packed codes of a group, lowest bits first.

use crate::spec::Width;

/// The most elements of a group.
pub(crate) const GROUP_MAX: usize = 256;

/// Packs the codes of a group, each at most `width.code_max()`.
#[inline(always)]
pub(crate) fn pack(width: Width, codes: &[u8], bytes: &mut [u8]) {
    match width {
        Width::Eight => bytes.copy_from_slice(codes),
        Width::Four => {
            for (byte, pair) in bytes.iter_mut().zip(codes.as_chunks::<2>().0) {
                let word = u16::from_le_bytes(*pair);
                *byte = (word | word >> 4) as u8;
            }
        }
        Width::Two => pack_pairs(codes, bytes),
        Width::Three => {
            let (low, high) = bytes.split_at_mut(codes.len() / 4);
            pack_pairs(codes, low);
            for (byte, eight) in high.iter_mut().zip(codes.as_chunks::<8>().0) {
                // The product moves the third bit of each code to the highest byte.
                let bits = u64::from_le_bytes(*eight) >> 2 & 0x0101_0101_0101_0101;
                *byte = (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
            }
        }
    }
}

/// Packs the two lowest bits of each code.
#[inline(always)]
fn pack_pairs(codes: &[u8], bytes: &mut [u8]) {
    for (byte, four) in bytes.iter_mut().zip(codes.as_chunks::<4>().0) {
        let word = u32::from_le_bytes(*four) & 0x0303_0303;
        *byte = (word | word >> 6 | word >> 12 | word >> 18) as u8;
    }
}

/// The inverse of [`pack`].
#[inline(always)]
pub(crate) fn unpack(width: Width, bytes: &[u8], codes: &mut [u8]) {
    match width {
        Width::Eight => codes.copy_from_slice(bytes),
        Width::Four => {
            for (byte, pair) in bytes.iter().zip(codes.as_chunks_mut::<2>().0) {
                *pair = [byte & 15, byte >> 4];
            }
        }
        Width::Two => unpack_pairs(bytes, codes),
        Width::Three => {
            let (low, high) = bytes.split_at(codes.len() / 4);
            unpack_pairs(low, codes);
            for (byte, eight) in high.iter().zip(codes.as_chunks_mut::<8>().0) {
                // Each byte keeps its own bit; adding 127 moves it to the highest one.
                let bits = (u64::from(*byte) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
                let third = (bits + 0x7f7f_7f7f_7f7f_7f7f) >> 5 & 0x0404_0404_0404_0404;
                *eight = (u64::from_le_bytes(*eight) | third).to_le_bytes();
            }
        }
    }
}

#[inline(always)]
fn unpack_pairs(bytes: &[u8], codes: &mut [u8]) {
    for (byte, four) in bytes.iter().zip(codes.as_chunks_mut::<4>().0) {
        *four = [byte & 3, byte >> 2 & 3, byte >> 4 & 3, byte >> 6];
    }
}

/// Packs numbers of 4 or 6 bits as one stream, lowest bits first. Their bits fill whole bytes.
pub(crate) fn pack_stream(bits: u32, numbers: &[u8], bytes: &mut [u8]) {
    let (mut word, mut held, mut bytes) = (0u32, 0, bytes.iter_mut());
    for &number in numbers {
        word |= u32::from(number) << held;
        held += bits;
        while held >= 8 {
            if let Some(byte) = bytes.next() {
                *byte = word as u8;
            }
            (word, held) = (word >> 8, held - 8);
        }
    }
}

/// The inverse of [`pack_stream`].
pub(crate) fn unpack_stream(bits: u32, bytes: &[u8], numbers: &mut [u8]) {
    match bits {
        4 => unpack(Width::Four, bytes, numbers),
        _ => {
            for ([a, b, c], four) in bytes.as_chunks::<3>().0.iter().zip(numbers.as_chunks_mut::<4>().0) {
                *four = [a & 63, a >> 6 | b << 2 & 63, b >> 4 | c << 4 & 63, c >> 2];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_round_trips_in_its_bytes() {
        for width in Width::ALL {
            for group in [16, 32, 64, 128, 256] {
                let codes: Vec<u8> = (0..group).map(|at| (at * 7 + at / 5) as u8 & width.code_max()).collect();
                let mut bytes = vec![0xff; width.bytes(group)];
                pack(width, &codes, &mut bytes);
                let mut again = vec![0xff; group];
                unpack(width, &bytes, &mut again);
                assert_eq!(again, codes, "{width:?} {group}");
                assert_eq!(bytes.len() * 8, group * width.bits() as usize);
            }
        }
    }

    #[test]
    fn lowest_bits_come_first() {
        let codes = [1, 2, 3, 0, 3, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut bytes = [0; 4];
        pack(Width::Two, &codes, &mut bytes);
        assert_eq!(bytes, [0b00_11_10_01, 0b10_01_00_11, 0, 0]);
        let mut bytes = [0; 8];
        pack(Width::Four, &codes, &mut bytes);
        assert_eq!(bytes[..4], [0x21, 0x03, 0x03, 0x21]);
        let mut bytes = [0; 6];
        pack(Width::Three, &[5, 6, 7, 0, 3, 4, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0], &mut bytes);
        assert_eq!(bytes, [0b00_11_10_01, 0b10_01_00_11, 0, 0, 0b0010_0111, 0]);
    }

    #[test]
    fn streams_round_trip() {
        for (bits, count) in [(4, 32), (6, 16)] {
            let numbers: Vec<u8> = (0..count).map(|at| (at * 11 + 5) as u8 & ((1 << bits) - 1)).collect();
            let mut bytes = vec![0; count * bits as usize / 8];
            pack_stream(bits, &numbers, &mut bytes);
            let mut again = vec![0; count];
            unpack_stream(bits, &bytes, &mut again);
            assert_eq!(again, numbers);
        }
    }
}
