//! The header of a `.safetensors` file, as specified by [its format](https://github.com/huggingface/safetensors#format).

use crate::entry::FileTensor;
use crate::error::read_error_in;
use cotensor_core::{DType, Error, RANK_MAX, Result};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};

/// The longest header that is read, in bytes.
const HEADER_BYTES_MAX: u64 = 32 << 20;
/// The data starts at a multiple of this.
const ALIGNMENT: usize = 64;

/// The header entry that is not a tensor.
const METADATA: &str = "__metadata__";

/// A tensor as the header describes it.
#[derive(Deserialize)]
struct Described {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// Reads a header; the data follows it in `source`. Returns the tensors in the order of their data, which has no gaps.
pub(super) fn read_header(source: &mut impl Read) -> Result<Vec<FileTensor>> {
    let mut len = [0; 8];
    source.read_exact(&mut len).map_err(|error| read_error_in("header length", &error))?;
    let len = u64::from_le_bytes(len);
    if len > HEADER_BYTES_MAX {
        let message = format!("{len} bytes; at most {HEADER_BYTES_MAX} are read (is it a .safetensors file?)");
        return Err(Error::corrupt(message).in_field("header length"));
    }
    let mut header = Vec::new();
    // The buffer grows with the bytes that arrive, not with the announced length.
    source.take(len).read_to_end(&mut header).map_err(|error| read_error_in("header", &error))?;
    if header.len() as u64 != len {
        return Err(Error::corrupt("the file ends inside the header").in_field("header"));
    }
    let mut described: BTreeMap<String, Value> =
        serde_json::from_slice(&header).map_err(|error| Error::corrupt(error.to_string()).in_field("header"))?;
    described.remove(METADATA);
    let mut entries = Vec::with_capacity(described.len());
    for (name, described) in described {
        let (entry, end) = entry(&name, described).map_err(|error| error.in_field(name.as_str()))?;
        entries.push((end, entry));
    }
    // Empty tensors sort before a tensor with the same offset.
    entries.sort_by_key(|(end, entry)| (entry.offset, *end));
    let mut last = 0;
    for (end, entry) in &entries {
        if entry.offset != last {
            let message = format!("the data starts at byte {}, but the data before it ends at {last}", entry.offset);
            return Err(Error::corrupt(message).in_field(entry.name.as_str()));
        }
        last = *end;
    }
    Ok(entries.into_iter().map(|(_, entry)| entry).collect())
}

/// One tensor, and the offset of its end in bytes.
fn entry(name: &str, described: Value) -> Result<(FileTensor, u64)> {
    let info: Described = serde_json::from_value(described).map_err(|error| Error::corrupt(error.to_string()))?;
    let dtype = info.dtype.parse::<DType>().map_err(|error| Error::unsupported(error.message()))?;
    if info.shape.len() > RANK_MAX {
        let message = format!("{} dimensions; at most {RANK_MAX} are supported", info.shape.len());
        return Err(Error::unsupported(message));
    }
    let entry = FileTensor { name: name.to_owned(), ..FileTensor::raw(dtype, info.shape) };
    let (start, end) = info.data_offsets;
    let len = entry.size_bytes().map_err(|error| Error::corrupt(error.message()))? as u64;
    if end.checked_sub(start) != Some(len) {
        let message = format!("{len} bytes by dtype and shape, and bytes {start} to {end} by data_offsets");
        return Err(Error::corrupt(message));
    }
    Ok((FileTensor { offset: start, ..entry }, end))
}

/// Writes a header for tensors whose data follows without gaps in the order of `tensors`.
pub(super) fn write_header(target: &mut impl Write, tensors: &[(&str, DType, &[usize])]) -> Result<()> {
    let mut offset = 0usize;
    let mut infos = Vec::new();
    for &(name, dtype, shape) in tensors {
        if name == METADATA {
            return Err(Error::invalid("the format reserves this name").in_field(name));
        }
        let too_large = || Error::invalid("too many bytes for one file").in_field(name);
        let bytes = shape.iter().try_fold(dtype.size_bytes(), |bytes, &dim| bytes.checked_mul(dim));
        let end = bytes.and_then(|bytes| offset.checked_add(bytes)).ok_or_else(too_large)?;
        let info = TensorInfo { dtype: file_dtype(dtype)?, shape: shape.to_vec(), data_offsets: (offset, end) };
        infos.push((name.to_owned(), info));
        offset = end;
    }
    let invalid = |error: String| Error::invalid(error).in_field("header");
    let metadata = Metadata::new(None, infos).map_err(|error| invalid(error.to_string()))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| invalid(error.to_string()))?;
    let len = (8 + header.len()).next_multiple_of(ALIGNMENT) - 8;
    header.resize(len, b' ');
    let written = target.write_all(&(len as u64).to_le_bytes()).and_then(|()| target.write_all(&header));
    written.map_err(|error| Error::io("cannot write", &error))
}

fn file_dtype(dtype: DType) -> Result<Dtype> {
    let name = serde_json::Value::from(dtype.safetensors_name());
    serde_json::from_value(name)
        .map_err(|_| Error::unsupported(format!(".safetensors files have no {dtype}; write a .npy file")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()
    }

    #[test]
    fn headers_read_back_aligned() {
        let tensors: Vec<_> = DType::ALL
            .iter()
            .filter(|dtype| **dtype != DType::C128)
            .map(|dtype| (dtype.name(), *dtype, &[2, 3][..]))
            .collect();
        let mut bytes = Vec::new();
        write_header(&mut bytes, &tensors).unwrap();
        assert_eq!(bytes.len() % ALIGNMENT, 0);
        let entries = read_header(&mut &bytes[..]).unwrap();
        let mut offset = 0;
        for (entry, (name, dtype, shape)) in entries.iter().zip(&tensors) {
            assert_eq!((&entry.name[..], entry.dtype, &entry.shape[..]), (*name, *dtype, *shape));
            assert_eq!(entry.offset, offset);
            offset += 6 * dtype.size_bytes() as u64;
        }
        assert_eq!(entries.len(), tensors.len());
        let error = write_header(&mut Vec::new(), &[("x", DType::C128, &[1])]).unwrap_err();
        assert!(error.message().contains(".npy"), "{error}");
    }

    #[test]
    fn invalid_headers_name_the_field() {
        for (header, field) in [
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, "a"),
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#, "a"),
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, "a"),
            (r#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}"#, "a"),
            (r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, "a"),
            (r#"{"a":{"dtype":"F8_E8M0","shape":[4],"data_offsets":[0,4]}}"#, "a"),
            (
                r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#,
                "b",
            ),
            (r#"{"__metadata__":{"format":"pt"},"a":1}"#, "a"),
            ("{", "header"),
            ("", "header"),
        ] {
            assert_eq!(read_header(&mut &file(header)[..]).unwrap_err().field(), Some(field), "{header}");
        }
        let deep = format!(r#"{{"a":{{"dtype":"U8","shape":[{}1],"data_offsets":[0,1]}}}}"#, "1,".repeat(RANK_MAX));
        assert_eq!(read_header(&mut &file(&deep)[..]).unwrap_err().field(), Some("a"));
        for bytes in [&u64::MAX.to_le_bytes()[..], &[0; 3], &[9, 0, 0, 0, 0, 0, 0, 0, b'{']] {
            assert!(read_header(&mut &bytes[..]).is_err());
        }
        assert!(write_header(&mut Vec::new(), &[("__metadata__", DType::U8, &[1])]).is_err());
    }
}
