//! The header of a GGUF file, as specified by [its format](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): versions 2 and 3,
//! little-endian.

mod bytes;
mod types;

pub use bytes::GgufValue;
pub use types::BlockType;

use bytes::Bytes;
use cotensor_core::{Error, Result};
use std::collections::{BTreeMap, HashSet};
use std::io::Read;

const MAGIC: [u8; 4] = *b"GGUF";
/// The most dimensions.
const RANK_MAX: u32 = 4;
const ALIGNMENT: &str = "general.alignment";
/// The largest alignment of tensors in bytes, and that of files that name none.
const ALIGNMENT_MAX: u64 = 1 << 20;
const ALIGNMENT_DEFAULT: u64 = 32;

/// A tensor as the header describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufTensor {
    /// The name.
    pub name: String,
    /// The dimensions in elements, the fastest one last. The file has them in the other order.
    pub shape: Vec<usize>,
    /// How blocks of elements are stored.
    pub kind: BlockType,
    /// The offset from the start of the file, in bytes.
    pub offset: u64,
    /// The length in bytes; `None` for a type whose blocks are not known.
    pub size_bytes: Option<u64>,
}

/// The header of a GGUF file.
#[derive(Clone, Debug, Default)]
pub struct Gguf {
    metadata: BTreeMap<String, GgufValue>,
    tensors: Vec<GgufTensor>,
}

impl Gguf {
    /// Reads the header of a file of `file_bytes` bytes. Memory grows with the bytes that arrive, not with the counts that the file states.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported`, with the entry or tensor as the field, for a header that does not fit the format or the file, and for
    /// tensors that end beyond it.
    pub fn read(source: &mut impl Read, file_bytes: u64) -> Result<Self> {
        let mut bytes = Bytes::new(source, file_bytes);
        if bytes.array::<4>("magic")? != MAGIC {
            return Err(Error::corrupt("not a GGUF file").in_field("magic"));
        }
        let version = bytes.u32("version")?;
        if !(2..=3).contains(&version) {
            let message = format!("{version}; versions 2 and 3 are read, little-endian");
            return Err(Error::unsupported(message).in_field("version"));
        }
        let tensors = bytes.count("tensor count")?;
        let entries = bytes.count("metadata count")?;
        let mut metadata = BTreeMap::new();
        for _ in 0..entries {
            let name = bytes.name("metadata")?;
            let value = bytes.value().map_err(|error| error.in_field(name.as_str()))?;
            if metadata.insert(name.clone(), value).is_some() {
                return Err(Error::corrupt("appears twice").in_field(name));
            }
        }
        let alignment = match metadata.get(ALIGNMENT) {
            None => ALIGNMENT_DEFAULT,
            Some(GgufValue::Unsigned(alignment)) if alignment.is_power_of_two() && *alignment <= ALIGNMENT_MAX => {
                *alignment
            }
            Some(other) => {
                let message = format!("{other:?}; powers of two up to {ALIGNMENT_MAX} are possible");
                return Err(Error::corrupt(message).in_field(ALIGNMENT));
            }
        };
        let mut names = HashSet::new();
        let mut found = Vec::new();
        for _ in 0..tensors {
            let name = bytes.name("tensors")?;
            let tensor = tensor(&mut bytes, &name).map_err(|error| error.in_field(name.as_str()))?;
            if !names.insert(name.clone()) {
                return Err(Error::corrupt("appears twice").in_field(name));
            }
            found.push(tensor);
        }
        let start = bytes.position().next_multiple_of(alignment);
        for tensor in &mut found {
            let place = place(tensor, start, alignment, file_bytes);
            tensor.offset = place.map_err(|error| error.in_field(tensor.name.as_str()))?;
        }
        Ok(Self { metadata, tensors: found })
    }

    /// The tensors, in the order of the header.
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// A value of the metadata.
    pub fn value(&self, name: &str) -> Option<&GgufValue> {
        self.metadata.get(name)
    }

    /// A text of the metadata.
    ///
    /// # Errors
    /// `Corrupt`, with the name as the field, if it is missing or no text.
    pub fn text(&self, name: &str) -> Result<&str> {
        match self.value(name) {
            Some(GgufValue::Text(text)) => Ok(text),
            Some(_) => Err(Error::corrupt("no text").in_field(name)),
            None => Err(Error::corrupt("missing").in_field(name)),
        }
    }

    /// A number of the metadata that counts something: 1 or more. `None` if it is missing.
    ///
    /// # Errors
    /// `Corrupt`, with the name as the field, if it is no such number.
    pub fn number(&self, name: &str) -> Result<Option<usize>> {
        let number = match self.value(name) {
            None => return Ok(None),
            Some(GgufValue::Unsigned(number)) => usize::try_from(*number).ok(),
            Some(GgufValue::Signed(number)) => usize::try_from(*number).ok(),
            Some(_) => None,
        };
        let number = number.filter(|number| *number > 0);
        number.map(Some).ok_or_else(|| Error::corrupt("no number of 1 or more").in_field(name))
    }
}

/// One tensor, with its offset from the start of the data.
fn tensor(bytes: &mut Bytes<'_, impl Read>, name: &str) -> Result<GgufTensor> {
    let rank = bytes.u32("dimensions")?;
    if !(1..=RANK_MAX).contains(&rank) {
        return Err(Error::corrupt(format!("{rank} dimensions; 1 to {RANK_MAX} are possible")));
    }
    let mut shape = Vec::new();
    for _ in 0..rank {
        let dim = bytes.u64("dimensions")?;
        let possible = usize::try_from(dim).ok().filter(|dim| *dim > 0);
        shape.push(possible.ok_or_else(|| Error::corrupt(format!("a dimension of {dim}")))?);
    }
    shape.reverse();
    let kind = BlockType::of(bytes.u32("type")?)?;
    let offset = bytes.u64("offset")?;
    let mut tensor = GgufTensor { name: name.to_owned(), shape, kind, offset, size_bytes: None };
    if let Some((elements, size)) = kind.block() {
        let columns = tensor.shape[tensor.shape.len() - 1];
        if !columns.is_multiple_of(elements) {
            return Err(Error::corrupt(format!(
                "rows of {columns} elements are not a multiple of {elements}, as {kind} is"
            )));
        }
        let all = tensor.shape.iter().try_fold(1u64, |all, &dim| all.checked_mul(dim as u64));
        let size = all.and_then(|all| (all / elements as u64).checked_mul(size as u64));
        tensor.size_bytes = Some(size.ok_or_else(|| Error::corrupt(format!("dimensions {:?}", tensor.shape)))?);
    }
    Ok(tensor)
}

/// The offset of a tensor from the start of the file.
fn place(tensor: &GgufTensor, start: u64, alignment: u64, file_bytes: u64) -> Result<u64> {
    if !tensor.offset.is_multiple_of(alignment) {
        return Err(Error::corrupt(format!("its offset {} is not a multiple of {alignment}", tensor.offset)));
    }
    let offset = start.checked_add(tensor.offset);
    let end = offset.and_then(|offset| offset.checked_add(tensor.size_bytes.unwrap_or(0)));
    match offset.zip(end) {
        Some((offset, end)) if end <= file_bytes => Ok(offset),
        _ => {
            let size = tensor.size_bytes.unwrap_or(0);
            let message =
                format!("{size} bytes at {} of the data end beyond the file, which is truncated", tensor.offset);
            Err(Error::corrupt(message))
        }
    }
}

#[cfg(test)]
mod tests;
