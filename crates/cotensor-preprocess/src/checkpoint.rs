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
        let (dtype, offset) = self.place(found, shape.iter().product())?;
        let outside = || Error::corrupt("data_offsets is out of range");
        let length = shape.iter().product::<usize>() * dtype.size_bytes();
        let start = usize::try_from(offset).map_err(|_| outside())?;
        let bytes = start.checked_add(length).and_then(|end| file.get(start..end)).ok_or_else(outside)?;
        let values = to_f32(dtype, bytes);
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err(Error::corrupt("a number is not finite")),
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
        if end.checked_sub(begin) != Some((count * dtype.size_bytes()) as u64) {
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
            other => Err(Error::corrupt(format!("{other:?} is no scale"))),
        }
    }
}
