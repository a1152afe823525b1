//! Images: decoding, and the preprocessing of Pillow and of transformers' image processors.

mod decode;
mod processor;
mod processor_class;
mod resize;
mod size;

pub use decode::{decode_image, image_of_pixels, image_size};
pub use processor::ImageProcessor;
