//! From texts, images and sounds to what graphs read, as the model's own configuration says.

mod audio;
mod compressed;
mod config;
mod decode;
mod image;
mod mel;
mod sentence;
mod text;
mod wav;

pub use audio::{Audio, AudioLength, audio_length, decode_audio, decode_audio_start, resample};
pub use decode::decode_image;
pub use image::ImageProcessor;
pub use mel::AudioProcessor;
pub use sentence::SentenceProcessor;
pub use text::{TextProcessor, TokenBatch};
