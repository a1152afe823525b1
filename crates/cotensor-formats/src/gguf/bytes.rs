//! The numbers, texts and values of a header.

use crate::error::read_error_in;
use cotensor_core::{Error, Result};
use std::io::Read;

/// The most tensors, and the most entries of metadata.
const COUNT_MAX: u64 = 1 << 16;
/// The most bytes of a name of a tensor or an entry. The format has 64 and 65535.
const NAME_BYTES_MAX: u64 = 1 << 10;
/// The most bytes of a text that is kept.
const TEXT_BYTES_MAX: u64 = 1 << 10;
/// The most values of an array. Vocabularies have less than a million.
const ARRAY_MAX: u64 = 1 << 24;
/// The type of a value in the file that is a text.
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// A value of the metadata. Arrays and long texts are not kept.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// An integer without a sign.
    Unsigned(u64),
    /// An integer with a sign.
    Signed(i64),
    /// A number in floating point.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
    /// An array, or a text of more than 1 KiB.
    Other,
}

/// Reads a header from front to back.
pub(super) struct Bytes<'s, R> {
    source: &'s mut R,
    position: u64,
    file_bytes: u64,
}

impl<'s, R: Read> Bytes<'s, R> {
    pub(super) fn new(source: &'s mut R, file_bytes: u64) -> Self {
        Self { source, position: 0, file_bytes }
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N]> {
        let mut found = [0; N];
        self.source.read_exact(&mut found).map_err(|error| read_error_in(field, &error))?;
        self.position += N as u64;
        Ok(found)
    }

    pub(super) fn u32(&mut self, field: &str) -> Result<u32> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &str) -> Result<u64> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A number of tensors or entries.
    pub(super) fn count(&mut self, field: &str) -> Result<u64> {
        match self.u64(field)? {
            count if count <= COUNT_MAX => Ok(count),
            count => Err(Error::corrupt(format!("{count}; at most {COUNT_MAX} are read")).in_field(field)),
        }
    }

    /// A name; `field` has it.
    pub(super) fn name(&mut self, field: &str) -> Result<String> {
        let len = self.u64(field)?;
        if len > NAME_BYTES_MAX {
            let message = format!("a name of {len} bytes; at most {NAME_BYTES_MAX} are read");
            return Err(Error::corrupt(message).in_field(field));
        }
        self.text(len, field)
    }

    fn text(&mut self, len: u64, field: &str) -> Result<String> {
        let mut found = Vec::new();
        let read = self.source.by_ref().take(len).read_to_end(&mut found);
        read.map_err(|error| read_error_in(field, &error))?;
        self.position += len;
        if found.len() as u64 != len {
            return Err(Error::corrupt("the file is truncated").in_field(field));
        }
        String::from_utf8(found).map_err(|_| Error::corrupt("a text that is not UTF-8").in_field(field))
    }

    fn skip(&mut self, len: u64) -> Result<()> {
        let skipped = std::io::copy(&mut self.source.by_ref().take(len), &mut std::io::sink());
        if skipped.map_err(|error| Error::io("cannot read", &error))? != len {
            return Err(Error::corrupt("the file is truncated"));
        }
        self.position += len;
        Ok(())
    }

    /// Checks a length that the file states before anything is done by it.
    fn check_left(&self, len: Option<u64>) -> Result<u64> {
        let left = self.file_bytes.saturating_sub(self.position);
        let message = || Error::corrupt(format!("it is longer than the {left} bytes that the file has left"));
        len.filter(|len| *len <= left).ok_or_else(message)
    }

    /// The type of a value and the value.
    pub(super) fn value(&mut self) -> Result<GgufValue> {
        let kind = self.u32("type")?;
        match kind {
            TEXT => {
                let len = self.u64("length")?;
                let len = self.check_left(Some(len))?;
                if len <= TEXT_BYTES_MAX {
                    return self.text(len, "text").map(GgufValue::Text);
                }
                self.skip(len)?;
                Ok(GgufValue::Other)
            }
            ARRAY => self.skip_array().map(|()| GgufValue::Other),
            kind => self.number(kind),
        }
    }

    fn number(&mut self, kind: u32) -> Result<GgufValue> {
        Ok(match kind {
            0 => GgufValue::Unsigned(u64::from(u8::from_le_bytes(self.array("value")?))),
            1 => GgufValue::Signed(i64::from(i8::from_le_bytes(self.array("value")?))),
            2 => GgufValue::Unsigned(u64::from(u16::from_le_bytes(self.array("value")?))),
            3 => GgufValue::Signed(i64::from(i16::from_le_bytes(self.array("value")?))),
            4 => GgufValue::Unsigned(u64::from(self.u32("value")?)),
            5 => GgufValue::Signed(i64::from(i32::from_le_bytes(self.array("value")?))),
            6 => GgufValue::Float(f64::from(f32::from_le_bytes(self.array("value")?))),
            7 => GgufValue::Bool(self.array::<1>("value")? != [0]),
            10 => GgufValue::Unsigned(self.u64("value")?),
            11 => GgufValue::Signed(i64::from_le_bytes(self.array("value")?)),
            12 => GgufValue::Float(f64::from_le_bytes(self.array("value")?)),
            _ => return Err(unknown(kind)),
        })
    }

    fn skip_array(&mut self) -> Result<()> {
        let (kind, count) = (self.u32("type")?, self.u64("length")?);
        if count > ARRAY_MAX {
            return Err(Error::corrupt(format!("{count} values; at most {ARRAY_MAX} are read")));
        }
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            TEXT => {
                // Each text has a length.
                self.check_left(count.checked_mul(8))?;
                for _ in 0..count {
                    let len = self.u64("length")?;
                    let len = self.check_left(Some(len))?;
                    self.skip(len)?;
                }
                return Ok(());
            }
            ARRAY => return Err(Error::unsupported("arrays of arrays are not read")),
            _ => return Err(unknown(kind)),
        };
        let len = self.check_left(count.checked_mul(size))?;
        self.skip(len)
    }
}

fn unknown(kind: u32) -> Error {
    Error::corrupt(format!("values of type {kind}, which the format does not have"))
}
