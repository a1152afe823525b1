//! The tensors of a `.safetensors` file with their places, for readers that take some of them.

use crate::safetensors::read_header;
use cotensor_core::{DType, Error, Result};
use std::io::{self, Read};

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedTensor {
    /// The name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    /// The offset from the start of the file, in bytes.
    pub offset: u64,
    /// The length in bytes.
    pub size_bytes: u64,
}

/// The tensors of a `.safetensors` file of `file_bytes` bytes.
///
/// # Errors
/// `Corrupt` or `Unsupported`, with the tensor or the part of the header as the field, also for tensors that end beyond the file.
pub fn placed_tensors(source: &mut impl Read, file_bytes: u64) -> Result<Vec<PlacedTensor>> {
    let mut counted = Counted { source, bytes: 0 };
    let entries = read_header(&mut counted)?;
    let place = |entry: crate::FileTensor| {
        let size_bytes = entry.size_bytes()? as u64;
        let offset = counted.bytes.checked_add(entry.offset);
        let end = offset.and_then(|offset| offset.checked_add(size_bytes)).filter(|end| *end <= file_bytes);
        match offset.zip(end) {
            Some((offset, _)) => {
                Ok(PlacedTensor { name: entry.name, dtype: entry.dtype, shape: entry.shape, offset, size_bytes })
            }
            None => {
                let message = format!("{size_bytes} bytes at {} end beyond the file, which is truncated", entry.offset);
                Err(Error::corrupt(message).in_field(entry.name))
            }
        }
    };
    entries.into_iter().map(place).collect()
}

/// Counts the bytes that were read.
struct Counted<'s, R> {
    source: &'s mut R,
    bytes: u64,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(target)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_have_places_in_the_file() {
        let header = r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F16","shape":[2,1],"data_offsets":[3,7]}}"#;
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[1, 2, 3, 4, 5, 6, 7]].concat();
        let found = placed_tensors(&mut &file[..], file.len() as u64).unwrap();
        let places: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.offset, one.size_bytes)).collect();
        let start = 8 + header.len() as u64;
        assert_eq!(places, [("a", start, 3), ("b", start + 3, 4)]);
        let error = placed_tensors(&mut &file[..], file.len() as u64 - 1).unwrap_err();
        assert_eq!(error.field(), Some("b"), "{error}");
    }
}
