//! Arrays that preprocessing makes.

use crate::errors::Result;
use cotensor_core::DType;
use cotensor_graph::key::array_identity;
use cotensor_preprocess::Array;
use wasm_bindgen::prelude::*;

/// A row-major array.
#[wasm_bindgen(js_name = ArrayHandle)]
pub struct ArrayHandle(pub(crate) Array);

#[wasm_bindgen(js_class = ArrayHandle)]
impl ArrayHandle {
    /// The element type: `float32`.
    #[wasm_bindgen(getter)]
    pub fn dtype(&self) -> String {
        self.0.dtype().name().to_owned()
    }

    /// Dimensions, in elements.
    #[wasm_bindgen(getter)]
    pub fn shape(&self) -> Vec<u32> {
        // WebAssembly's memory is smaller than 2^32 elements.
        self.0.shape().iter().map(|&dim| dim as u32).collect()
    }

    /// The identity of the array as an input, 64 hexadecimal digits.
    pub fn identity(&self) -> String {
        array_identity(self.0.dtype(), self.0.shape(), self.0.bytes()).to_string()
    }

    /// A copy of the elements' little-endian bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.bytes().to_vec()
    }

    /// A copy of the elements of a `float32` array.
    ///
    /// # Errors
    /// `Invalid` for another element type.
    pub fn floats(&self) -> Result<Vec<f32>> {
        Ok(self.0.as_f32()?.to_vec())
    }

    /// A copy of the elements of an `int64` array.
    ///
    /// # Errors
    /// `Invalid` for another element type.
    pub fn integers(&self) -> Result<Vec<i64>> {
        Ok(self.0.as_i64()?.to_vec())
    }
}

impl From<Array> for ArrayHandle {
    fn from(array: Array) -> Self {
        Self(array)
    }
}

/// The element type of this name.
///
/// # Errors
/// `Invalid` for another name.
pub(crate) fn dtype(name: &str) -> cotensor_core::Result<DType> {
    name.parse().map_err(|error: cotensor_core::Error| error.in_field("dtype"))
}
