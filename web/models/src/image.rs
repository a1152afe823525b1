//! Image preprocessing.

use crate::arrays::ArrayHandle;
use crate::bytes::Bytes;
use crate::errors::Result;
use crate::family::ModelFamily;
use crate::files::ConfigFiles;
use cotensor_core::{Error, size};
use cotensor_pipeline::image_mask;
use cotensor_preprocess::{decode_image, image_of_pixels, image_size};
use wasm_bindgen::prelude::*;

/// The most bytes of an image file, which is in the module's memory while it is decoded.
const IMAGE_BYTES_MAX: u64 = 256 << 20;

/// The image preprocessing of a model.
#[wasm_bindgen]
pub struct ImageProcessor(cotensor_preprocess::ImageProcessor);

#[wasm_bindgen]
impl ImageProcessor {
    /// Reads the image part of processor_config.json, or preprocessor_config.json.
    ///
    /// # Errors
    /// `NotFound` without either file, `Invalid` for a field with an invalid value, `Unsupported` for an unknown processor class.
    #[wasm_bindgen(constructor)]
    pub fn new(files: &ConfigFiles, family: &ModelFamily) -> Result<ImageProcessor> {
        let class = family.def().image_processors.get(family.model_type());
        Ok(Self(cotensor_preprocess::ImageProcessor::open(files, class.map(String::as_str))?))
    }

    /// The model's input for an image file (PNG, JPEG, WebP or BMP): `[1, 3, height, width]`, `float32`.
    ///
    /// # Errors
    /// `Corrupt` when the file cannot be decoded, `Invalid` for a file or an image past the limits, or without pixels.
    pub fn process(&self, file: &Bytes) -> Result<ArrayHandle> {
        Ok(self.0.process(&decode_image(&copied(file)?)?)?.into())
    }

    /// As [`process`](Self::process), for pixels: red, green, blue and opacity of each, row by row. Opacity is dropped.
    ///
    /// # Errors
    /// `Invalid` for another number of bytes and for an image past the limits.
    #[wasm_bindgen(js_name = processPixels)]
    pub fn process_pixels(&self, rgba: &[u8], width: u32, height: u32) -> Result<ArrayHandle> {
        Ok(self.0.process(&image_of_pixels(rgba, (width, height))?)?.into())
    }

    /// For an image of this size in pixels, which pixels of [`process`](Self::process) are the image and not padding: `[1,
    /// height, width]`, `int64`, or the shape `dims` that the graph declares, with 0 for a dimension that varies.
    ///
    /// # Errors
    /// As [`process`](Self::process); `Unsupported` when the image has padding and the graph reads a mask of another size.
    pub fn mask(&self, width: u32, height: u32, dims: Vec<u32>) -> Result<ArrayHandle> {
        let dims: Vec<Option<usize>> = dims.into_iter().map(|dim| (dim > 0).then_some(dim as usize)).collect();
        Ok(image_mask(&self.0, (width, height), Some(&dims))?.into())
    }

    /// The hash of every parameter that affects the result, 64 hexadecimal digits.
    #[wasm_bindgen(getter)]
    pub fn fingerprint(&self) -> String {
        self.0.fingerprint().to_string()
    }
}

/// Width and height of an image file, in pixels.
///
/// # Errors
/// As [`ImageProcessor::process`].
#[wasm_bindgen(js_name = imageSize)]
pub fn size_of_image(file: &Bytes) -> Result<Vec<u32>> {
    let (width, height) = image_size(&copied(file)?)?;
    Ok(vec![width, height])
}

/// The bytes of an image file.
///
/// # Errors
/// `Invalid` for a file of too many bytes.
fn copied(file: &Bytes) -> Result<Vec<u8>> {
    check_file(file.len(), IMAGE_BYTES_MAX, "image")?;
    let mut bytes = vec![0; file.len() as usize];
    file.read(0, &mut bytes)?;
    Ok(bytes)
}

/// Refuses a file of more than `most` bytes.
pub(crate) fn check_file(bytes: u64, most: u64, field: &str) -> Result<()> {
    if bytes > most {
        let message = format!("a file of {}; at most {} are read", size(bytes), size(most));
        return Err(Error::invalid(message).in_field(field).into());
    }
    Ok(())
}
