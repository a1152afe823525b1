//! From texts, images and sounds to what graphs read, as the model's own configuration says.

mod audio;
mod image;
mod mel;
mod text;

pub use audio::{Audio, decode_wav, decode_wav_start, resample, wav_rate_and_seconds};
pub use image::{ImageProcessor, decode_image};
pub use mel::AudioProcessor;
pub use text::{TextProcessor, TokenBatch};
