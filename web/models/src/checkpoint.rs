//! The scale and the bias of similarities, from the files of a model.

use crate::errors::Result;
use crate::family::ModelFamily;
use cotensor_core::Error;
use cotensor_preprocess::checkpoint::{Header, header_length};
use wasm_bindgen::prelude::*;

/// The header of a checkpoint (a safetensors file), of which a program reads one number without fetching the file.
#[wasm_bindgen]
pub struct CheckpointHeader(Header);

#[wasm_bindgen]
impl CheckpointHeader {
    /// The length in bytes of the header, which follows the first 8 bytes of the file.
    ///
    /// # Errors
    /// `Corrupt` for another number of bytes, and for a header that is too long.
    pub fn length(first: &[u8]) -> Result<f64> {
        let first = first.try_into().map_err(|_| Error::corrupt("a checkpoint begins with 8 bytes"))?;
        Ok(header_length(first)? as f64)
    }

    /// Reads the header, without the 8 bytes before it.
    ///
    /// # Errors
    /// `Corrupt` when it is not JSON.
    #[wasm_bindgen(constructor)]
    pub fn new(header: &[u8]) -> Result<CheckpointHeader> {
        Ok(Self(Header::parse(header)?))
    }

    /// Where the file has the only element of a tensor: `[offset, length]` in bytes. Nothing if the file lacks the tensor.
    ///
    /// # Errors
    /// `Corrupt` for a tensor that is not one floating-point number.
    pub fn range(&self, tensor: &str) -> Result<Option<Vec<f64>>> {
        let found = self.0.number(tensor).map_err(|error| error.in_field(tensor))?;
        Ok(found.map(|(dtype, offset)| vec![offset as f64, dtype.size_bytes() as f64]))
    }

    /// The number with these bytes.
    ///
    /// # Errors
    /// As [`range`](Self::range); `Corrupt` for a number that is not finite.
    pub fn number(&self, tensor: &str, bytes: &[u8]) -> Result<Option<f32>> {
        let number = || self.0.number(tensor)?.map(|(dtype, _)| Header::value(dtype, bytes)).transpose();
        Ok(number().map_err(|error: Error| error.in_field(tensor))?)
    }
}

/// The scale of similarities before training, from config.json; nothing if the family has no such field.
///
/// # Errors
/// `Unsupported` for a family without similarities.
#[wasm_bindgen(js_name = scaleBeforeTraining)]
pub fn scale_before_training(family: &ModelFamily) -> Result<Option<f32>> {
    Ok(family.def().similarity()?.before_training(family.config().values))
}
