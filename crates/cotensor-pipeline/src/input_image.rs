//! An image as an input of a task.

use super::input_file::InputFile;
use cotensor_core::{ContentHash, Error, Hasher, Result};
use cotensor_preprocess::{Array, ImageProcessor, decode_image, image_of_pixels, image_size};

/// The most pixels of a mask whose size a graph fixes.
const MASK_PIXELS_MAX: usize = 1 << 24;

/// An image: a file, or pixels.
#[derive(Debug)]
pub struct InputImage {
    content: Content,
    hash: ContentHash,
}

#[derive(Debug)]
enum Content {
    /// PNG, JPEG, WebP or BMP.
    File(InputFile),
    /// Three or four bytes for each pixel, and width and height.
    Pixels(Vec<u8>, (u32, u32)),
}

impl From<InputFile> for InputImage {
    fn from(file: InputFile) -> Self {
        Self { hash: file.hash(), content: Content::File(file) }
    }
}

impl InputImage {
    /// The image with these pixels, as [`image_of_pixels`] reads them.
    pub fn of_pixels(pixels: Vec<u8>, size: (u32, u32)) -> Self {
        let mut hasher = Hasher::new("cotensor pixels v1");
        hasher.field(&size.0.to_le_bytes());
        hasher.field(&size.1.to_le_bytes());
        hasher.field(&pixels);
        Self { hash: hasher.finish(), content: Content::Pixels(pixels, size) }
    }

    /// The hash of the content. Two files with the same pixels have two hashes.
    pub fn hash(&self) -> ContentHash {
        self.hash
    }

    /// Width and height before preprocessing, in pixels.
    ///
    /// # Errors
    /// `Corrupt` when it cannot be decoded.
    pub fn size(&self) -> Result<(u32, u32)> {
        match &self.content {
            Content::File(file) => image_size(file.bytes()).map_err(|error| error.in_file(file.path())),
            Content::Pixels(_, size) => Ok(*size),
        }
    }

    /// The image, preprocessed: `[1, 3, height, width]`.
    ///
    /// # Errors
    /// `Corrupt` when it cannot be decoded, `Invalid` past the limits of images and for pixels that do not fill the image.
    pub fn pixels(&self, processor: &ImageProcessor) -> Result<Array> {
        match &self.content {
            Content::File(file) => {
                let pixels = || processor.process(&decode_image(file.bytes())?);
                pixels().map_err(|error: Error| error.in_file(file.path()))
            }
            Content::Pixels(pixels, size) => processor.process(&image_of_pixels(pixels, *size)?),
        }
    }

    /// As [`image_mask`].
    ///
    /// # Errors
    /// As [`size`](Self::size) and [`image_mask`].
    pub fn mask(&self, processor: &ImageProcessor, dims: Option<&[Option<usize>]>) -> Result<Array> {
        image_mask(processor, self.size()?, dims)
    }
}

/// For an image of `size` (width and height in pixels), which pixels of [`ImageProcessor::process`] are the image:
/// `[1, height, width]`, or the shape `dims` that the graph declares. Some exports fix a size for the mask that is not the size of
/// the image.
///
/// # Errors
/// `Unsupported` when the image has padding and the graph reads a mask of another size; as [`ImageProcessor::mask`].
pub fn image_mask(processor: &ImageProcessor, size: (u32, u32), dims: Option<&[Option<usize>]>) -> Result<Array> {
    let mask = processor.mask(size)?;
    let wanted: Vec<usize> = match dims {
        Some(dims) if dims.len() == 3 => {
            dims.iter().zip(mask.shape()).map(|(wanted, &given)| wanted.unwrap_or(given)).collect()
        }
        _ => return Ok(mask),
    };
    if wanted == mask.shape() {
        return Ok(mask);
    }
    if wanted[0] != 1 || mask.as_i64()?.contains(&0) || wanted.iter().product::<usize>() > MASK_PIXELS_MAX {
        let message = format!("the graph reads a mask of shape {wanted:?}, the image has {:?}", mask.shape());
        return Err(Error::unsupported(message).in_field("pixel_mask"));
    }
    Array::i64(wanted.as_slice(), vec![1; wanted.iter().product()])
}
