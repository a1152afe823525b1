//! Numbers of a checkpoint, a safetensors file: the length of its header (8 bytes, little-endian), the header (JSON), the tensors.

use crate::files::JSON_BYTES_MAX;
use cotensor_core::elements::to_f32;
use cotensor_core::{DType, Error, Result};
use serde_json::Value;

/// The file with the weights of a model.
pub const FILE: &str = "model.safetensors";

/// The bytes before the header.
const START_BYTES: u64 = 8;

/// The header of a checkpoint.
#[derive(Clone, Debug)]
pub struct Header {
    tensors: Value,
    /// The offset of the tensors from the start of the file, in bytes.
    start: u64,
}

/// The length of the header in bytes, from the first 8 bytes of the file.
///
/// # Errors
/// `Corrupt` for a header that is too long.
pub fn header_length(first: [u8; 8]) -> Result<u64> {
    match u64::from_le_bytes(first) {
        length if length <= JSON_BYTES_MAX => Ok(length),
        length => Err(Error::corrupt(format!("a header of {length} bytes; at most {JSON_BYTES_MAX} are read"))),
    }
}

impl Header {
    /// Reads the header, without the 8 bytes before it.
    ///
    /// # Errors
    /// `Corrupt` when it is not JSON.
    pub fn parse(header: &[u8]) -> Result<Self> {
        let tensors = serde_json::from_slice(header).map_err(|error| Error::corrupt(error.to_string()))?;
        Ok(Self { tensors, start: START_BYTES + header.len() as u64 })
    }

    /// Reads the header of a whole file.
    ///
    /// # Errors
    /// `Corrupt` for a file that ends inside the header, and as [`header_length`] and [`parse`](Self::parse).
    pub fn of_file(file: &[u8]) -> Result<Self> {
        let short = || Error::corrupt("the file ends inside the header");
        let (first, rest) = file.split_first_chunk().ok_or_else(short)?;
        let length = usize::try_from(header_length(*first)?).map_err(|_| short())?;
        Self::parse(rest.get(..length).ok_or_else(short)?)
    }

    /// The names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.tensors.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        names.filter(|name| *name != "__metadata__")
    }

    /// The numbers of a tensor in `float32`. `file` is the whole file.
    ///
    /// # Errors
    /// `Corrupt` without a tensor of this name and shape, for one that the file does not hold, and for a number that is not
    /// finite.
    pub fn floats(&self, file: &[u8], tensor: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let found = self.tensors.get(tensor).ok_or_else(|| Error::corrupt("the file has no such tensor"))?;
        let dims =
            found.get("shape").and_then(Value::as_array).map(|dims| dims.iter().map(Value::as_u64).collect::<Vec<_>>());
        if dims != Some(shape.iter().map(|&dim| Some(dim as u64)).collect()) {
            let given = found.get("shape").map_or_else(|| "missing".to_owned(), Value::to_string);
            return Err(Error::corrupt(format!("the shape is {given}; {shape:?} is required")));
        }
        let outside = || Error::corrupt("data_offsets is out of range");
        let count = shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim)).ok_or_else(outside)?;
        let (dtype, offset) = self.place(found, count)?;
        let length = count.checked_mul(dtype.size_bytes()).ok_or_else(outside)?;
        let start = usize::try_from(offset).map_err(|_| outside())?;
        let bytes = start.checked_add(length).and_then(|end| file.get(start..end)).ok_or_else(outside)?;
        let values = to_f32(dtype, bytes);
        if values.iter().all(|value| value.is_finite()) {
            Ok(values)
        } else {
            Err(Error::corrupt("a number is not finite"))
        }
    }

    /// The type of the only element of a tensor, and its offset from the start of the file in bytes. `None` if the file lacks
    /// the tensor.
    ///
    /// # Errors
    /// `Corrupt` for a tensor that is not one floating-point number.
    pub fn number(&self, tensor: &str) -> Result<Option<(DType, u64)>> {
        self.tensors.get(tensor).map(|tensor| self.place(tensor, 1)).transpose()
    }

    /// The type of the `count` elements of a tensor, and its offset from the start of the file in bytes.
    fn place(&self, tensor: &Value, count: usize) -> Result<(DType, u64)> {
        let text = |field: &str| tensor.get(field).and_then(Value::as_str);
        let dtype = match text("dtype") {
            Some("F32") => DType::F32,
            Some("F16") => DType::F16,
            Some("BF16") => DType::BF16,
            Some("F64") => DType::F64,
            other => return Err(Error::corrupt(format!("a floating-point number is required, the type is {other:?}"))),
        };
        let offset = |at: usize| tensor.get("data_offsets").and_then(|offsets| offsets.get(at)).and_then(Value::as_u64);
        let (Some(begin), Some(end)) = (offset(0), offset(1)) else {
            return Err(Error::corrupt("data_offsets has two numbers"));
        };
        let bytes = count.checked_mul(dtype.size_bytes()).map(|bytes| bytes as u64);
        if end.checked_sub(begin).is_none_or(|found| Some(found) != bytes) {
            return Err(Error::corrupt(format!("{count} of {dtype} are required, the bytes are {begin} to {end}")));
        }
        let offset = self.start.checked_add(begin).ok_or_else(|| Error::corrupt("data_offsets is out of range"))?;
        Ok((dtype, offset))
    }

    /// The number with these bytes.
    ///
    /// # Errors
    /// `Corrupt` for another number of bytes, and for a number that is not finite.
    pub fn value(dtype: DType, bytes: &[u8]) -> Result<f32> {
        if bytes.len() != dtype.size_bytes() {
            return Err(Error::corrupt(format!("{} bytes are not one {dtype}", bytes.len())));
        }
        match to_f32(dtype, bytes).as_slice() {
            [number] if number.is_finite() => Ok(*number),
            other => Err(Error::corrupt(format!("{other:?} is not a scale"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn file(dtype: &str, shape: &[usize], offsets: [u64; 2], data: &[u8]) -> Vec<u8> {
        let header =
            json!({"__metadata__": {"format": "pt"}, "w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}});
        let header = header.to_string().into_bytes();
        [&(header.len() as u64).to_le_bytes()[..], &header, data].concat()
    }

    #[test]
    fn tensors_are_read_in_each_floating_point_type() {
        // 1.5 and -2.
        for (dtype, data) in [
            ("BF16", vec![0xc0, 0x3f, 0x00, 0xc0]),
            ("F16", vec![0x00, 0x3e, 0x00, 0xc0]),
            ("F32", [1.5f32, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect()),
            ("F64", [1.5f64, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect()),
        ] {
            let file = file(dtype, &[2, 1], [0, data.len() as u64], &data);
            let header = Header::of_file(&file).unwrap();
            assert_eq!(header.names().collect::<Vec<_>>(), ["w"]);
            assert_eq!(header.floats(&file, "w", &[2, 1]).unwrap(), [1.5, -2.0], "{dtype}");
            assert!(header.floats(&file, "w", &[2]).unwrap_err().message().contains("[2,1]"));
            assert!(header.floats(&file, "b", &[2]).is_err());
        }
    }

    /// A product of dimensions that wraps around is not a small tensor.
    #[test]
    fn shape_beyond_the_address_space_is_refused() {
        let huge = [1 << (usize::BITS / 2), 1 << (usize::BITS / 2)];
        let file = file("F32", &huge, [0, 0], &[]);
        let error = Header::of_file(&file).unwrap().floats(&file, "w", &huge).unwrap_err();
        assert!(error.message().contains("out of range"), "{error}");
    }

    #[test]
    fn damaged_files_are_refused() {
        let data = [0u8; 8];
        let read = |file: &[u8]| Header::of_file(file).and_then(|header| header.floats(file, "w", &[2]));
        assert!(read(&file("F32", &[2], [0, 8], &data)).is_ok());
        for (reason, wrong) in [
            ("out of range", file("F32", &[2], [0, 8], &data[..7])),
            ("out of range", file("F32", &[2], [u64::MAX - 8, u64::MAX], &data)),
            ("are required", file("F32", &[2], [0, 4], &data)),
            ("are required", file("F32", &[2], [8, 0], &data)),
            ("floating-point", file("I32", &[2], [0, 8], &data)),
            ("not finite", file("F32", &[2], [0, 8], &[0xff; 8])),
            ("ends inside", vec![9; 4]),
            ("ends inside", [&9u64.to_le_bytes()[..], b"{}"].concat()),
            ("at most", [0xff; 16].to_vec()),
        ] {
            let error = read(&wrong).unwrap_err();
            assert!(error.message().contains(reason), "{reason}: {error}");
        }
    }
}
