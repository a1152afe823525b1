//! The encoding of numbers, texts, hashes and devices in packed entries and blocks. Numbers are LEB128.

use cotensor_client::protocol::{GroupMember, Id};
use cotensor_core::{ContentHash, Device, Error, RANK_MAX, Result};
use cotensor_store::MEMBERS_MAX;

/// Parses the hexadecimal form of a hash.
///
/// # Errors
/// `Corrupt` for anything else.
pub(super) fn parse_hash(hex: &str) -> Result<ContentHash> {
    ContentHash::from_hex(hex).ok_or_else(|| Error::corrupt("64 hexadecimal digits expected"))
}

pub(super) fn corrupt() -> Error {
    Error::corrupt("a packed journal entry cannot be read")
}

/// Appends values to bytes.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn byte(&mut self, byte: u8) -> &mut Self {
        self.0.push(byte);
        self
    }

    pub(super) fn number(&mut self, mut number: u64) -> &mut Self {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8)
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64).0.extend_from_slice(bytes);
        self
    }

    pub(super) fn hash(&mut self, hash: &ContentHash) -> &mut Self {
        self.0.extend_from_slice(hash.as_bytes());
        self
    }

    pub(super) fn shape(&mut self, shape: &[usize]) -> &mut Self {
        self.number(shape.len() as u64);
        for dim in shape {
            self.number(*dim as u64);
        }
        self
    }

    /// Host memory takes one byte: an empty name.
    pub(super) fn device(&mut self, device: Device) -> &mut Self {
        match device {
            device if device.is_host() => self.bytes(&[]),
            device => self.bytes(device.to_string().as_bytes()),
        }
    }
}

/// Reads values from the start of bytes. Each method fails with `Corrupt` when they are not there.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.0.split_first().ok_or_else(corrupt)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn number(&mut self) -> Result<u64> {
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

    pub(super) fn size(&mut self) -> Result<usize> {
        usize::try_from(self.number()?).map_err(|_| corrupt())
    }

    pub(super) fn id(&mut self) -> Result<Id> {
        Ok(Id { name_id: self.number()?, version: self.number()? })
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.size()?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or_else(corrupt)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn device(&mut self) -> Result<Device> {
        match &self.text()?[..] {
            "" => Ok(Device::default()),
            name => name.parse().map_err(|_| corrupt()),
        }
    }

    pub(super) fn shape(&mut self) -> Result<Vec<usize>> {
        let rank = self.size()?;
        if rank > RANK_MAX {
            return Err(corrupt());
        }
        (0..rank).map(|_| self.size()).collect()
    }

    pub(super) fn members(&mut self) -> Result<Vec<GroupMember>> {
        let count = self.size()?;
        if !(1..=MEMBERS_MAX).contains(&count) {
            return Err(corrupt());
        }
        (0..count).map(|_| Ok(GroupMember { name: self.text()?, dtype: self.text()?, shape: self.shape()? })).collect()
    }

    pub(super) fn text(&mut self) -> Result<String> {
        Ok(std::str::from_utf8(self.bytes()?).map_err(|_| corrupt())?.to_owned())
    }

    pub(super) fn hash(&mut self) -> Result<ContentHash> {
        let (hash, rest) = self.0.split_first_chunk().ok_or_else(corrupt)?;
        self.0 = rest;
        Ok(ContentHash::from_bytes(*hash))
    }
}
