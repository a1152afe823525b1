//! Sounds: decoding, resampling and log-mel features.

mod compressed;
mod decode;
mod mel;
mod resample;
mod sound;
mod wav;

pub use decode::{audio_length, decode_audio, decode_audio_start};
pub use mel::AudioProcessor;
pub use resample::resample;
pub use sound::{Audio, AudioLength};
